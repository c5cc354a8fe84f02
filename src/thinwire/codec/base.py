"""What a codec is: a frozen set of fields that turns rows of floats into rows of bytes and back."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Literal, final

import numpy as np
import numpy.typing as npt

from thinwire.codec.arrays import Array, buffer, new_like, rows_in, wire_in
from thinwire.errors import ConfigError, WireError
from thinwire.kernels.layout import ROW_ALIGN, round_up
from thinwire.kernels.ops import Rows

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
ROUNDINGS: Final = ("nearest", "stochastic")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """Rows of floats <-> rows of bytes. A row is one message: it decodes alone, and its size depends on n only.

    Subclasses are final, list their fields, and implement the methods with a leading underscore.
    """

    source: ClassVar[str]
    """Where the formula comes from."""
    named: ClassVar[tuple[str, ...]] = ("bits",)
    """The fields that the registered name says, so that neither a spec nor a caller says them again."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The registered name, e.g. "int4"."""

    @abstractmethod
    def _payload_bytes(self, n: int) -> int: ...

    @abstractmethod
    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None: ...

    @abstractmethod
    def _decode(self, wire: U8, out: F32, add: bool) -> None: ...

    def _code_section(self, n: int) -> tuple[int, int] | None:
        """Where a row of ``n`` has packed codes, which end it, and their bits; None for a codec whose rows are something else."""
        return None

    @property
    def sums(self) -> Literal["two_shot", "all_gather"]:
        """How ranks sum: each a shard, whose sum is encoded again; or everybody all rows, where a sum would not fit in a row."""
        return "two_shot"

    @property
    def feedback_default(self) -> bool:
        """Whether ``compress`` feeds back what the wire lost if nobody says."""
        return False

    @property
    def variable(self) -> bool:
        """Whether rows of ``n`` differ in size: ``wire_bytes(n)`` is the most then, and a row states its own."""
        return False

    def stated_bytes(self, head: bytes | memoryview) -> int:
        """Bytes of a row of a ``variable`` codec, by its first 16. Raises WireError for a number that no encoder writes."""
        raise ConfigError(f"{self.name}: rows do not state their size; allowed: codecs with variable rows")

    def least_bytes(self, n: int) -> int:
        """Bytes of the shortest row of ``n``: fewer than ``wire_bytes`` for a ``variable`` codec."""
        return self.wire_bytes(n)

    @final
    def encode(self, rows: Array, out: Array | None = None, error: Array | None = None, seed: int = 0) -> Array:
        """(r, n) floats -> (r, ``wire_bytes(n)``) uint8, NumPy or torch as given.

        ``out`` receives the bytes; ``error`` (r, n) float32 receives what the wire lost, ``rows - decode(bytes)``, and
        may be ``rows`` itself. ``seed`` chooses the noise of codecs that round stochastically; others ignore it.
        Raises ConfigError for anything but a strided CPU array of floats with two dimensions.
        """
        values = rows_in(rows)
        r, n = values.data.shape
        shape = (r, self.wire_bytes(n))
        if out is None:
            wire, result = new_like(rows, shape, np.uint8)
        else:
            wire, result = buffer("out", out, shape, np.uint8), out
        lost = None if error is None else buffer("error", error, (r, n), np.float32)
        if values.data.size:
            self._encode(values, wire, lost, seed)
            if not self.variable:
                wire[:, self._payload_bytes(n) :] = 0
        return result

    @final
    def decode(self, wire: Array, n: int, out: Array | None = None, add: bool = False) -> Array:
        """(r, ``wire_bytes(n)``) uint8 -> (r, n) float32, NumPy or torch as given; ``add=True`` adds to ``out``.

        Raises ConfigError if the bytes of a row are not ``wire_bytes(n)``, or ``out`` is not (r, n) float32. A row that no
        encoder of a ``variable`` codec writes raises WireError; those before it are decoded by then.
        """
        data = wire_in(wire, self.wire_bytes(n))
        shape = (data.shape[0], n)
        if out is None:
            if add:
                raise ConfigError("add=True without out; allowed: out=(rows, n) float32 to add to")
            values, result = new_like(wire, shape, np.float32)
        else:
            values, result = buffer("out", out, shape, np.float32), out
        if values.size:
            self._decode(data, values, add)
        return result

    @final
    def wire_bytes(self, n: int) -> int:
        """Bytes of one row of ``n`` elements, padding included. Raises ConfigError for a negative ``n``."""
        if n < 0:
            raise ConfigError(f"n={n!r} is out of range; allowed: 0 or more")
        return round_up(self._payload_bytes(n), ROW_ALIGN)

    @final
    def message_bytes(self, row: Array) -> int:
        """Bytes of an encoded row, one of ``encode``'s, that must travel: all but the zeros behind a row of a ``variable`` codec.

        Raises WireError for a row that states a size that it cannot have.
        """
        data = np.asarray(row)
        if not self.variable or not data.size:
            return data.size
        size = self.stated_bytes(data[:ROW_ALIGN].tobytes())
        if size > data.size:
            raise WireError(f"entropy-coded row says it has {size} bytes; allowed here: up to {data.size}")
        return size

    @final
    def bits_per_element(self, n: int) -> float:
        """Effective bits of an element in a row of ``n``: codes, scales and padding; of a ``variable`` codec, the most. 0.0 for
        an empty row."""
        return 8 * self.wire_bytes(n) / n if n else 0.0

    def expected_bits(self, n: int) -> float:
        """What plans go by: ``bits_per_element``, but for a ``variable`` codec what Gaussian numbers take; all ranks agree."""
        return self.bits_per_element(n)

    @final
    def measured_bits(self, wire: Array, n: int) -> float:
        """Effective bits of an element in these encoded rows of ``n``. 0.0 for none."""
        rows, data = int(wire.shape[0]), np.asarray(wire)
        return 8 * sum(self.message_bytes(row) for row in data) / (rows * n) if rows * n else 0.0

    @final
    def spec(self) -> str:
        """Name and fields as one line of ASCII, e.g. "int4;block=32;scale=log8": what ranks and frames compare."""
        silent = {f.name for f in dataclasses.fields(self) if "quiet" in f.metadata and getattr(self, f.name) == f.default}
        told = [name for name in self.field_names() if name != "inner" and name not in silent]
        return ";".join([self._spec_name(), *(f"{name}={text(getattr(self, name))}" for name in told)])

    def _spec_name(self) -> str:
        return self.name

    @final
    def field_names(self) -> list[str]:
        """The fields that are not part of the name."""
        return [f.name for f in dataclasses.fields(self) if f.name not in self.named]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapper(Codec):
    """A codec that changes what goes into or comes out of ``inner``; named ``label(inner)``."""

    inner: Codec
    label: ClassVar[str]

    @property
    @final
    def name(self) -> str:
        return f"{self.label}({self.inner.name})"

    @property
    def sums(self) -> Literal["two_shot", "all_gather"]:
        return self.inner.sums

    @property
    def feedback_default(self) -> bool:
        return self.inner.feedback_default

    @property
    def variable(self) -> bool:
        return self.inner.variable

    def stated_bytes(self, head: bytes | memoryview) -> int:
        return self.inner.stated_bytes(head)

    def least_bytes(self, n: int) -> int:
        return self.inner.least_bytes(n)

    def expected_bits(self, n: int) -> float:
        return self.inner.expected_bits(n)

    @final
    def _spec_name(self) -> str:
        return f"{self.label}({self.inner.spec()})"


def text(value: Any) -> str:
    """A field's value as specs have it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def quiet(default: Any) -> Any:
    """A field that a spec leaves out at its default: it came later, and earlier specs must stay what they are."""
    return dataclasses.field(default=default, metadata={"quiet": True})


def check_rounding(name: str, rounding: str) -> None:
    """Raises ConfigError unless ``rounding`` is a known way to round."""
    if rounding not in ROUNDINGS:
        raise ConfigError(f"{name}: rounding={rounding!r} is not known; allowed: {', '.join(ROUNDINGS)}")


def drawn(rounding: str, seed: int) -> int | None:
    """The seed of the noise to round with; None for rounding to nearest."""
    return seed if rounding == "stochastic" else None


def check_bits(name: str, bits: int, allowed: tuple[int, ...]) -> None:
    """Raises ConfigError unless ``bits`` is one of ``allowed``."""
    if isinstance(bits, bool) or bits not in allowed:
        raise ConfigError(f"{name}: bits={bits!r} is out of range; allowed: {', '.join(map(str, allowed))}")


def check_block(name: str, block: int, smallest: int, largest: int) -> None:
    """Raises ConfigError unless ``block`` is a power of two in [smallest, largest]."""
    check_power(name, "block", block, smallest, largest)


def check_power(name: str, field: str, value: int, smallest: int, largest: int) -> None:
    """Raises ConfigError unless ``value`` is a power of two in [smallest, largest]."""
    good = isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= largest
    if not good or value & (value - 1):
        raise ConfigError(f"{name}: {field}={value!r} is not allowed; allowed: powers of two from {smallest} to {largest}")


def check_seed(name: str, seed: int) -> None:
    """Raises ConfigError unless ``seed`` is an integer of up to 63 bits."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise ConfigError(f"{name}: seed={seed!r} is out of range; allowed: 0 to {(1 << 63) - 1}")
