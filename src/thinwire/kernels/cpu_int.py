"""Numba kernels of ``intB``; the definition is :func:`thinwire.kernels.reference.int_encode`."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels import layout
from thinwire.kernels.cpu_tile import load_tile, lost, pack_tile, unpack_tile
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import BF16_MAX, BF16_MIN_NORMAL, BF16_NAN, GROUP, LOG_NONFINITE, LOG_SIGN, LOG_ZERO, TILE
from thinwire.kernels.simd_int import (
    accumulate_32,
    accumulate_128,
    dequantize_32,
    dequantize_128,
    largest_key_32,
    largest_key_128,
    largest_keys_16x32,
    log_scales_16,
    log_scales_up_16,
    quantize_16x32,
    quantize_32,
    quantize_128,
)  # fmt: skip

_NONFINITE = np.uint32(layout.NONFINITE_KEY)
_TINY = np.float32(2.0**-126)
_THRESHOLDS = layout.LOG_THRESHOLDS
_UP = layout.LOG_UP


@inline
def largest_key(patterns: Any, at: int, end: int) -> Any:
    """The largest magnitude key (fp32 bits rotated left by one: the sign goes last) of elements [at, end)."""
    best = np.uint32(0)
    while at + 128 <= end:
        best = max(best, largest_key_128(patterns, at))
        at += 128
    while at + 32 <= end:
        best = max(best, largest_key_32(patterns, at))
        at += 32
    for i in range(at, end):
        best = max(best, np.uint32((patterns[i] << np.uint32(1)) | (patterns[i] >> np.uint32(31))))
    return best


@inline
def largest_keys(patterns: Any, size: int, block: int, keys: Any) -> None:
    """The largest key of every block of a tile of ``size`` elements."""
    done = 0
    if block == 32:
        while 32 * (done + 16) <= size:
            largest_keys_16x32(patterns, 32 * done, keys, done)
            done += 16
    for i in range(done, keys.size):
        keys[i] = largest_key(patterns, i * block, min((i + 1) * block, size))


@inline
def bf16_scales(keys: Any, bits: int, stored: Any, scales: Any, up: bool) -> None:
    """bf16 scales of blocks from their largest keys, rounded to nearest or ``up``."""
    magnitude = (keys >> np.uint32(1)).view(np.float32)
    shrink = np.float32(2.0 ** (1 - bits))
    limit = np.uint32(BF16_MAX - ((bits - 1) << 7))
    small = (magnitude * shrink).view(np.uint32)
    wide = scales.view(np.uint32)
    for i in range(keys.size):
        pattern = small[i]
        half = np.uint32(0xFFFF) if up else np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))
        code = min((pattern + half) >> np.uint32(16), limit)
        sign = np.uint32(0x8000) ^ ((keys[i] & np.uint32(1)) << np.uint32(15))
        code = np.uint32(0) if code < np.uint32(BF16_MIN_NORMAL) else code | sign
        code = code if keys[i] < _NONFINITE else np.uint32(BF16_NAN)
        stored[i] = np.uint16(code)
        wide[i] = code << np.uint32(16)


@inline
def log_scales(keys: Any, first: int, last: int, table: Any, shrink: Any, stored: Any, scales: Any, up: bool) -> Any:
    """Blocks [first, last) of one group: a byte a block to ``stored``, nearest or ``up``; returns the group's bf16 maximum."""
    top = np.uint32(0)
    for i in range(first, last):
        top = max(top, (keys[i] if keys[i] < _NONFINITE else np.uint32(0)) >> np.uint32(1))
    group = min((top + np.uint32(0xFFFF)) >> np.uint32(16), np.uint32(BF16_MAX))
    group = group if group >= np.uint32(BF16_MIN_NORMAL) else np.uint32(0)
    wide = scales.view(np.uint32)
    wide[first] = group << np.uint32(16)
    maximum = scales[first]
    while first + 16 <= last:
        if up:
            log_scales_up_16(keys, first, maximum, shrink, stored, scales)
        else:
            log_scales_16(keys, first, maximum, shrink, stored, scales)
        first += 16
    for i in range(first, last):
        wide[i] = (keys[i] if keys[i] < _NONFINITE else np.uint32(0)) >> np.uint32(1)
    for i in range(first, last):
        scales[i] = scales[i] / maximum if maximum > np.float32(0) else np.float32(0)
    for i in range(first, last):
        mantissa = wide[i] & np.uint32(0x7FFFFF)
        steps = np.int32(0)
        for j in range(8):
            steps += np.int32(mantissa >= (_UP[j] if up else _THRESHOLDS[j]))
        steps += np.int32(8) * (np.int32(wide[i] >> np.uint32(23)) - np.int32(127))
        k = min(max(-steps, np.int32(0)), np.int32(layout.LOG_LAST))
        k |= np.int32(0) if keys[i] & np.uint32(1) else np.int32(LOG_SIGN)
        k = k if abs(maximum * table[k]) >= _TINY else np.int32(LOG_ZERO)
        k = k if keys[i] < _NONFINITE else np.int32(LOG_NONFINITE)
        stored[i] = np.uint8(k)
        scales[i] = maximum * table[k]
    return np.uint16(group)


@inline
def _all_finite(keys: Any, first: int) -> bool:
    largest = np.uint32(0)
    for i in range(first, first + 16):
        largest = max(largest, keys[i])
    return largest < _NONFINITE


@inline
def quantize(tile: Any, at: int, end: int, scale: Any, half: Any, codes: Any) -> None:
    if not abs(scale) >= _TINY:
        for i in range(at, end):
            codes[i] = np.uint8(half)
        return
    inverse = np.float32(1) / scale
    while at + 128 <= end:
        quantize_128(tile, at, inverse, half, codes, at)
        at += 128
    while at + 32 <= end:
        quantize_32(tile, at, inverse, half, codes, at)
        at += 32
    for i in range(at, end):
        step = np.int32(np.rint(tile[i] * inverse))
        codes[i] = np.uint8(min(max(step, -half), half - np.int32(1)) + half)


@inline
def dequantize(codes: Any, at: int, end: int, scale: Any, half: Any, out: Any) -> None:
    while at + 128 <= end:
        dequantize_128(codes, at, scale, half, out, at)
        at += 128
    while at + 32 <= end:
        dequantize_32(codes, at, scale, half, out, at)
        at += 32
    for i in range(at, end):
        out[i] = np.float32(np.int32(codes[i]) - half) * scale


@inline
def _accumulate(codes: Any, at: int, end: int, scale: Any, half: Any, out: Any) -> None:
    while at + 128 <= end:
        accumulate_128(codes, at, scale, half, out, at)
        at += 128
    while at + 32 <= end:
        accumulate_32(codes, at, scale, half, out, at)
        at += 32
    for i in range(at, end):
        out[i] += np.float32(np.int32(codes[i]) - half) * scale


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, INT, BOOL, FLOATS, FLOATS)
def int_encode(
    x: Any, kind: int, wire: Any, n: int, start: int, stop: int, bits: int, block: int, log_scale: bool,
    table: Any, error: Any,
) -> None:  # fmt: skip
    """Encode elements [start, stop) of a row; ``start`` is a multiple of the tile. ``error`` may be empty."""
    size = max(TILE, block)
    half = np.int32(1 << (bits - 1))
    blocks = (n + block - 1) // block
    head = 2 * ((n + GROUP - 1) // GROUP) if log_scale else 0
    body = head + (blocks if log_scale else 2 * blocks)
    groups = wire[:head].view(np.uint16)
    packed = wire[body:]
    scratch = np.empty(size, np.uint32)
    buffer, values = np.empty(size, np.uint8), np.empty(size, np.float32)
    keys_buffer = np.empty(size // block, np.uint32)
    scales_buffer = np.empty(size // block, np.float32)
    for at in range(start, stop, size):
        end = min(at + size, stop)
        tile = load_tile(x, kind, at, end, scratch)
        first = at // block
        count = (end + block - 1) // block - first
        keys = keys_buffer[:count]
        scales = scales_buffer[:count]
        largest_keys(tile.view(np.uint32), end - at, block, keys)
        if log_scale:
            stored = wire[head + first : head + first + count]
            for g in range(0, count, GROUP // block):
                last = min(g + GROUP // block, count)
                groups[(at + g * block) // GROUP] = log_scales(keys, g, last, table, np.int32(bits - 1), stored, scales, False)
        else:
            bf16_scales(keys, bits, wire[2 * first : 2 * (first + count)].view(np.uint16), scales, False)
        codes = packed[at:end] if bits == 8 else buffer[: end - at]
        done = 0
        if block == 32:
            while 32 * (done + 16) <= end - at and _all_finite(keys, done):
                quantize_16x32(tile, 32 * done, scales, done, half, codes)
                done += 16
        for i in range(done, count):
            quantize(tile, i * block, min((i + 1) * block, end - at), scales[i], half, codes)
        if bits != 8:
            pack_tile(buffer, end - at, bits, packed, at, n)
        if error.size:
            for i in range(count):
                dequantize(codes, i * block, min((i + 1) * block, end - at), scales[i], half, values)
            lost(tile, values, error, at)


@inline
def _read_scales(wire: Any, n: int, at: int, count: int, block: int, log_scale: bool, table: Any, scales: Any) -> None:
    first = at // block
    wide = scales.view(np.uint32)
    if log_scale:
        groups = (n + GROUP - 1) // GROUP
        maxima = wire[: 2 * groups].view(np.uint16)
        stored = wire[2 * groups + first : 2 * groups + first + count]
        for g in range(0, count, GROUP // block):
            wide[g] = np.uint32(maxima[(at + g * block) // GROUP]) << np.uint32(16)
            maximum = scales[g]
            for i in range(g, min(g + GROUP // block, count)):
                scales[i] = maximum * table[stored[i]]
    else:
        halves = wire[2 * first : 2 * (first + count)].view(np.uint16)
        for i in range(count):
            wide[i] = np.uint32(halves[i]) << np.uint32(16)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, INT, BOOL, FLOATS, BOOL)
def int_decode(wire: Any, out: Any, start: int, stop: int, bits: int, block: int, log_scale: bool, table: Any, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    n = out.size
    size = max(TILE, block)
    half = np.int32(1 << (bits - 1))
    blocks = (n + block - 1) // block
    body = 2 * ((n + GROUP - 1) // GROUP) + blocks if log_scale else 2 * blocks
    packed = wire[body:]
    buffer = np.empty(size, np.uint8)
    scales_buffer = np.empty(size // block, np.float32)
    for at in range(start, stop, size):
        end = min(at + size, stop)
        count = (end + block - 1) // block - at // block
        scales = scales_buffer[:count]
        _read_scales(wire, n, at, count, block, log_scale, table, scales)
        codes = packed[at:end] if bits == 8 else buffer[: end - at]
        if bits != 8:
            unpack_tile(buffer, end - at, bits, packed, at, n)
        target = out[at:end]
        if add:
            for i in range(count):
                _accumulate(codes, i * block, min((i + 1) * block, end - at), scales[i], half, target)
        else:
            for i in range(count):
                dequantize(codes, i * block, min((i + 1) * block, end - at), scales[i], half, target)
