"""``hadamard(inner)``: a random rotation before the inner codec, so that outliers are shared out over their block.

    y = clamp(H (D x / d) * sqrt(d))        x' = D clamp(H (y' / d) * sqrt(d))

H is the Hadamard matrix of d = ``block`` elements and D a diagonal of random signs, from ``seed`` and the element's number in its
row, so that all ranks and steps rotate alike. A rest of a row is cut into blocks by the binary digits of its size, so nothing
is padded. A rotated block is nearly Gaussian whatever it was: it pays where blocks are heavy-tailed (kurtosis above about 5),
and costs nothing on the wire. Wire bytes of a row: those of ``inner``.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import numpy as np

from thinwire.codec.base import F32, U8, Codec, Wrapper, check_block, check_seed
from thinwire.errors import ConfigError
from thinwire.kernels import ops, ops_hadamard
from thinwire.kernels.ops import Rows


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Hadamard(Wrapper):
    """``inner`` in a basis that is rotated at random, block by block."""

    block: int = 256
    seed: int = 0
    label: ClassVar[str] = "hadamard"
    source: ClassVar[str] = "Suresh et al. 2017, arXiv:1611.00429, section 3"

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Codec) or isinstance(self.inner, Hadamard):
            raise ConfigError(f"hadamard: inner={self.inner!r} is not allowed; allowed: a codec that is not rotated already")
        check_block(self.name, self.block, 8, 4096)
        check_seed(self.name, self.seed)

    def _code_section(self, n: int) -> tuple[int, int] | None:
        return self.inner._code_section(n)

    def _payload_bytes(self, n: int) -> int:
        return self.inner._payload_bytes(n)

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        rotated = np.empty(rows.data.shape, dtype=np.float32)
        ops_hadamard.rotate(rows, rotated, self.block, self.seed)
        self.inner._encode(Rows(rotated, ops.FLOAT32), wire, None, seed)
        if error is not None:
            back = np.empty_like(rotated)
            self._decode(wire, back, add=False)
            with np.errstate(over="ignore", invalid="ignore"):
                np.subtract(rows.as_float32(), back, out=error)

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        rotated = np.empty(out.shape, dtype=np.float32)
        self.inner._decode(wire, rotated, add=False)
        ops_hadamard.unrotate(rotated, out, self.block, self.seed, add)
