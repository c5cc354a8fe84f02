"""Numba kernels of ``intB`` with stochastic rounding and with a search; the definition is kernels/reference_int_modes.py."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels import layout
from thinwire.kernels.cpu_int import bf16_scales, dequantize, largest_keys, log_scales, quantize
from thinwire.kernels.cpu_tile import load_tile, lost, pack_tile
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import BF16_MIN_NORMAL, GROUP, LOG_LAST, LOG_SIGN, TILE
from thinwire.kernels.simd_int_modes import CANDIDATES, add_squares_32, best_of_32, dither_32
from thinwire.kernels.simd_rng import dither

_NONFINITE = np.uint32(layout.NONFINITE_KEY)
_TINY = np.float32(2.0**-126)
_LARGEST = np.uint32(0x7F7FFFFF)
_STEPS = layout.SEARCH_STEPS
_DOWN = layout.SEARCH_DOWN
_NONE = layout.SEARCH_NONE
_RANGE = layout.SEARCH_RANGE
_WEIGHTS = layout.SEARCH_WEIGHTS
_FLUSH = 1024
"""Elements whose squares 8 sums of 32 bits hold: a square is below 2**24."""


@inline
def _widen(keys: Any, factor: Any) -> None:
    """See :func:`thinwire.kernels.reference_int_modes.widened`."""
    magnitude = (keys >> np.uint32(1)).view(np.float32)
    wide = (magnitude * factor).view(np.uint32)
    for i in range(keys.size):
        larger = (min(wide[i], _LARGEST) << np.uint32(1)) | (keys[i] & np.uint32(1))
        keys[i] = larger if keys[i] < _NONFINITE else keys[i]


@inline
def _scatter(tile: Any, at: int, end: int, scale: Any, half: Any, codes: Any, first: int, k0: Any, k1: Any) -> None:
    """Codes of one block with dither; element ``at`` of the tile is number ``first + at`` of the row."""
    if not abs(scale) >= _TINY:
        for i in range(at, end):
            codes[i] = np.uint8(half)
        return
    inverse = np.float32(1) / scale
    while at + 32 <= end:
        dither_32(tile, at, inverse, half, codes, np.uint32(first + at), k0, k1)
        at += 32
    for i in range(at, end):
        step = np.int32(np.rint(tile[i] * inverse + dither(np.uint32(first + i), k0, k1)))
        codes[i] = np.uint8(min(max(step, -half), half - np.int32(1)) + half)


@inline
def _best(tile: Any, at: int, end: int, scale: Any, unit: Any, totals: Any, padded: Any, sums: Any) -> int:
    """The index of the block's best candidate."""
    if not abs(scale) >= _TINY:
        return _NONE
    inverse = np.float32(1) / scale
    if end - at == 32:
        return best_of_32(tile, at, inverse, unit)
    for k in range(CANDIDATES):
        sums[k] = 0
    while at < end:
        for i in range(totals.size):
            totals[i] = 0
        last = min(end, at + _FLUSH)
        while at + 32 <= last:
            add_squares_32(tile, at, inverse, unit, totals)
            at += 32
        if at < last:
            for i in range(32):
                padded[i] = np.float32(0)
            for i in range(at, last):
                padded[i - at] = tile[i]
            add_squares_32(padded, 0, inverse, unit, totals)
            at = last
        for i in range(totals.size):
            sums[i // 8] += totals[i]
    best, least = 0, np.float32(sums[0]) * _WEIGHTS[0]
    for k in range(1, CANDIDATES):
        error = np.float32(sums[k]) * _WEIGHTS[k]
        if error < least:
            best, least = k, error
    return best


@inline
def _move_log(stored: Any, i: int, maximum: Any, table: Any, best: int, scales: Any) -> None:
    code = np.int64(stored[i])
    magnitude = code & 0x7F
    if magnitude > LOG_LAST:
        return
    moved = min(max(magnitude + _STEPS[best], 0), LOG_LAST) | (code & LOG_SIGN)
    if abs(maximum * table[moved]) >= _TINY:
        stored[i] = np.uint8(moved)
        scales[i] = maximum * table[moved]


@inline
def _move_bf16(stored: Any, i: int, best: int, limit: Any, single: Any, scales: Any) -> None:
    if not abs(scales[i]) >= _TINY:
        return
    single[0] = scales[i] * _DOWN[best]
    pattern = single.view(np.uint32)[0]
    moved = (pattern + np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    magnitude = moved & np.uint32(0x7FFF)
    if magnitude >= np.uint32(BF16_MIN_NORMAL) and magnitude <= limit:
        stored[i] = np.uint16(moved)
        scales.view(np.uint32)[i] = moved << np.uint32(16)


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, INT, BOOL, FLOATS, FLOATS, BOOL, INT, INT)
def int_encode_modes(
    x: Any, kind: int, wire: Any, n: int, start: int, stop: int, bits: int, block: int, log_scale: bool,
    table: Any, error: Any, stochastic: bool, k0: int, k1: int,
) -> None:  # fmt: skip
    """Encode elements [start, stop) of a row, with dither under the keys if ``stochastic``, else with a search for each scale."""
    size = max(TILE, block)
    half, low, high = np.int32(1 << (bits - 1)), np.uint32(k0), np.uint32(k1)
    unit = np.int32(_RANGE) // half
    widening = np.float32(half) / np.float32(half - np.int32(1))
    limit = np.uint32(layout.BF16_MAX - ((bits - 1) << 7))
    blocks = (n + block - 1) // block
    head = 2 * ((n + GROUP - 1) // GROUP) if log_scale else 0
    body = head + (blocks if log_scale else 2 * blocks)
    groups = wire[:head].view(np.uint16)
    packed = wire[body:]
    scratch = np.empty(size, np.uint32)
    buffer, values = np.empty(size, np.uint8), np.empty(size, np.float32)
    keys_buffer = np.empty(size // block, np.uint32)
    scales_buffer = np.empty(size // block, np.float32)
    totals, sums = np.empty(8 * CANDIDATES, np.int32), np.empty(CANDIDATES, np.int64)
    padded, single = np.empty(32, np.float32), np.empty(1, np.float32)
    for at in range(start, stop, size):
        end = min(at + size, stop)
        tile = load_tile(x, kind, at, end, scratch)
        first = at // block
        count = (end + block - 1) // block - first
        keys, scales = keys_buffer[:count], scales_buffer[:count]
        largest_keys(tile.view(np.uint32), end - at, block, keys)
        if stochastic:
            _widen(keys, widening)
        if log_scale:
            stored = wire[head + first : head + first + count]
            for g in range(0, count, GROUP // block):
                last = min(g + GROUP // block, count)
                group = log_scales(keys, g, last, table, np.int32(bits - 1), stored, scales, stochastic)
                groups[(at + g * block) // GROUP] = group
                if not stochastic:
                    single.view(np.uint32)[0] = np.uint32(group) << np.uint32(16)
                    for i in range(g, last):
                        best = _best(tile, i * block, min((i + 1) * block, end - at), scales[i], unit, totals, padded, sums)
                        _move_log(stored, i, single[0], table, best, scales)
        else:
            halves = wire[2 * first : 2 * (first + count)].view(np.uint16)
            bf16_scales(keys, bits, halves, scales, stochastic)
            if not stochastic:
                for i in range(count):
                    best = _best(tile, i * block, min((i + 1) * block, end - at), scales[i], unit, totals, padded, sums)
                    _move_bf16(halves, i, best, limit, single, scales)
        codes = packed[at:end] if bits == 8 else buffer[: end - at]
        for i in range(count):
            if stochastic:
                _scatter(tile, i * block, min((i + 1) * block, end - at), scales[i], half, codes, at, low, high)
            else:
                quantize(tile, i * block, min((i + 1) * block, end - at), scales[i], half, codes)
        if bits != 8:
            pack_tile(buffer, end - at, bits, packed, at, n)
        if error.size:
            for i in range(count):
                dequantize(codes, i * block, min((i + 1) * block, end - at), scales[i], half, values)
            lost(tile, values, error, at)
