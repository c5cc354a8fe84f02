"""The levels of a codec in units of a block's scale, found by trying it: no codec is asked for its formula.

One element of a block goes through the range of the block while the others stay, so that the block keeps its scale. What it
comes back as is the quantizer's staircase; its steps are the levels. Of three units, the one in which several blocks have the
same staircase is taken: that is what the codec's scale follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import numpy as np

from thinwire.codec import Codec
from thinwire.inspect.statistics import F32, F64

_GRID: Final = 2049
_COARSE: Final = 129
_BLOCKS: Final = 8
_DEFAULT_BLOCK: Final = 64
_LARGEST_BLOCK: Final = 1024
_MOST_LEVELS: Final = 256
_REACH: Final = 0.999
"""Of the largest magnitude: how far the element goes on the other side, so that it never becomes the extreme itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Levels:
    """``positions`` in units of ``unit``, or empty where the codec has no levels, as bf16."""

    unit: str
    block: int
    positions: F64


def _rms(blocks: F64) -> tuple[F64, F64]:
    return np.zeros(len(blocks)), np.sqrt(np.square(blocks).mean(axis=1))


def _extreme(blocks: F64) -> tuple[F64, F64]:
    return np.zeros(len(blocks)), blocks[np.arange(len(blocks)), np.abs(blocks).argmax(axis=1)]


def _range(blocks: F64) -> tuple[F64, F64]:
    low, high = blocks.min(axis=1), blocks.max(axis=1)
    return (low + high) / 2, (high - low) / 2


UNITS: Final[dict[str, Callable[[F64], tuple[F64, F64]]]] = {
    "RMS of the block": _rms,
    "extreme of the block": _extreme,
    "half range of the block": _range,
}
"""A zero and a scale for each block (a row)."""


def levels(codec: Codec, values: F32) -> Levels:
    """The levels of ``codec`` in the blocks of a flat, finite tensor; without positions where all blocks are constant."""
    size = block_of(codec)
    blocks = _typical(_cut(values, size))
    if not len(blocks):
        return Levels(unit=next(iter(UNITS)), block=size, positions=np.empty(0))
    unit = min(UNITS, key=lambda name: _disagreement(codec, blocks, UNITS[name]))
    return Levels(unit=unit, block=size, positions=_steps(codec, blocks[len(blocks) // 2][None], UNITS[unit]))


def block_of(codec: Codec) -> int:
    """Elements that share a scale: the codec's own block, within what a plot needs."""
    block = getattr(codec, "block", _DEFAULT_BLOCK)
    return min(block or _LARGEST_BLOCK, _LARGEST_BLOCK)


def in_units(values: F32, block: int, unit: str) -> F64:
    """All values of varied blocks, each by its block's zero and scale."""
    blocks = _cut(values, block).astype(np.float64)
    zero, scale = UNITS[unit](blocks)
    return ((blocks - zero[:, None]) / scale[:, None]).reshape(-1)


def _cut(values: F32, size: int) -> F32:
    """The whole blocks whose elements are not all the same; a tensor shorter than one is a block itself."""
    width = max(1, min(size, values.size))
    blocks = values[: values.size // width * width].reshape(-1, width)
    return blocks[blocks.max(axis=1) > blocks.min(axis=1)] if blocks.size else blocks[:0]


def _typical(blocks: F32) -> F32:
    """Up to eight blocks in the order of their size, from the middle of it."""
    order = np.argsort(np.square(blocks.astype(np.float64)).sum(axis=1), kind="stable")
    middle = order[len(order) // 4 : max(len(order) // 4 + 1, len(order) * 3 // 4)]
    return blocks[middle[np.linspace(0, len(middle) - 1, min(_BLOCKS, len(middle))).astype(int)]] if len(order) else blocks


def _staircase(codec: Codec, block: F64, grid: F64) -> F64:
    """What comes back for an element of ``block`` that takes the values of ``grid``."""
    # The smallest in magnitude is neither of the extremes, and weighs least in the others' scale.
    place = int(np.abs(block).argmin())
    rows = np.repeat(block[None].astype(np.float32), len(grid), axis=0)
    rows[:, place] = grid
    wire = codec.encode(rows)
    return np.asarray(codec.decode(wire, rows.shape[1]))[:, place].astype(np.float64)


def _disagreement(codec: Codec, blocks: F32, unit: Callable[[F64], tuple[F64, F64]]) -> float:
    """How far the blocks' staircases differ in this unit, by the width of the common grid."""
    exact = blocks.astype(np.float64)
    zero, scale = unit(exact)
    bounds = np.sort((np.stack([exact.min(axis=1), exact.max(axis=1)]) - zero) / scale, axis=0)
    low, high = bounds[0].max(), bounds[1].min()
    if not high > low:
        return np.inf
    grid = np.linspace(low, high, _COARSE)
    stairs = [
        (_staircase(codec, block, grid * s + z) - z) / s for block, z, s in zip(exact, zero, scale, strict=True)
    ]  # fmt: skip
    return float(np.stack(stairs).std(axis=0).mean() / (high - low))


def _steps(codec: Codec, block: F32, unit: Callable[[F64], tuple[F64, F64]]) -> F64:
    """The middle of every group of results that lie closer together than two steps of the grid."""
    exact = block.astype(np.float64)
    zero, scale = unit(exact)
    low, high = float(exact.min()), float(exact.max())
    if unit is not _range:
        low, high = min(low, -_REACH * high), max(high, -_REACH * low)
    grid = np.linspace(low, high, _GRID)
    found = np.sort(_staircase(codec, exact[0], grid))
    edges = np.flatnonzero(np.diff(found) > 2 * (grid[1] - grid[0])) + 1
    groups = np.split(found, edges)
    middles = np.array([group.mean() for group in groups])
    # Floats are dense around zero, where a codec with levels has gaps.
    widest = max(float(group[-1] - group[0]) for group in groups)
    if not 2 <= len(groups) <= _MOST_LEVELS or widest > np.median(np.diff(middles)):
        return np.empty(0)
    return np.sort((middles - zero[0]) / scale[0])
