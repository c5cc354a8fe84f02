"""Numba kernels of ``minmaxB``; the definition is :func:`thinwire.kernels.reference.minmax_encode`."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels.cpu_tile import F32_KIND, load_tile, pack_tile, unpack_tile
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import TILE
from thinwire.kernels.simd_affine import (
    LANES,
    LONG,
    add_bytes,
    add_halves,
    float_of_bits,
    from_bytes,
    from_halves,
    highest_key,
    highest_key_long,
    lowest_key,
    lowest_key_long,
    to_bytes,
    to_halves,
)  # fmt: skip

_INF_KEY = np.int32(0x7F800000)
_MINUS_INF_KEY = np.int32(-0x7F800001)


@inline
def _order(pattern: Any) -> Any:
    return pattern ^ ((pattern >> np.int32(31)) & np.int32(0x7FFFFFFF))


@inline
def _range(patterns: Any, at: int, end: int, bounds: Any, index: int) -> None:
    """Smallest and largest of elements [at, end) (int32 patterns) to ``bounds[index:]``; NaN twice if not finite."""
    high, low = _MINUS_INF_KEY, _INF_KEY
    while at + LONG <= end:
        high, low = max(high, highest_key_long(patterns, at)), min(low, lowest_key_long(patterns, at))
        at += LONG
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


@kernel(READ_BYTES, INT, INT, INT, FLOATS)
def minmax_range(x: Any, kind: int, start: int, stop: int, bounds: Any) -> None:
    """Smallest and largest of elements [start, stop) of a row to ``bounds`` (2,); NaN twice if one is not finite."""
    scratch = np.empty(TILE, np.uint32)
    part = np.empty(2, np.float32)
    bounds[0], bounds[1] = np.float32(np.inf), np.float32(-np.inf)
    size = max(TILE, stop - start) if kind == F32_KIND else TILE
    for at in range(start, stop, size):
        end = min(at + size, stop)
        _range(load_tile(x, kind, at, end, scratch).view(np.int32), 0, end - at, part, 0)
        if np.isnan(part[0]) or np.isnan(bounds[0]):
            bounds[0] = bounds[1] = np.float32(np.nan)
        else:
            bounds[0], bounds[1] = min(bounds[0], part[0]), max(bounds[1], part[1])


@inline
def _to_codes(tile: Any, at: int, end: int, low: Any, factor: Any, codes: Any, halves: Any) -> None:
    """Codes of elements [at, end) to ``codes`` (bytes), or to ``halves`` (16 bits) where that is not empty."""
    if halves.size:
        while at + LANES <= end:
            to_halves(tile, at, low, factor, halves, at)
            at += LANES
        for i in range(at, end):
            halves[i] = np.uint16(np.int32(np.rint((np.float64(tile[i]) - low) * factor)))
    else:
        while at + LANES <= end:
            to_bytes(tile, at, low, factor, codes, at)
            at += LANES
        for i in range(at, end):
            codes[i] = np.uint8(np.int32(np.rint((np.float64(tile[i]) - low) * factor)))


@inline
def _from_codes(codes: Any, halves: Any, at: int, end: int, low: Any, step: Any, out: Any) -> None:
    if halves.size:
        while at + LANES <= end:
            from_halves(halves, at, low, step, out, at)
            at += LANES
        for i in range(at, end):
            out[i] = np.float32(low + np.float64(halves[i]) * step)
    else:
        while at + LANES <= end:
            from_bytes(codes, at, low, step, out, at)
            at += LANES
        for i in range(at, end):
            out[i] = np.float32(low + np.float64(codes[i]) * step)


@inline
def _add_codes(codes: Any, halves: Any, at: int, end: int, low: Any, step: Any, out: Any) -> None:
    if halves.size:
        while at + LANES <= end:
            add_halves(halves, at, low, step, out, at)
            at += LANES
        for i in range(at, end):
            out[i] += np.float32(low + np.float64(halves[i]) * step)
    else:
        while at + LANES <= end:
            add_bytes(codes, at, low, step, out, at)
            at += LANES
        for i in range(at, end):
            out[i] += np.float32(low + np.float64(codes[i]) * step)


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, INT, FLOATS)
def minmax_encode(x: Any, kind: int, wire: Any, n: int, start: int, stop: int, bits: int, block: int, error: Any) -> None:
    """Encode elements [start, stop) of a row; ``start`` is a multiple of the tile. ``error`` may be empty.

    Bounds of blocks longer than a tile are read from the wire, where :func:`minmax_range` has left them.
    """
    levels = np.float64((1 << bits) - 1)
    count_all = (n + block - 1) // block
    bounds = wire[: 8 * count_all].view(np.float32)
    packed = wire[8 * count_all :]
    scratch = np.empty(TILE, np.uint32)
    buffer = np.empty(TILE, np.uint8)
    none = wire[:0].view(np.uint16)
    piece = min(block, TILE)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        tile = load_tile(x, kind, at, end, scratch)
        codes = packed[at:end] if bits == 8 else buffer[: end - at]
        halves = packed[2 * at : 2 * end].view(np.uint16) if bits == 16 else none
        patterns = tile.view(np.int32)
        lost = error[at:end] if error.size else error
        for first in range(0, end - at, piece):
            last = min(first + piece, end - at)
            index = 2 * ((at + first) // block)
            if block <= TILE:
                _range(patterns, first, last, bounds, index)
            low = np.float64(bounds[index])
            span = np.float64(bounds[index + 1]) - low
            if span == span:
                _to_codes(tile, first, last, low, levels / span if span > 0 else 0.0, codes, halves)
            else:
                for i in range(first, last):
                    if bits == 16:
                        halves[i] = np.uint16(0)
                    else:
                        codes[i] = np.uint8(0)
            for i in range(first, last if error.size else first):
                code = np.float64(halves[i]) if bits == 16 else np.float64(codes[i])
                lost[i] = tile[i] - np.float32(low + code * (span / levels))
        if bits < 8:
            pack_tile(buffer, end - at, bits, packed, at, n)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, INT, BOOL)
def minmax_decode(wire: Any, out: Any, start: int, stop: int, bits: int, block: int, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    n = out.size
    levels = np.float64((1 << bits) - 1)
    count_all = (n + block - 1) // block
    bounds = wire[: 8 * count_all].view(np.float32)
    packed = wire[8 * count_all :]
    buffer = np.empty(TILE, np.uint8)
    none = wire[:0].view(np.uint16)
    piece = min(block, TILE)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        codes = packed[at:end] if bits == 8 else buffer[: end - at]
        halves = packed[2 * at : 2 * end].view(np.uint16) if bits == 16 else none
        if bits < 8:
            unpack_tile(buffer, end - at, bits, packed, at, n)
        target = out[at:end]
        for first in range(0, end - at, piece):
            last = min(first + piece, end - at)
            index = 2 * ((at + first) // block)
            low = np.float64(bounds[index])
            step = (np.float64(bounds[index + 1]) - low) / levels
            if add:
                _add_codes(codes, halves, first, last, low, step, target)
            else:
                _from_codes(codes, halves, first, last, low, step, target)
