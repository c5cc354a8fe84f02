"""Numba kernels of ``affineB``; the definition is in :mod:`thinwire.kernels.reference_affine`."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels.cpu_minmax import add_grid, block_range, set_grid
from thinwire.kernels.cpu_tile import F32_KIND, load_tile, lost, pack_tile, unpack_tile
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import TILE
from thinwire.kernels.simd_affine import LANES, draw_steps, to_steps
from thinwire.kernels.simd_rng import dither

_F32_MAX = np.float64(np.finfo(np.float32).max)


@inline
def _set_step(low: Any, high: Any, levels: Any, steps: Any, words: Any, index: int, stochastic: bool) -> Any:
    """The step of a block from ``low`` to ``high`` to ``steps[index]``, whose bits are ``words``; returns its zero point."""
    if low != low:
        steps[index] = np.float32(np.nan)
        return np.uint8(0)
    lo, hi = min(np.float64(low), 0.0), max(np.float64(high), 0.0)
    spare = 1.0 if stochastic and lo != 0.0 and hi != 0.0 else 0.0
    exact = (hi - lo) / (levels - spare)
    steps[index] = np.float32(exact)
    if np.float64(steps[index]) < exact:
        words[index] += np.uint32(1)
    if np.float64(steps[index]) * levels > _F32_MAX and (lo == 0.0 or hi == 0.0):
        words[index] -= np.uint32(1)
    step = np.float64(steps[index])
    place = -lo * (1.0 / step)
    return np.uint8(min(np.ceil(place) if stochastic else np.rint(place), levels)) if step > 0.0 else np.uint8(0)


@inline
def _round(tile: Any, at: int, end: int, step: Any, zero: Any, levels: Any, codes: Any) -> None:
    """Codes of elements [at, end), which have one step and zero point, the nearest."""
    inverse, offset = 1.0 / step, np.float64(zero)
    far = min(np.floor(_F32_MAX * inverse), levels)
    # The numbers of the outermost codes: to clip there gives the same codes as to clip steps, in half the instructions.
    lowest, highest = np.float32(max(-offset, -far) * step), np.float32(min(levels - offset, far) * step)
    while at + LANES <= end:
        to_steps(tile, at, inverse, lowest, highest, zero, codes, at)
        at += LANES
    while at < end:
        scaled = np.float64(min(max(tile[at], lowest), highest)) * inverse
        codes[at] = np.uint8(np.int32(np.rint(scaled)) + np.int32(zero))
        at += 1


@inline
def _draw(tile: Any, at: int, end: int, step: Any, zero: Any, levels: Any, codes: Any, first: int, k0: Any, k1: Any) -> None:
    """The same with dither; element ``at`` of the tile is number ``first + at`` of the row."""
    inverse, offset = 1.0 / step, np.int32(zero)
    far = min(np.floor(_F32_MAX * inverse), levels)
    lowest, highest = max(-offset, np.int32(-far)), min(np.int32(levels) - offset, np.int32(far))
    while at + LANES <= end:
        draw_steps(tile, at, inverse, lowest, highest, zero, codes, at, np.uint32(first + at), k0, k1)
        at += LANES
    while at < end:
        noise = np.float64(dither(np.uint32(first + at), k0, k1))
        steps = np.int32(np.rint(np.float64(tile[at]) * inverse + noise))
        codes[at] = np.uint8(min(max(steps, lowest), highest) + offset)
        at += 1


@inline
def _encode_tile(
    tile: Any, at: int, block: int, levels: Any, steps: Any, zeros: Any, codes: Any, bounds: Any,
    stochastic: bool, k0: Any, k1: Any,
) -> None:  # fmt: skip
    """Codes of a tile that starts at element ``at``; steps and zero points of blocks that fit a tile are found first."""
    patterns, words = tile.view(np.int32), steps.view(np.uint32)
    piece = min(block, TILE)
    for first in range(0, tile.size, piece):
        last = min(first + piece, tile.size)
        index = (at + first) // block
        if block <= TILE:
            block_range(patterns, first, last, bounds, 0)
            zeros[index] = _set_step(bounds[0], bounds[1], levels, steps, words, index, stochastic)
        step, zero = np.float64(steps[index]), zeros[index]
        if not step > 0.0:
            codes[first:last] = zero
        elif stochastic:
            _draw(tile, first, last, step, zero, levels, codes, at, k0, k1)
        else:
            _round(tile, first, last, step, zero, levels, codes)


@inline
def _decode_tile(codes: Any, at: int, block: int, steps: Any, zeros: Any, out: Any, add: bool) -> None:
    piece = min(block, TILE)
    for first in range(0, out.size, piece):
        last = min(first + piece, out.size)
        index = (at + first) // block
        step = np.float64(steps[index])
        low = -np.float64(zeros[index]) * step
        if add:
            add_grid(codes, first, last, low, step, out)
        else:
            set_grid(codes, first, last, low, step, out)


@kernel(FLOATS, BYTES, INT, BOOL)
def affine_steps(bounds: Any, wire: Any, bits: int, stochastic: bool) -> None:
    """Steps and zero points of a row's blocks to the front of ``wire``, by their smallest and largest (2 * blocks,)."""
    blocks = bounds.size // 2
    steps, zeros = wire[: 4 * blocks].view(np.float32), wire[4 * blocks : 5 * blocks]
    words, levels = steps.view(np.uint32), np.float64((1 << bits) - 1)
    for i in range(blocks):
        zeros[i] = _set_step(bounds[2 * i], bounds[2 * i + 1], levels, steps, words, i, stochastic)


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, INT, FLOATS, BOOL, INT, INT)
def affine_encode(
    x: Any, kind: int, wire: Any, n: int, start: int, stop: int, bits: int, block: int, error: Any,
    stochastic: bool, k0: int, k1: int,
) -> None:  # fmt: skip
    """Encode elements [start, stop) of a row, with dither under the keys if ``stochastic``; ``start`` is a multiple of the
    tile. ``error`` may be empty.

    Steps and zero points of blocks longer than a tile are read from the wire, where :func:`affine_steps` has left them.
    """
    levels, low, high = np.float64((1 << bits) - 1), np.uint32(k0), np.uint32(k1)
    blocks = (n + block - 1) // block
    steps, zeros, packed = wire[: 4 * blocks].view(np.float32), wire[4 * blocks : 5 * blocks], wire[5 * blocks :]
    scratch, values, bounds = np.empty(TILE, np.uint32), np.empty(TILE, np.float32), np.empty(2, np.float32)
    buffer = np.empty(TILE, np.uint8)
    # Without buffers in between, one pass over all saves the views of each tile.
    direct = kind == F32_KIND and bits == 8 and error.size == 0
    size = max(TILE, stop - start) if direct else TILE
    for at in range(start, stop, size):
        end = min(at + size, stop)
        tile = load_tile(x, kind, at, end, scratch)
        codes = packed[at:end] if bits == 8 else buffer[: end - at]
        _encode_tile(tile, at, block, levels, steps, zeros, codes, bounds, stochastic, low, high)
        if bits < 8:
            pack_tile(buffer, end - at, bits, packed, at, n)
        if error.size:
            back = values[: end - at]
            _decode_tile(codes, at, block, steps, zeros, back, False)
            lost(tile, back, error, at)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, INT, BOOL)
def affine_decode(wire: Any, out: Any, start: int, stop: int, bits: int, block: int, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    n = out.size
    blocks = (n + block - 1) // block
    steps, zeros, packed = wire[: 4 * blocks].view(np.float32), wire[4 * blocks : 5 * blocks], wire[5 * blocks :]
    buffer = np.empty(TILE, np.uint8)
    size = max(TILE, stop - start) if bits == 8 else TILE
    for at in range(start, stop, size):
        end = min(at + size, stop)
        codes = packed[at:end] if bits == 8 else buffer[: end - at]
        if bits < 8:
            unpack_tile(buffer, end - at, bits, packed, at, n)
        _decode_tile(codes, at, block, steps, zeros, out[at:end], add)
