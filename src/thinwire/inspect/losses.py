"""What a codec loses of a layer, by really encoding and decoding it in the rows in which the library would send it.

A layer is cut as :class:`thinwire.reducer.Reducer` cuts a tensor: a shard a rank, or one shard where all rows go to all ranks;
segments of a shard, a row each. Under DDP several layers share a bucket; that matters to codecs with one scale a row only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from thinwire.codec import Codec, short
from thinwire.collective import shard
from thinwire.inspect.statistics import F32, F64, chunks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """Errors of one codec; both are relative to the squares of what they stand beside."""

    codec: str
    bits_per_element: float
    """In a long row, as a bucket's are, scales included."""
    nmse: float
    """One encoding: sum of |x - x'|^2 over the ranks, by the sum of |x|^2."""
    mean_nmse: float | None
    """Of the mean over the ranks as all of them get it; None with one rank, which sends nothing."""


class _Row(NamedTuple):
    owner: int
    span: slice


def rows_of(n: int, ranks: int) -> list[_Row]:
    """The rows of a tensor of ``n`` elements, and the rank that sums each."""
    # Bits, rate and round trip change how many segments are under way, not where they are cut.
    shards = shard.paced(n, ranks, shard.even_size(n, ranks), bits=32, rate=1, round_trip=0)
    spans = [_Row(rank, shards.span(rank, k)) for rank in range(ranks) for k in range(shards.segments)]
    return [row for row in spans if row.span.stop > row.span.start]


def loss(tensors: Sequence[F32], codec: Codec) -> Loss:
    """Encode each rank's flat, finite tensor and, with two ranks or more, their mean as the codec's all-reduce does."""
    n, ranks = tensors[0].size, len(tensors)
    gathered = codec.sums == "all_gather"
    rows = rows_of(n, 1 if gathered else ranks)
    sent = [_sent(codec, x, rows, seed=rank * len(rows)) for rank, x in enumerate(tensors)]
    lost = math.fsum(_distance(x, y) for x, y in zip(tensors, sent, strict=True))
    squares = math.fsum(float(part @ part) for x in tensors for part in chunks(x))
    bits = codec.expected_bits(shard.SEGMENT)
    result = None if ranks == 1 else _gathered(sent) if gathered else _two_shot(tensors, sent, codec, rows)
    mean = None if result is None else _mean_nmse(tensors, result)
    return Loss(codec=short(codec), bits_per_element=bits, nmse=_ratio(lost, squares), mean_nmse=mean)


def _sent(codec: Codec, x: F32, rows: Sequence[_Row], seed: int) -> F32:
    """What a receiver has of ``x``. The seed differs for every row of every rank, as noise must."""
    out = np.empty_like(x)
    for number, (_, span) in enumerate(rows):
        wire = codec.encode(x[None, span], seed=seed + number)
        codec.decode(wire, span.stop - span.start, out=out[None, span])
    return out


def _gathered(sent: Sequence[F32]) -> F32:
    """The mean of what all ranks sent to all, in rank order."""
    mean = sent[0].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for one in sent[1:]:
            mean += one
        return mean / np.float32(len(sent))


def _two_shot(tensors: Sequence[F32], sent: Sequence[F32], codec: Codec, rows: Sequence[_Row]) -> F32:
    """A row's owner adds what it got to its own part, which is exact, and sends the mean to all."""
    ranks = len(tensors)
    mean = np.empty_like(tensors[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for owner, span in rows:
            mean[span] = tensors[owner][span]
            for step in range(1, ranks):
                mean[span] += sent[(owner - step) % ranks][span]
        mean /= np.float32(ranks)
    return _sent(codec, mean, rows, seed=ranks * len(rows))


def _mean_nmse(tensors: Sequence[F32], result: F32) -> float:
    lost = squares = 0.0
    for exact, got in zip(_means(tensors), chunks(result), strict=True):
        squares += float(exact @ exact)
        lost += _dot(exact - got)
    return _ratio(lost, squares)


def _means(tensors: Sequence[F32]) -> Iterator[F64]:
    for parts in zip(*(chunks(x) for x in tensors), strict=True):
        total = parts[0]
        for part in parts[1:]:
            total += part
        yield total / len(tensors)


def _distance(x: F32, y: F32) -> float:
    return math.fsum(_dot(a - b) for a, b in zip(chunks(x), chunks(y), strict=True))


def _dot(x: F64) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(x @ x)


def _ratio(lost: float, squares: float) -> float:
    """Nothing lost of nothing is 0; a result that is not finite has lost everything."""
    if math.isnan(lost):
        return math.inf
    if squares == 0:
        return 0.0 if lost == 0 else math.inf
    return lost / squares
