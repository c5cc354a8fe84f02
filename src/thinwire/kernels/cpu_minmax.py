"""Numba kernels of ``minmaxB``; the definition is :func:`thinwire.kernels.reference.minmax_encode`."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels.cpu_tile import F32_KIND, load_tile, lost, pack_tile, unpack_tile
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import TILE
from thinwire.kernels.simd import VECTOR
from thinwire.kernels.simd_affine import (
    LANES,
    LONG,
    add_codes,
    draw_codes,
    float_of_bits,
    from_codes,
    highest_key,
    lowest_key,
    to_codes,
    widen_range,
)
from thinwire.kernels.simd_rng import dither

_INF_KEY = np.int32(0x7F800000)
_MINUS_INF_KEY = np.int32(-0x7F800001)
_STREAMS = 4


@inline
def _order(pattern: Any) -> Any:
    return pattern ^ ((pattern >> np.int32(31)) & np.int32(0x7FFFFFFF))


@inline
def block_range(patterns: Any, at: int, end: int, bounds: Any, index: int) -> None:
    """Smallest and largest of elements [at, end) (int32 patterns) to ``bounds[index:]``; NaN twice if not finite."""
    high, low = _MINUS_INF_KEY, _INF_KEY
    while at + LANES <= end:
        high, low = max(high, highest_key(patterns, at)), min(low, lowest_key(patterns, at))
        at += LANES
    for i in range(at, end):
        high, low = max(high, _order(patterns[i])), min(low, _order(patterns[i]))
    if high < _INF_KEY and low > _MINUS_INF_KEY:
        bounds[index] = float_of_bits(_order(low)) + np.float32(0)
        bounds[index + 1] = float_of_bits(_order(high)) + np.float32(0)
    else:
        bounds[index] = bounds[index + 1] = np.float32(np.nan)


@inline
def _widen(patterns: Any, extremes: Any) -> int:
    """Take whole LONGs into ``extremes``, from several places at once, which a core loads faster; returns their elements."""
    apart = patterns.size // (_STREAMS * LONG) * LONG
    for at in range(0, apart, LONG):
        for stream in range(_STREAMS):
            widen_range(patterns, stream * apart + at, extremes)
    done = _STREAMS * apart
    while done + LONG <= patterns.size:
        widen_range(patterns, done, extremes)
        done += LONG
    return done


@kernel(READ_BYTES, INT, INT, INT, FLOATS)
def minmax_range(x: Any, kind: int, start: int, stop: int, bounds: Any) -> None:
    """Smallest and largest of elements [start, stop) of a row to ``bounds`` (2,); NaN twice if one is not finite."""
    scratch = np.empty(TILE, np.uint32)
    part = np.empty(2, np.float32)
    extremes = np.empty(2 * VECTOR, np.int32)
    extremes[:VECTOR], extremes[VECTOR:] = _MINUS_INF_KEY + np.int32(1), _INF_KEY - np.int32(1)
    bounds[0], bounds[1] = np.float32(np.inf), np.float32(-np.inf)
    size = max(TILE, stop - start) if kind == F32_KIND else TILE
    for at in range(start, stop, size):
        patterns = load_tile(x, kind, at, min(at + size, stop), scratch).view(np.int32)
        done = _widen(patterns, extremes)
        if done < patterns.size:
            block_range(patterns, done, patterns.size, part, 0)
            _join(bounds, part[0], part[1])
    high, low = extremes[:VECTOR].max(), extremes[VECTOR:].min()
    if high >= _INF_KEY or low <= _MINUS_INF_KEY:
        bounds[0] = bounds[1] = np.float32(np.nan)
    elif high >= low:
        _join(bounds, float_of_bits(_order(low)) + np.float32(0), float_of_bits(_order(high)) + np.float32(0))


@inline
def _join(bounds: Any, low: Any, high: Any) -> None:
    """Widen ``bounds`` (2,) by [low, high]; a NaN on either side stays."""
    if np.isnan(low) or np.isnan(bounds[0]):
        bounds[0] = bounds[1] = np.float32(np.nan)
    else:
        bounds[0], bounds[1] = min(bounds[0], low), max(bounds[1], high)


@inline
def _round(tile: Any, at: int, end: int, low: Any, factor: Any, codes: Any) -> None:
    """Codes of elements [at, end), the nearest."""
    while at + LANES <= end:
        to_codes(tile, at, low, factor, codes, at)
        at += LANES
    while at < end:
        codes[at] = np.int32(np.rint((np.float64(tile[at]) - low) * factor))
        at += 1


@inline
def _draw(tile: Any, at: int, end: int, low: Any, factor: Any, codes: Any, first: int, k0: Any, k1: Any) -> None:
    """Codes of elements [at, end) with dither; element ``at`` of the tile is number ``first + at`` of the row."""
    while at + LANES <= end:
        draw_codes(tile, at, low, factor, codes, at, np.uint32(first + at), k0, k1)
        at += LANES
    while at < end:
        noise = np.float64(dither(np.uint32(first + at), k0, k1))
        codes[at] = np.int32(np.rint((np.float64(tile[at]) - low) * factor + noise))
        at += 1


@inline
def _encode_tile(
    tile: Any, bounds: Any, at: int, block: int, levels: Any, codes: Any, stochastic: bool, k0: Any, k1: Any
) -> None:  # fmt: skip
    """Codes (8 or 16 bits) of a tile that starts at element ``at``; bounds of blocks that fit a tile are found first."""
    patterns = tile.view(np.int32)
    piece = min(block, TILE)
    for first in range(0, tile.size, piece):
        last = min(first + piece, tile.size)
        index = 2 * ((at + first) // block)
        if block <= TILE:
            block_range(patterns, first, last, bounds, index)
        low = np.float64(bounds[index])
        span = np.float64(bounds[index + 1]) - low
        factor = levels / span if span > 0 else 0.0
        if span != span:
            codes[first:last] = 0
        elif stochastic:
            _draw(tile, first, last, low, factor, codes, at, k0, k1)
        else:
            _round(tile, first, last, low, factor, codes)


@inline
def set_grid(codes: Any, at: int, end: int, low: Any, step: Any, out: Any) -> None:
    """``out = low + code * step`` of elements [at, end), in fp64, rounded once."""
    while at + LANES <= end:
        from_codes(codes, at, low, step, out, at)
        at += LANES
    while at < end:
        out[at] = np.float32(low + np.float64(codes[at]) * step)
        at += 1


@inline
def add_grid(codes: Any, at: int, end: int, low: Any, step: Any, out: Any) -> None:
    """As :func:`set_grid`, added to ``out``."""
    while at + LANES <= end:
        add_codes(codes, at, low, step, out, at)
        at += LANES
    while at < end:
        out[at] += np.float32(low + np.float64(codes[at]) * step)
        at += 1


@inline
def _decode_tile(codes: Any, bounds: Any, at: int, block: int, levels: Any, out: Any) -> None:
    piece = min(block, TILE)
    for first in range(0, out.size, piece):
        last = min(first + piece, out.size)
        index = 2 * ((at + first) // block)
        low = np.float64(bounds[index])
        step = (np.float64(bounds[index + 1]) - low) / levels
        set_grid(codes, first, last, low, step, out)


@inline
def _add_tile(codes: Any, bounds: Any, at: int, block: int, levels: Any, out: Any) -> None:
    piece = min(block, TILE)
    for first in range(0, out.size, piece):
        last = min(first + piece, out.size)
        index = 2 * ((at + first) // block)
        low = np.float64(bounds[index])
        step = (np.float64(bounds[index + 1]) - low) / levels
        add_grid(codes, first, last, low, step, out)


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, INT, FLOATS, BOOL, INT, INT)
def minmax_encode(
    x: Any, kind: int, wire: Any, n: int, start: int, stop: int, bits: int, block: int, error: Any,
    stochastic: bool, k0: int, k1: int,
) -> None:  # fmt: skip
    """Encode elements [start, stop) of a row, with dither under the keys if ``stochastic``; ``start`` is a multiple of the
    tile. ``error`` may be empty.

    Bounds of blocks longer than a tile are read from the wire, where :func:`minmax_range` has left them.
    """
    levels, low, high = np.float64((1 << bits) - 1), np.uint32(k0), np.uint32(k1)
    count_all = (n + block - 1) // block
    bounds = wire[: 8 * count_all].view(np.float32)
    packed = wire[8 * count_all :]
    scratch, values = np.empty(TILE, np.uint32), np.empty(TILE, np.float32)
    buffer = np.empty(TILE, np.uint8)
    # Without buffers in between, one pass over all saves the views of each tile.
    direct = kind == F32_KIND and bits >= 8 and error.size == 0
    size = max(TILE, stop - start) if direct else TILE
    for at in range(start, stop, size):
        end = min(at + size, stop)
        tile = load_tile(x, kind, at, end, scratch)
        back = values[: end - at]
        if bits == 16:
            halves = packed[2 * at : 2 * end].view(np.uint16)
            _encode_tile(tile, bounds, at, block, levels, halves, stochastic, low, high)
            if error.size:
                _decode_tile(halves, bounds, at, block, levels, back)
        else:
            codes = packed[at:end] if bits == 8 else buffer[: end - at]
            _encode_tile(tile, bounds, at, block, levels, codes, stochastic, low, high)
            if error.size:
                _decode_tile(codes, bounds, at, block, levels, back)
            if bits < 8:
                pack_tile(buffer, end - at, bits, packed, at, n)
        if error.size:
            lost(tile, back, error, at)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, INT, BOOL)
def minmax_decode(wire: Any, out: Any, start: int, stop: int, bits: int, block: int, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    n = out.size
    levels = np.float64((1 << bits) - 1)
    count_all = (n + block - 1) // block
    bounds = wire[: 8 * count_all].view(np.float32)
    packed = wire[8 * count_all :]
    buffer = np.empty(TILE, np.uint8)
    size = max(TILE, stop - start) if bits >= 8 else TILE
    for at in range(start, stop, size):
        end = min(at + size, stop)
        target = out[at:end]
        if bits == 16:
            halves = packed[2 * at : 2 * end].view(np.uint16)
            if add:
                _add_tile(halves, bounds, at, block, levels, target)
            else:
                _decode_tile(halves, bounds, at, block, levels, target)
        else:
            codes = packed[at:end] if bits == 8 else buffer[: end - at]
            if bits < 8:
                unpack_tile(buffer, end - at, bits, packed, at, n)
            if add:
                _add_tile(codes, bounds, at, block, levels, target)
            else:
                _decode_tile(codes, bounds, at, block, levels, target)
