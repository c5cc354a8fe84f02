"""Pieces that all CPU kernels share: loading a tile as fp32, packing and unpacking planes, and the error.

A tile is small enough for the first-level cache, so passes over it are cheap; each pass is a loop that LLVM
vectorizes, or vector code of simd_int.py.
"""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels.jit import inline
from thinwire.kernels.layout import UNIT
from thinwire.kernels.simd_cast import LANES, converts_half, set_from_bf16, set_from_half, subtract
from thinwire.kernels.simd_int import or_unit_1, or_unit_2, or_unit_4, pack_unit_1, pack_unit_2, pack_unit_4

F32_KIND, F16_KIND, BF16_KIND = 0, 1, 2
_CONVERTS = converts_half()


@inline
def half_to_float(half: Any, target: Any) -> None:
    """IEEE half bits -> fp32 bits (``target`` is a uint32 view); the multiplication also normalizes subnormals."""
    bits = target.view(np.float32)
    done = 0
    if _CONVERTS:
        while done + LANES <= half.size:
            set_from_half(half, done, np.float32(1), bits, done)
            done += LANES
    for i in range(done, half.size):
        target[i] = (np.uint32(half[i]) & np.uint32(0x7FFF)) << np.uint32(13)
    for i in range(done, half.size):
        bits[i] = bits[i] * np.float32(2.0**112)
    for i in range(done, half.size):
        special = np.uint32(0x7F800000) if (half[i] & np.uint16(0x7C00)) == np.uint16(0x7C00) else np.uint32(0)
        target[i] |= special | ((np.uint32(half[i]) & np.uint32(0x8000)) << np.uint32(16))


@inline
def bf16_to_float(stored: Any, out: Any) -> None:
    """bf16 bits -> fp32."""
    done, wide = 0, out.view(np.uint32)
    while done + LANES <= stored.size:
        set_from_bf16(stored, done, out, done)
        done += LANES
    for i in range(done, stored.size):
        wide[i] = np.uint32(stored[i]) << np.uint32(16)


@inline
def load_tile(x: Any, kind: int, start: int, stop: int, scratch: Any) -> Any:
    """Elements [start, stop) of the row's bytes ``x`` as fp32: a view of the input, or of ``scratch`` (uint32)."""
    if kind == F32_KIND:
        return x[4 * start : 4 * stop].view(np.float32)
    half = x[2 * start : 2 * stop].view(np.uint16)
    target = scratch[: stop - start]
    if kind == F16_KIND:
        half_to_float(half, target)
    else:
        bf16_to_float(half, target.view(np.float32))
    return target.view(np.float32)


@inline
def lost(tile: Any, values: Any, error: Any, at: int) -> None:
    """What the wire lost, ``tile - values``, to ``error`` from element ``at`` on."""
    done = 0
    while done + LANES <= tile.size:
        subtract(tile, done, values, error, at + done)
        done += LANES
    for i in range(done, tile.size):
        error[at + i] = tile[i] - values[i]


@inline
def plane_size(n: int, width: int) -> int:
    return (n // UNIT) * (UNIT * width // 8) + ((n % UNIT) * width + 7) // 8


@inline
def _pack_rest(codes: Any, shift: int, width: int, target: Any) -> None:
    """The last unit of a row, which may be short."""
    mask = np.uint32((1 << width) - 1)
    for j in range(target.size):
        value = np.uint32(0)
        for slot in range(8 // width):
            if j + slot * target.size < codes.size:
                code = np.uint32(codes[j + slot * target.size])
                value |= ((code >> np.uint32(shift)) & mask) << np.uint32(slot * width)
        target[j] = np.uint8(value)


@inline
def _unpack_rest(codes: Any, shift: int, width: int, source: Any) -> None:
    mask = np.uint32((1 << width) - 1)
    for j in range(source.size):
        for slot in range(8 // width):
            if j + slot * source.size < codes.size:
                value = (np.uint32(source[j]) >> np.uint32(slot * width)) & mask
                codes[j + slot * source.size] |= np.uint8(value << np.uint32(shift))


@inline
def _pack_plane(codes: Any, count: int, shift: int, width: int, plane: Any, start: int) -> None:
    """``width`` bits of each code, from bit ``shift`` up, into the plane; ``start`` is a multiple of UNIT."""
    at = start * width // 8
    size = UNIT * width // 8
    full = count // UNIT
    if width == 4:
        for unit in range(full):
            pack_unit_4(codes, unit * UNIT, shift, plane, at + unit * size)
    elif width == 2:
        for unit in range(full):
            pack_unit_2(codes, unit * UNIT, shift, plane, at + unit * size)
    else:
        for unit in range(full):
            pack_unit_1(codes, unit * UNIT, shift, plane, at + unit * size)
    if count % UNIT:
        first = at + full * size
        _pack_rest(codes[full * UNIT : count], shift, width, plane[first : first + (count % UNIT * width + 7) // 8])


@inline
def _unpack_plane(codes: Any, count: int, shift: int, width: int, plane: Any, start: int) -> None:
    """The inverse of :func:`_pack_plane`: ors the plane's bits into ``codes``."""
    at = start * width // 8
    size = UNIT * width // 8
    full = count // UNIT
    if width == 4:
        for unit in range(full):
            or_unit_4(codes, unit * UNIT, shift, plane, at + unit * size)
    elif width == 2:
        for unit in range(full):
            or_unit_2(codes, unit * UNIT, shift, plane, at + unit * size)
    else:
        for unit in range(full):
            or_unit_1(codes, unit * UNIT, shift, plane, at + unit * size)
    if count % UNIT:
        first = at + full * size
        _unpack_rest(codes[full * UNIT : count], shift, width, plane[first : first + (count % UNIT * width + 7) // 8])


@inline
def pack_tile(codes: Any, count: int, bits: int, packed: Any, start: int, n: int) -> None:
    """``count`` codes of a tile that starts at element ``start`` of a row of ``n`` -> the row's code section."""
    at, shift = 0, bits
    for width in (4, 2, 1):
        if bits & width:
            shift -= width
            size = plane_size(n, width)
            _pack_plane(codes, count, shift, width, packed[at : at + size], start)
            at += size


@inline
def unpack_tile(codes: Any, count: int, bits: int, packed: Any, start: int, n: int) -> None:
    """The inverse of :func:`pack_tile`."""
    codes[:count] = np.uint8(0)
    at, shift = 0, bits
    for width in (4, 2, 1):
        if bits & width:
            shift -= width
            size = plane_size(n, width)
            _unpack_plane(codes, count, shift, width, packed[at : at + size], start)
            at += size
