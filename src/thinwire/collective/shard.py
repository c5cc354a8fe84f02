"""Which elements of a flat tensor belong to which rank, and in which segments and at what pace they travel. Arithmetic only."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

SHARD_ALIGN: Final = 128
"""Shards start at multiples of this, so that blocks do not straddle them for nothing."""

SEGMENT: Final = 1 << 19
"""Elements of a message, where nothing else is said."""

_LEAST, _MOST = 1 << 17, 1 << 20
_ALIGN: Final = 1 << 14
_LONG_HAUL: Final = 0.01
_LONG_HAUL_RATE: Final = 1.5e8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """``n`` elements over ``ranks``: shard r is [r * size, ...), the last ones may be shorter or empty."""

    n: int
    ranks: int
    size: int
    segment: int = SEGMENT
    behind: int = 1
    """How many segments the second shot is behind the first."""
    in_flight: int = 3
    """Exchanges under way at once."""

    @property
    def segments(self) -> int:
        """Messages of the longest shard."""
        return -(-self.size // self.segment)

    def span(self, rank: int, segment: int) -> slice:
        """Elements of one segment of a rank's shard; empty where the shard has ended."""
        start = min(rank * self.size + segment * self.segment, self.n)
        stop = min(rank * self.size + min((segment + 1) * self.segment, self.size), self.n)
        return slice(start, max(start, stop))


def paced(n: int, ranks: int, size: int, bits: float, rate: float, round_trip: float) -> Shards:
    """Shards of ``size`` elements for codes of ``bits`` an element over ``rate`` bytes/s with ``round_trip`` seconds.

    Two to four segments a shard, more only for the largest, hide most of encoding and decoding behind the wire; smaller ones
    cost more than they hide. Their length depends on nothing but ``size``, so that the result does not either. What is under
    way must fill the link for a round trip.
    """
    half, quarter = (-(-size // (parts * _ALIGN)) * _ALIGN for parts in (2, 4))
    segment = max(_LEAST, min(half, _MOST // 2), min(quarter, _MOST))
    # A long round trip hides the rate from a short probe, and to have too much under way costs only buffers.
    filling = round_trip * (max(rate, _LONG_HAUL_RATE) if round_trip > _LONG_HAUL else min(rate, 1e10))
    ahead = math.ceil(filling / (segment * bits / 8))
    return Shards(n=n, ranks=ranks, size=size, segment=segment, behind=1 + 2 * ahead, in_flight=3 + 4 * ahead)


def even_size(n: int, ranks: int) -> int:
    """Elements of aligned shards of nearly equal size."""
    return -(-n // (ranks * SHARD_ALIGN)) * SHARD_ALIGN


def even(n: int, ranks: int, segment: int = SEGMENT) -> Shards:
    """Shards of aligned, nearly equal size."""
    return Shards(n=n, ranks=ranks, size=even_size(n, ranks), segment=segment)
