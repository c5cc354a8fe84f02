"""``reduce/gather``: one codec for each shot of a two-shot all-reduce, such as ``int2/int4``.

The two shots are not alike. What the first one loses of N ranks' tensors is averaged with them; what the second loses of the sum,
everybody gets. So the first can do with fewer bits: D1/(1 + (N-1) rho) + D2 for the codecs' own errors D1 and D2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

from thinwire.codec import codec as of_name
from thinwire.codec import registry
from thinwire.codec.base import Codec
from thinwire.errors import ConfigError

_SEPARATOR = "/"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Legs:
    """``reduce`` encodes what ranks send to the owner of a shard, ``gather`` the sum that the owner sends to all."""

    reduce: Codec
    gather: Codec

    def __post_init__(self) -> None:
        for leg in ("reduce", "gather"):
            made: Any = getattr(self, leg)
            if not isinstance(made, Codec):
                raise ConfigError(f"{leg}={made!r} is not allowed; allowed: a codec of thinwire.codec(...)")
            if made.sums != "two_shot":
                raise ConfigError(
                    f"{leg}={made.spec()!r} is no leg, since ranks gather its rows; allowed: codecs of which sums are encoded"
                )

    @property
    def name(self) -> str:
        return f"{registry.short(self.reduce)}{_SEPARATOR}{registry.short(self.gather)}"

    def spec(self) -> str:
        """Both codecs' as one line."""
        return f"{self.reduce.spec()}{_SEPARATOR}{self.gather.spec()}"

    def bits_per_element(self, n: int) -> float:
        """Effective bits of an element in rows of ``n``: the mean of both, since each leg moves as many elements."""
        return (self.reduce.bits_per_element(n) + self.gather.bits_per_element(n)) / 2

    def expected_bits(self, n: int) -> float:
        """What plans go by, as a codec's."""
        return (self.reduce.expected_bits(n) + self.gather.expected_bits(n)) / 2


Wire = Codec | Legs
"""What a tensor can be sent with."""

WireLike = str | Codec | Legs | tuple[str | Codec, str | Codec]
"""What a caller may give for it."""


def resolve(codec: WireLike) -> Wire:
    """The codec of a name or spec, or of two: ``"int2/int4"`` or a pair, first the one to reduce with. Two equal ones are one.

    Raises ConfigError as :func:`thinwire.codec` does, and for anything but two.
    """
    parts: Sequence[Any]
    if isinstance(codec, Legs):
        parts = (codec.reduce, codec.gather)
    elif isinstance(codec, tuple | list):
        parts = codec
    else:
        parts = codec.split(_SEPARATOR) if isinstance(codec, str) else (codec,)
        if len(parts) == 1:
            return of_name(codec)
    if len(parts) != 2:
        raise ConfigError(f"codec={codec!r} has {len(parts)} legs; allowed: two, to reduce with and to gather with")
    reduce, gather = (of_name(part) for part in parts)
    return reduce if reduce == gather else Legs(reduce=reduce, gather=gather)


def short(codec: Wire) -> str:
    """What a person would type, and tables show; see :func:`thinwire.codec.registry.short`."""
    return codec.name if isinstance(codec, Legs) else registry.short(codec)


def legs_of(codec: Wire) -> tuple[Codec, Codec]:
    """The codecs of the first and of the second shot."""
    return (codec.reduce, codec.gather) if isinstance(codec, Legs) else (codec, codec)
