"""Numba kernels of ``fp8_*`` and ``mxfp4``; the definitions are in :mod:`thinwire.kernels.reference_float`."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels import layout
from thinwire.kernels.cpu_int import largest_key
from thinwire.kernels.cpu_tile import load_tile, lost, pack_tile, unpack_tile
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import BF16_MIN_NORMAL, BF16_NAN, TILE
from thinwire.kernels.simd_float import (
    SHAPE,
    STRIP,
    STRIPS,
    add_e2m1,
    add_small_16,
    set_e2m1,
    set_small_1,
    set_small_16,
    to_small_1,
    to_small_16,
)  # fmt: skip
from thinwire.kernels.simd_int import largest_keys_16x32
from thinwire.kernels.smallfloat import E2M1, MX_BLOCK, MX_NAN, MX_TOP

_NONFINITE = np.uint32(layout.NONFINITE_KEY)
_E2M1 = E2M1.shape
_SEVERAL = STRIP * STRIPS


@inline
def _spread(factors: Any, block: int, size: int, strips: Any) -> int:
    """Each block's factor to all its strips; returns how many of ``size`` elements are then to go by several strips."""
    if block < STRIP:
        return 0
    per_block = block // STRIP
    for i in range((size + block - 1) // block):
        strips[i * per_block : (i + 1) * per_block] = factors[i]
    return size // _SEVERAL * _SEVERAL


@inline
def _to_small(tile: Any, factors: Any, block: int, shape: Any, codes: Any, scratch: Any) -> None:
    """Codes of ``tile * factor``, where each block has one of ``factors``."""
    strips, spare, bytes_ = scratch
    many = _spread(factors, block, tile.size, strips)
    for at in range(0, many, _SEVERAL):
        to_small_16(tile, at, strips, at // STRIP, shape, codes, at)
    at = many
    while at < tile.size:
        end = min(at // block * block + block, at + STRIP, tile.size)
        for i in range(at, end):
            spare[i - at] = tile[i]
        to_small_1(spare, 0, factors, at // block, shape, bytes_, 0)
        for i in range(at, end):
            codes[i] = bytes_[i - at]
        at = end


@inline
def _from_small(codes: Any, scales: Any, block: int, shape: Any, out: Any, add: bool, scratch: Any) -> None:
    """The numbers of a tile's codes to ``out``, or added to it."""
    strips, spare, bytes_ = scratch
    many = _spread(scales, block, out.size, strips)
    if add:
        for at in range(0, many, _SEVERAL):
            add_small_16(codes, at, strips, at // STRIP, shape, out, at)
    else:
        for at in range(0, many, _SEVERAL):
            set_small_16(codes, at, strips, at // STRIP, shape, out, at)
    at = many
    while at < out.size:
        end = min(at // block * block + block, at + STRIP, out.size)
        for i in range(at, end):
            bytes_[i - at] = codes[i]
        set_small_1(bytes_, 0, scales, at // block, shape, spare, 0)
        for i in range(at, end):
            out[i] = out[i] + spare[i - at] if add else spare[i - at]
        at = end


@inline
def _scratch() -> Any:
    """A factor a strip of a tile, and a strip of numbers and of codes for what is shorter than one."""
    return np.empty(TILE // STRIP, np.float32), np.zeros(STRIP, np.float32), np.zeros(STRIP, np.uint8)


@inline
def _bf16_scales(keys: Any, largest: Any, limit: Any, stored: Any, scales: Any, inverses: Any) -> bool:
    """Scales of finite blocks rounded up to bf16; the inverse of one that is zero or NaN is 0. Returns whether there is one."""
    wide = scales.view(np.uint32)
    for i in range(keys.size):
        wide[i] = keys[i] >> np.uint32(1) if keys[i] < _NONFINITE else np.uint32(0)
    for i in range(keys.size):
        scales[i] = scales[i] / largest
    for i in range(keys.size):
        code = min((wide[i] + np.uint32(0xFFFF)) >> np.uint32(16), limit)
        code = code if code >= np.uint32(BF16_MIN_NORMAL) else np.uint32(0)
        code = code if keys[i] < _NONFINITE else np.uint32(BF16_NAN)
        stored[i] = np.uint16(code)
        wide[i] = code << np.uint32(16)
    unusable = False
    for i in range(keys.size):
        inverses[i] = np.float32(1) / scales[i] if scales[i] > np.float32(0) else np.float32(0)
        unusable |= inverses[i] == np.float32(0)
    return unusable


@inline
def _clear(codes: Any, inverses: Any, block: int) -> None:
    """Codes of zero for the blocks whose scale has no inverse."""
    for i in range((codes.size + block - 1) // block):
        if inverses[i] == np.float32(0):
            codes[i * block : min((i + 1) * block, codes.size)] = np.uint8(0)


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, SHAPE, FLOATS, INT, FLOATS)
def fp8_encode(
    x: Any, kind: int, wire: Any, n: int, start: int, stop: int, block: int, shape: Any, largest: Any, limit: int, error: Any
) -> None:
    """Encode elements [start, stop) of a row; ``block`` divides the tile. ``largest`` (1,) is the format's largest number,
    ``limit`` the bits of its largest scale. ``error`` may be empty.
    """
    blocks = (n + block - 1) // block
    packed = wire[2 * blocks :]
    buffer, values, scratch = np.empty(TILE, np.uint32), np.empty(TILE, np.float32), _scratch()
    keys_buffer = np.empty(TILE // block, np.uint32)
    scales, inverses = np.empty(TILE // block, np.float32), np.empty(TILE // block, np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        tile = load_tile(x, kind, at, end, buffer)
        first = at // block
        count = (end + block - 1) // block - first
        keys = keys_buffer[:count]
        patterns = tile.view(np.uint32)
        for i in range(count):
            keys[i] = largest_key(patterns, i * block, min((i + 1) * block, end - at))
        stored = wire[2 * first : 2 * (first + count)].view(np.uint16)
        unusable = _bf16_scales(keys, largest[0], np.uint32(limit), stored, scales, inverses)
        codes = packed[at:end]
        _to_small(tile, inverses, block, shape, codes, scratch)
        if unusable:
            _clear(codes, inverses, block)
        if error.size:
            back = values[: end - at]
            _from_small(codes, scales, block, shape, back, False, scratch)
            lost(tile, back, error, at)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, SHAPE, BOOL)
def fp8_decode(wire: Any, out: Any, start: int, stop: int, block: int, shape: Any, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    blocks = (out.size + block - 1) // block
    stored, packed = wire[: 2 * blocks].view(np.uint16), wire[2 * blocks :]
    scratch, words = _scratch(), np.empty(TILE // block, np.uint32)
    scales = words.view(np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        first = at // block
        for i in range((end + block - 1) // block - first):
            words[i] = np.uint32(stored[first + i]) << np.uint32(16)
        _from_small(packed[at:end], scales, block, shape, out[at:end], add, scratch)


@inline
def _half_powers(stored: Any, halves: Any) -> None:
    """Half the numbers of E8M0 bytes, as fp32 bits; of the two smallest, subnormal ones."""
    for i in range(stored.size):
        code = np.uint32(stored[i])
        bits = (code - np.uint32(1)) << np.uint32(23) if code > np.uint32(1) else np.uint32(0x00200000) << code
        halves[i] = bits if code != np.uint32(MX_NAN) else np.uint32(0x7FC00000)


@inline
def _mx_scales(keys: Any, stored: Any, inverses: Any) -> bool:
    """E8M0 bytes of blocks by their largest keys, and the fp32 bits of 1/scale; 0 for a block that is not finite.

    Returns whether there is one.
    """
    largest = np.uint32(0)
    for i in range(keys.size):
        largest = max(largest, keys[i])
        exponent = max(keys[i] >> np.uint32(24), np.uint32(MX_TOP)) - np.uint32(MX_TOP)
        finite = keys[i] < _NONFINITE
        stored[i] = np.uint8(exponent) if finite else np.uint8(MX_NAN)
        inverses[i] = (np.uint32(254) - exponent) << np.uint32(23) if finite else np.uint32(0)
    return bool(largest >= _NONFINITE)


@inline
def _mx_keys(patterns: Any, keys: Any) -> None:
    done = 0
    while MX_BLOCK * (done + 16) <= patterns.size:
        largest_keys_16x32(patterns, MX_BLOCK * done, keys, done)
        done += 16
    for i in range(done, keys.size):
        keys[i] = largest_key(patterns, i * MX_BLOCK, min((i + 1) * MX_BLOCK, patterns.size))


@inline
def _mx_tile(codes: Any, halves: Any, out: Any, add: bool, scratch: Any) -> None:
    """The numbers of a tile's codes to ``out``, or added to it."""
    _, spare, bytes_ = scratch
    full = out.size // MX_BLOCK
    if add:
        for i in range(full):
            add_e2m1(codes, i * MX_BLOCK, halves, i, out, i * MX_BLOCK)
    else:
        for i in range(full):
            set_e2m1(codes, i * MX_BLOCK, halves, i, out, i * MX_BLOCK)
    first = full * MX_BLOCK
    if first < out.size:
        for i in range(first, out.size):
            bytes_[i - first] = codes[i]
        set_e2m1(bytes_, 0, halves, full, spare, 0)
        for i in range(first, out.size):
            out[i] = out[i] + spare[i - first] if add else spare[i - first]


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, FLOATS)
def mxfp4_encode(x: Any, kind: int, wire: Any, n: int, start: int, stop: int, error: Any) -> None:
    """Encode elements [start, stop) of a row; ``start`` is a multiple of the tile. ``error`` may be empty."""
    blocks = (n + MX_BLOCK - 1) // MX_BLOCK
    packed = wire[blocks:]
    buffer, values, codes_buffer = np.empty(TILE, np.uint32), np.empty(TILE, np.float32), np.empty(TILE, np.uint8)
    keys_buffer, powers = np.empty(TILE // MX_BLOCK, np.uint32), np.empty(TILE // MX_BLOCK, np.uint32)
    factors, scratch = powers.view(np.float32), _scratch()
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        tile = load_tile(x, kind, at, end, buffer)
        first = at // MX_BLOCK
        count = (end + MX_BLOCK - 1) // MX_BLOCK - first
        keys, stored, codes = keys_buffer[:count], wire[first : first + count], codes_buffer[: end - at]
        _mx_keys(tile.view(np.uint32), keys)
        unusable = _mx_scales(keys, stored, powers)
        _to_small(tile, factors, MX_BLOCK, _E2M1, codes, scratch)
        if unusable:
            _clear(codes, factors, MX_BLOCK)
        pack_tile(codes, end - at, 4, packed, at, n)
        if error.size:
            back = values[: end - at]
            _half_powers(stored, powers)
            _mx_tile(codes, factors, back, False, scratch)
            lost(tile, back, error, at)


@kernel(READ_BYTES, FLOATS, INT, INT, BOOL)
def mxfp4_decode(wire: Any, out: Any, start: int, stop: int, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    n = out.size
    blocks = (n + MX_BLOCK - 1) // MX_BLOCK
    packed = wire[blocks:]
    codes, powers, scratch = np.empty(TILE, np.uint8), np.empty(TILE // MX_BLOCK, np.uint32), _scratch()
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        _half_powers(wire[at // MX_BLOCK : (end + MX_BLOCK - 1) // MX_BLOCK], powers)
        unpack_tile(codes, end - at, 4, packed, at, n)
        _mx_tile(codes, powers.view(np.float32), out[at:end], add, scratch)
