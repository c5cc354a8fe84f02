"""Figures of one layer's gradient. Everything is summed in fp64, in chunks, so that no square of an fp32 number is lost.

Kurtosis is E(x - m)^4 / (E(x - m)^2)^2: 3 for Gaussian numbers, larger with heavy tails. Within a block it is estimated from 64
numbers, where Gaussian ones give 3 (64 - 1) / (64 + 1) on average (Fisher 1930); times (64 + 1) / (64 - 1), they give 3 again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

BLOCK: Final = 64
"""Elements of the blocks of ``block_kurtosis``: about what codecs have."""

_CHUNK: Final = 1 << 13
"""Fits the cache in fp64, comes without page faults, and is too short for BLAS to start threads: 30 times faster than
2^16 on a busy machine."""
_CONSTANT: Final = 1e-28
"""Of the square of the largest magnitude: a variance below it is the rounding of fp64, not of the numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics:
    """Of the finite elements of one tensor; a figure that is not defined is None."""

    elements: int
    absmax: float
    squares: float
    """Sum of the squares."""
    kurtosis: float | None
    """None where all elements are the same."""
    block_kurtosis: float | None
    """Mean over the blocks of 64 whose elements are finite and not all the same."""
    zeros: float
    """Share of all elements that are exactly zero."""
    nonfinite: float
    """Share of all elements that are NaN or infinite."""


def flat(x: npt.NDArray[Any]) -> F32:
    """The elements as contiguous fp32 in one dimension; fp64 above fp32's range becomes infinite, as on the wire."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(x, dtype=np.float32).reshape(-1)


def statistics(x: F32) -> Statistics:
    """Figures of a flat tensor. Raises nothing; an empty one has zeros and None."""
    good = np.isfinite(x)
    all_good = bool(good.all())
    values = x if all_good else x[good]
    count = max(x.size, 1)
    return Statistics(
        elements=x.size,
        absmax=float(np.abs(values).max(initial=0.0)),
        squares=squares(values),
        kurtosis=_kurtosis(values),
        block_kurtosis=_block_kurtosis(x),
        zeros=(x.size - int(np.count_nonzero(x))) / count,
        nonfinite=(x.size - values.size) / count,
    )


def finite(x: F32) -> F32:
    """The tensor itself, or a copy with zeros for what is not finite."""
    good = np.isfinite(x)
    return x if good.all() else np.where(good, x, np.float32(0))


def squares(x: F32) -> float:
    """Sum of the squares."""
    return math.fsum(float(part @ part) for part in chunks(x))


def chunks(x: F32) -> Iterator[F64]:
    """The tensor in fp64, a piece at a time."""
    for start in range(0, x.size, _CHUNK):
        yield x[start : start + _CHUNK].astype(np.float64)


def _kurtosis(x: F32) -> float | None:
    if not x.size:
        return None
    mean = math.fsum(float(part.sum()) for part in chunks(x)) / x.size
    second = fourth = 0.0
    for part in chunks(x):
        square = np.square(part - mean)
        second += float(square.sum())
        fourth += float(square @ square)
    largest = max(float(x.max()), -float(x.min()))
    return x.size * fourth / second**2 if second > _CONSTANT * largest**2 * x.size else None


def _block_kurtosis(x: F32) -> float | None:
    """Whole blocks only; a tensor shorter than one is a block itself."""
    width = min(BLOCK, x.size)
    if width < 2:
        return None
    total, count = 0.0, 0
    for start in range(0, x.size - width + 1, _CHUNK // width * width):
        piece = x[start : start + _CHUNK // width * width]
        blocks = piece[: piece.size // width * width].reshape(-1, width)
        blocks = blocks[np.isfinite(blocks).all(axis=1)].astype(np.float64)
        square = np.square(blocks - blocks.mean(axis=1, keepdims=True))
        second, fourth = square.sum(axis=1), np.square(square).sum(axis=1)
        varied = second > _CONSTANT * np.square(np.abs(blocks).max(axis=1, initial=0.0))
        total += float((width * fourth[varied] / np.square(second[varied])).sum())
        count += int(varied.sum())
    return total / count * (width + 1) / (width - 1) if count else None


def correlation(tensors: Sequence[F32]) -> float | None:
    """Mean cosine over all pairs of finite tensors; None with fewer than two that are not zero.

    With unit vectors u the sum of the cosines of all ordered pairs is |sum u|^2 - N: one pass, whatever the number of ranks.
    """
    norms = [math.sqrt(squares(x)) for x in tensors]
    kept = [(x, norm) for x, norm in zip(tensors, norms, strict=True) if norm > 0]
    ranks = len(kept)
    if ranks < 2:
        return None
    together = 0.0
    for parts in zip(*(chunks(x) for x, _ in kept), strict=True):
        total = sum(part / norm for part, (_, norm) in zip(parts, kept, strict=True))
        together += float(np.square(total).sum())
    return (together - ranks) / (ranks * (ranks - 1))
