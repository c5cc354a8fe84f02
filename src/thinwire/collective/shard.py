"""Which elements of a flat tensor belong to which rank, and in which segments they travel. Arithmetic only."""

from __future__ import annotations

import dataclasses
from typing import Final

SHARD_ALIGN: Final = 128
"""Shards start at multiples of this, so that blocks do not straddle them for nothing."""

SEGMENT: Final = 1 << 19
"""Elements of a shard that are one message: small enough to overlap, large enough that its cost is its bytes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """``n`` elements over ``ranks``: shard r is [r * size, ...), the last ones may be shorter or empty."""

    n: int
    ranks: int
    size: int
    segment: int = SEGMENT

    @property
    def segments(self) -> int:
        """Messages of the longest shard."""
        return -(-self.size // self.segment)

    def span(self, rank: int, segment: int) -> slice:
        """Elements of one segment of a rank's shard; empty where the shard has ended."""
        start = min(rank * self.size + segment * self.segment, self.n)
        stop = min(rank * self.size + min((segment + 1) * self.segment, self.size), self.n)
        return slice(start, max(start, stop))


def even(n: int, ranks: int, segment: int = SEGMENT) -> Shards:
    """Shards of aligned, nearly equal size."""
    size = -(-n // (ranks * SHARD_ALIGN)) * SHARD_ALIGN
    return Shards(n=n, ranks=ranks, size=size, segment=segment)


def exact(size: int, ranks: int, segment: int = SEGMENT) -> Shards:
    """Shards of exactly ``size`` elements each."""
    return Shards(n=size * ranks, ranks=ranks, size=size, segment=segment)
