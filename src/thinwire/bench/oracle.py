"""What an all-reduce must give, computed slowly by one process from every rank's tensor."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thinwire.codec import Codec
from thinwire.collective import shard
from thinwire.collective.legs import Wire, legs_of
from thinwire.kernels import ops

F32 = npt.NDArray[np.float32]


def tensor_of(rank: int, n: int, seed: int = 0) -> F32:
    """The tensor of a rank: every rank can make every other's."""
    return np.random.default_rng([seed, n, rank]).standard_normal(n, dtype=np.float32)


def roundtrip(codec: Codec, x: F32) -> F32:
    """Encode and decode by the NumPy reference."""
    before = ops.set_backend("reference")
    try:
        return np.asarray(codec.decode(codec.encode(x[None]), x.size))[0]
    finally:
        ops.set_backend(before)


def summed(tensors: list[F32], codec: Codec, owner: int, span: slice) -> F32:
    """First shot: the owner's part exact, the others' decoded, added in the order of the rounds."""
    total = tensors[owner][span].copy()
    for step in range(1, len(tensors)):
        total += roundtrip(codec, tensors[(owner - step) % len(tensors)][span])
    return total


def all_reduced(tensors: list[F32], codec: Wire, op: str, segment: int = shard.SEGMENT) -> F32:
    """All shards and segments."""
    ranks, n = len(tensors), tensors[0].size
    one = isinstance(codec, Codec) and codec.sums == "all_gather"
    shards = shard.Shards(n=n, ranks=1, size=n, segment=segment) if one else shard.even(n, ranks, segment)
    out = np.empty(n, dtype=np.float32)
    for owner in range(shards.ranks):
        for k in range(shards.segments):
            span = shards.span(owner, k)
            out[span] = part(tensors, codec, op, owner, span)
    return out


def part(tensors: list[F32], codec: Wire, op: str, owner: int, span: slice) -> F32:
    """One segment of a shard: both shots, or the sum of all ranks' rows in rank order."""
    if span.stop <= span.start:
        return np.empty(0, dtype=np.float32)
    if isinstance(codec, Codec) and codec.sums == "all_gather":
        gathered = roundtrip(codec, tensors[0][span])
        for tensor in tensors[1:]:
            gathered += roundtrip(codec, tensor[span])
        return gathered / np.float32(len(tensors)) if op == "mean" else gathered
    first, second = legs_of(codec)
    total = summed(tensors, first, owner, span)
    return roundtrip(second, total / np.float32(len(tensors)) if op == "mean" else total)
