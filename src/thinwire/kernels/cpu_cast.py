"""Numba kernels of ``bf16`` and ``fp16``; the definitions are in :mod:`thinwire.kernels.reference`."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels.cpu_tile import bf16_to_float, half_to_float, load_tile, lost
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import BF16_MAX, BF16_NAN, F16_BELOW_TOP, F16_TOP, TILE
from thinwire.kernels.simd_cast import LANES, add_from_bf16, add_from_half, converts_half, set_from_half, to_bf16, to_half
from thinwire.kernels.simd_int import largest_key_128

_CONVERTS = converts_half()
_INF = np.uint32(0x7F800000)
_ABS = np.uint32(0x7FFFFFFF)


@inline
def _bf16(pattern: Any) -> Any:
    magnitude = pattern & _ABS
    rounded = (magnitude + np.uint32(0x7FFF) + ((magnitude >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    rounded = min(rounded, np.uint32(BF16_MAX)) if magnitude < _INF else np.uint32(0x7F80)
    code = rounded | ((pattern >> np.uint32(16)) & np.uint32(0x8000))
    return code if magnitude <= _INF else np.uint32(BF16_NAN)


@inline
def _half(pattern: Any, shifted: Any, limit: Any) -> Any:
    """IEEE half bits of a number below 2^16, rounded to nearest even; ``shifted`` holds the bits of |x| + 1/2."""
    magnitude = pattern & _ABS
    normal = (magnitude + np.uint32(0xFFF) + ((magnitude >> np.uint32(13)) & np.uint32(1))) >> np.uint32(13)
    code = normal - np.uint32(112 << 10) if magnitude >= np.uint32(0x38800000) else shifted - np.uint32(0x3F000000)
    return min(code, limit) | ((pattern >> np.uint32(16)) & np.uint32(0x8000))


@inline
def _to_bf16(patterns: Any, stored: Any) -> None:
    done = 0
    while done + LANES <= stored.size:
        to_bf16(patterns, done, stored, done)
        done += LANES
    for i in range(done, stored.size):
        stored[i] = np.uint16(_bf16(patterns[i]))


@inline
def _add_bf16(stored: Any, out: Any, scratch: Any) -> None:
    done = 0
    while done + LANES <= stored.size:
        add_from_bf16(stored, done, out, done)
        done += LANES
    bf16_to_float(stored[done:], scratch[: stored.size - done])
    for i in range(done, stored.size):
        out[i] += scratch[i - done]


@kernel(READ_BYTES, INT, BYTES, INT, INT, FLOATS)
def bf16_encode(x: Any, kind: int, wire: Any, start: int, stop: int, error: Any) -> None:
    """Encode elements [start, stop) of a row. ``error`` may be empty."""
    scratch, values = np.empty(TILE, np.uint32), np.empty(TILE, np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        tile = load_tile(x, kind, at, end, scratch)
        stored = wire[2 * at : 2 * end].view(np.uint16)
        _to_bf16(tile.view(np.uint32), stored)
        if error.size:
            bf16_to_float(stored, values[: end - at])
            lost(tile, values, error, at)


@kernel(READ_BYTES, FLOATS, INT, INT, BOOL)
def bf16_decode(wire: Any, out: Any, start: int, stop: int, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    scratch = np.empty(LANES, np.float32)
    stored, target = wire[2 * start : 2 * stop].view(np.uint16), out[start:stop]
    if add:
        _add_bf16(stored, target, scratch)
    else:
        bf16_to_float(stored, target)


@inline
def _f16_scale(patterns: Any, first: int, last: int) -> Any:
    """bf16 bits of the power of two that brings the largest of [first, last) into [2^14, 2^15); NaN if not finite."""
    at, key = first, np.uint32(0)
    while at + 128 <= last:
        key = max(key, largest_key_128(patterns, at))
        at += 128
    for i in range(at, last):
        key = max(key, np.uint32(patterns[i] << np.uint32(1)))
    top = key >> np.uint32(1)
    exponent = max(np.int32(top >> np.uint32(23)) - np.int32(14), np.int32(1))
    return np.uint16(exponent << np.int32(7)) if top < _INF else np.uint16(BF16_NAN)


@inline
def _to_half(tile: Any, first: int, last: int, one: Any, two: Any, limit: Any, stored: Any, pair: Any) -> None:
    """fp16 bits of ``tile * one * two`` of elements [first, last)."""
    floats = pair.view(np.float32)
    at = first
    if _CONVERTS:
        while at + LANES <= last:
            to_half(tile, at, one, two, limit, stored, at)
            at += LANES
    for i in range(at, last):
        floats[0] = tile[i] * one * two
        floats[1] = abs(floats[0]) + np.float32(0.5)
        stored[i] = np.uint16(_half(pair[0], pair[1], limit))


@inline
def _from_half(stored: Any, first: int, last: int, scale: Any, out: Any, add: bool, scratch: Any) -> None:
    """``out = stored * scale`` of elements [first, last), or ``out +=`` that."""
    at = first
    if _CONVERTS and add:
        while at + LANES <= last:
            add_from_half(stored, at, scale, out, at)
            at += LANES
    elif _CONVERTS:
        while at + LANES <= last:
            set_from_half(stored, at, scale, out, at)
            at += LANES
    if at < last:
        half_to_float(stored[at:last], scratch[: last - at])
        floats = scratch.view(np.float32)
        for i in range(at, last):
            value = floats[i - at] * scale
            out[i] = out[i] + value if add else value


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, FLOATS)
def f16_encode(x: Any, kind: int, wire: Any, n: int, start: int, stop: int, block: int, error: Any) -> None:
    """Encode elements [start, stop) of a row; ``block`` divides the tile. ``error`` may be empty."""
    count_all = (n + block - 1) // block
    scales, packed = wire[: 2 * count_all].view(np.uint16), wire[2 * count_all :]
    scratch, values = np.empty(TILE, np.uint32), np.empty(TILE, np.float32)
    pair, spare = np.empty(2, np.uint32), np.empty(TILE, np.uint32)
    factors = pair.view(np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        tile = load_tile(x, kind, at, end, scratch)
        patterns = tile.view(np.uint32)
        stored = packed[2 * at : 2 * end].view(np.uint16)
        for first in range(0, end - at, block):
            last = min(first + block, end - at)
            code = _f16_scale(patterns, first, last)
            scales[(at + first) // block] = code
            if code == np.uint16(BF16_NAN):
                for i in range(first, last):
                    stored[i] = np.uint16(0)
            else:
                exponent = np.int32(code >> np.uint16(7)) - np.int32(127)
                # 2^-e in two exact factors, since 2^126 and above have no single one.
                pair[0] = np.uint32(127 - exponent // 2) << np.uint32(23)
                pair[1] = np.uint32(127 - (exponent - exponent // 2)) << np.uint32(23)
                one, two = factors[0], factors[1]
                # Rounded up, the largest numbers of fp32 would come back as Inf.
                limit = np.uint32(F16_BELOW_TOP if code == np.uint16((254 - 14) << 7) else F16_TOP)
                _to_half(tile, first, last, one, two, limit, stored, pair)
        if error.size:
            _f16_tile(stored, scales, at, block, values[: end - at], False, spare)
            lost(tile, values, error, at)


@inline
def _f16_tile(stored: Any, scales: Any, at: int, block: int, out: Any, add: bool, scratch: Any) -> None:
    one = np.empty(1, np.uint32)
    scale = one.view(np.float32)
    for first in range(0, stored.size, block):
        one[0] = np.uint32(scales[(at + first) // block]) << np.uint32(16)
        _from_half(stored, first, min(first + block, stored.size), scale[0], out, add, scratch)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, BOOL)
def f16_decode(wire: Any, out: Any, start: int, stop: int, block: int, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    n = out.size
    count_all = (n + block - 1) // block
    scales, packed = wire[: 2 * count_all].view(np.uint16), wire[2 * count_all :]
    scratch = np.empty(TILE, np.uint32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        _f16_tile(packed[2 * at : 2 * end].view(np.uint16), scales, at, block, out[at:end], add, scratch)
