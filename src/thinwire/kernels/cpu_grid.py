"""Numba kernels of ``grid``; the definition is :func:`thinwire.kernels.reference_grid.grid_encode`."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels import layout
from thinwire.kernels.cpu_int import largest_key, quantize
from thinwire.kernels.cpu_tile import load_tile, lost
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel, types
from thinwire.kernels.layout import BF16_MIN_NORMAL, BF16_NAN, TILE
from thinwire.kernels.reference_grid import LANES, MIDDLE
from thinwire.kernels.simd_grid import PART, SPAN, add_levels, add_squares, draw_levels, set_levels
from thinwire.kernels.simd_rng import dither

_NONFINITE = np.uint32(layout.NONFINITE_KEY)
_LIMIT = np.uint32(layout.largest_scale(8))
_HALF_LEAST = np.uint32(0x00400000)
"""The fp32 bits of 2**-127."""


@inline
def _sum_of_squares(tile: Any, at: int, end: int, factor: Any, sums: Any) -> Any:
    sums[:] = np.float32(0)
    start = at
    while at + SPAN <= end:
        add_squares(tile, at, factor, sums)
        at += SPAN
    for i in range(at, end):
        value = tile[i] * factor
        sums[(i - start) % LANES] += value * value
    half = LANES // 2
    while half:
        for lane in range(half):
            sums[lane] += sums[lane + half]
        half //= 2
    return sums[0]


@inline
def _scale(key: Any, tile: Any, at: int, end: int, step: Any, sums: Any, pair: Any) -> Any:
    """The block's bf16 scale, also as fp32 in ``pair[0]``, whose bits ``pair`` is the place for."""
    bits = pair.view(np.uint32)
    if key >= _NONFINITE:
        bits[0] = np.uint32(BF16_NAN) << np.uint32(16)
        return np.uint16(BF16_NAN)
    exponent = min(max(127 - np.int64(key >> np.uint32(24)), -126), 127)
    bits[0] = np.uint32(127 + exponent) << np.uint32(23)
    bits[1] = np.uint32(127 - exponent) << np.uint32(23) if exponent < 127 else _HALF_LEAST
    total = _sum_of_squares(tile, at, end, pair[0], sums)
    pair[0] = step * np.sqrt(total / np.float32(end - at)) * pair[1]
    code = (bits[0] + np.uint32(0x7FFF) + ((bits[0] >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    code = min(code, _LIMIT)
    code = np.uint32(0) if code < np.uint32(BF16_MIN_NORMAL) else code
    bits[0] = code << np.uint32(16)
    return np.uint16(code)


@inline
def _draw(tile: Any, at: int, end: int, scale: Any, shrink: Any, codes: Any, number: int, k0: Any, k1: Any) -> None:
    """Codes of one block with dither; element ``at`` of the tile is number ``number + at`` of the row."""
    if not scale > np.float32(0):
        codes[at:end] = np.uint8(MIDDLE)
        return
    inverse, first = np.float32(1) / scale, np.float32(1) / (np.float32(1) - shrink)
    while at + PART <= end:
        draw_levels(tile, at, inverse, shrink, first, codes, np.uint32(number + at), k0, k1)
        at += PART
    for i in range(at, end):
        exact = tile[i] * inverse
        steps = np.copysign(min(abs(exact) * first, abs(exact) + shrink), exact)
        step = np.int32(np.rint(steps + dither(np.uint32(number + i), k0, k1)))
        codes[i] = np.uint8(min(max(step, np.int32(-MIDDLE)), np.int32(MIDDLE - 1)) + np.int32(MIDDLE))


@inline
def _restore(codes: Any, at: int, end: int, scale: Any, shrink: Any, out: Any, add: bool) -> None:
    if add:
        while at + SPAN <= end:
            add_levels(codes, at, scale, shrink, out, at)
            at += SPAN
    else:
        while at + SPAN <= end:
            set_levels(codes, at, scale, shrink, out, at)
            at += SPAN
    for i in range(at, end):
        k = np.int32(codes[i]) - np.int32(MIDDLE)
        sign = np.float32(min(max(k, np.int32(-1)), np.int32(1)))
        value = (np.float32(k) - sign * shrink) * scale
        out[i] = out[i] + value if add else value


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, types.float32, types.float32, FLOATS, BOOL, INT, INT)
def grid_encode(
    x: Any, kind: int, wire: Any, n: int, start: int, stop: int, block: int, step: Any, shrink: Any, error: Any,
    stochastic: bool, k0: int, k1: int,
) -> None:  # fmt: skip
    """Encode elements [start, stop) of a row, with dither under the keys if ``stochastic``; ``start`` is a multiple of the
    tile. ``error`` may be empty."""
    low, high = np.uint32(k0), np.uint32(k1)
    packed = wire[2 * ((n + block - 1) // block) :]
    stored = wire[: 2 * ((n + block - 1) // block)].view(np.uint16)
    scratch, values = np.empty(TILE, np.uint32), np.empty(TILE, np.float32)
    sums, pair = np.empty(LANES, np.float32), np.empty(2, np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        tile, codes = load_tile(x, kind, at, end, scratch), packed[at:end]
        for first in range(0, end - at, block):
            last = min(first + block, end - at)
            key = largest_key(tile.view(np.uint32), first, last)
            stored[(at + first) // block] = _scale(key, tile, first, last, step, sums, pair)
            if stochastic:
                _draw(tile, first, last, pair[0], shrink, codes, at, low, high)
            else:
                quantize(tile, first, last, pair[0], np.int32(MIDDLE), codes)
            if error.size:
                _restore(codes, first, last, pair[0], shrink, values, False)
        if error.size:
            lost(tile, values, error, at)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, types.float32, BOOL)
def grid_decode(wire: Any, out: Any, start: int, stop: int, block: int, shrink: Any, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    head = 2 * ((out.size + block - 1) // block)
    stored, packed = wire[:head].view(np.uint16), wire[head:]
    scale = np.empty(1, np.float32)
    for at in range(start, stop, block):
        scale.view(np.uint32)[0] = np.uint32(stored[at // block]) << np.uint32(16)
        _restore(packed, at, min(at + block, stop), scale[0], shrink, out, add)
