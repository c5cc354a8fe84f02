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
    add_small_32,
    add_small_128,
    set_small_32,
    set_small_128,
    to_small_32,
    to_small_128,
)
from thinwire.kernels.simd_int import largest_keys_16x32
from thinwire.kernels.smallfloat import E2M1, MX_BLOCK, MX_NAN, MX_TOP

_NONFINITE = np.uint32(layout.NONFINITE_KEY)
_E2M1 = E2M1.shape
_SPARE = 32


@inline
def _to_small(tile: Any, at: int, end: int, inverse: Any, shape: Any, codes: Any, spare: Any, bytes_: Any) -> None:
    """Codes of elements [at, end); ``spare`` and ``bytes_`` (_SPARE,) hold what is left over of the vectors."""
    while at + 128 <= end:
        to_small_128(tile, at, inverse, shape, codes, at)
        at += 128
    while at + 32 <= end:
        to_small_32(tile, at, inverse, shape, codes, at)
        at += 32
    if at < end:
        for i in range(at, end):
            spare[i - at] = tile[i]
        to_small_32(spare, 0, inverse, shape, bytes_, 0)
        for i in range(at, end):
            codes[i] = bytes_[i - at]


@inline
def _from_small(codes: Any, at: int, end: int, scale: Any, shape: Any, out: Any, add: bool, spare: Any, bytes_: Any) -> None:
    """The numbers of codes [at, end) to ``out``, or added to it."""
    if add:
        while at + 128 <= end:
            add_small_128(codes, at, scale, shape, out, at)
            at += 128
        while at + 32 <= end:
            add_small_32(codes, at, scale, shape, out, at)
            at += 32
    else:
        while at + 128 <= end:
            set_small_128(codes, at, scale, shape, out, at)
            at += 128
        while at + 32 <= end:
            set_small_32(codes, at, scale, shape, out, at)
            at += 32
    if at < end:
        for i in range(at, end):
            bytes_[i - at] = codes[i]
        set_small_32(bytes_, 0, scale, shape, spare, 0)
        for i in range(at, end):
            out[i] = out[i] + spare[i - at] if add else spare[i - at]


@inline
def _spares() -> Any:
    return np.zeros(_SPARE, np.float32), np.zeros(_SPARE, np.uint8)


@inline
def _bf16_scales(keys: Any, largest: Any, limit: Any, stored: Any, scales: Any, inverses: Any) -> None:
    """Scales of finite blocks rounded up to bf16; the inverse of one that is zero or NaN is 0."""
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
    for i in range(keys.size):
        inverses[i] = np.float32(1) / scales[i] if scales[i] > np.float32(0) else np.float32(0)


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, SHAPE, FLOATS, INT, FLOATS)
def fp8_encode(
    x: Any, kind: int, wire: Any, n: int, start: int, stop: int, block: int, shape: Any, largest: Any, limit: int, error: Any
) -> None:
    """Encode elements [start, stop) of a row; ``block`` divides the tile. ``largest`` (1,) is the format's largest number,
    ``limit`` the bits of its largest scale. ``error`` may be empty.
    """
    blocks = (n + block - 1) // block
    packed = wire[2 * blocks :]
    scratch, values = np.empty(TILE, np.uint32), np.empty(TILE, np.float32)
    spare, bytes_ = _spares()
    keys_buffer = np.empty(TILE // block, np.uint32)
    scales, inverses = np.empty(TILE // block, np.float32), np.empty(TILE // block, np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        tile = load_tile(x, kind, at, end, scratch)
        first = at // block
        count = (end + block - 1) // block - first
        keys = keys_buffer[:count]
        patterns = tile.view(np.uint32)
        for i in range(count):
            keys[i] = largest_key(patterns, i * block, min((i + 1) * block, end - at))
        stored = wire[2 * first : 2 * (first + count)].view(np.uint16)
        _bf16_scales(keys, largest[0], np.uint32(limit), stored, scales, inverses)
        codes = packed[at:end]
        for i in range(count):
            last = min((i + 1) * block, end - at)
            if inverses[i] > np.float32(0):
                _to_small(tile, i * block, last, inverses[i], shape, codes, spare, bytes_)
            else:
                codes[i * block : last] = np.uint8(0)
        if error.size:
            for i in range(count):
                last = min((i + 1) * block, end - at)
                _from_small(codes, i * block, last, scales[i], shape, values, False, spare, bytes_)
            lost(tile, values, error, at)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, SHAPE, BOOL)
def fp8_decode(wire: Any, out: Any, start: int, stop: int, block: int, shape: Any, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    blocks = (out.size + block - 1) // block
    stored, codes = wire[: 2 * blocks].view(np.uint16), wire[2 * blocks :]
    spare, bytes_ = _spares()
    scale = np.empty(1, np.float32)
    wide = scale.view(np.uint32)
    for at in range(start, stop, block):
        wide[0] = np.uint32(stored[at // block]) << np.uint32(16)
        _from_small(codes, at, min(at + block, stop), scale[0], shape, out, add, spare, bytes_)


@inline
def _powers(stored: Any, scales: Any) -> None:
    """The numbers of E8M0 bytes, as fp32 bits."""
    for i in range(stored.size):
        code = np.uint32(stored[i])
        bits = code << np.uint32(23) if code > np.uint32(0) else np.uint32(0x00400000)
        scales[i] = bits if code != np.uint32(MX_NAN) else np.uint32(0x7FC00000)


@inline
def _mx_scales(keys: Any, stored: Any, inverses: Any) -> None:
    """E8M0 bytes of blocks by their largest keys, and the fp32 bits of 1/scale; 0 for a block that is not finite."""
    for i in range(keys.size):
        exponent = max(keys[i] >> np.uint32(24), np.uint32(MX_TOP)) - np.uint32(MX_TOP)
        stored[i] = np.uint8(exponent) if keys[i] < _NONFINITE else np.uint8(MX_NAN)
        inverses[i] = (np.uint32(254) - exponent) << np.uint32(23) if keys[i] < _NONFINITE else np.uint32(0)


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, FLOATS)
def mxfp4_encode(x: Any, kind: int, wire: Any, n: int, start: int, stop: int, error: Any) -> None:
    """Encode elements [start, stop) of a row; ``start`` is a multiple of the tile. ``error`` may be empty."""
    blocks = (n + MX_BLOCK - 1) // MX_BLOCK
    packed = wire[blocks:]
    scratch, values, buffer = np.empty(TILE, np.uint32), np.empty(TILE, np.float32), np.empty(TILE, np.uint8)
    spare, bytes_ = _spares()
    keys_buffer, powers = np.empty(TILE // MX_BLOCK, np.uint32), np.empty(TILE // MX_BLOCK, np.uint32)
    factors = powers.view(np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        tile = load_tile(x, kind, at, end, scratch)
        first = at // MX_BLOCK
        count = (end + MX_BLOCK - 1) // MX_BLOCK - first
        keys, stored = keys_buffer[:count], wire[first : first + count]
        patterns = tile.view(np.uint32)
        done = 0
        while MX_BLOCK * (done + 16) <= end - at:
            largest_keys_16x32(patterns, MX_BLOCK * done, keys, done)
            done += 16
        for i in range(done, count):
            keys[i] = largest_key(patterns, i * MX_BLOCK, min((i + 1) * MX_BLOCK, end - at))
        _mx_scales(keys, stored, powers)
        for i in range(count):
            last = min((i + 1) * MX_BLOCK, end - at)
            _to_small(tile, i * MX_BLOCK, last, factors[i], _E2M1, buffer, spare, bytes_)
            if stored[i] == np.uint8(MX_NAN):
                buffer[i * MX_BLOCK : last] = np.uint8(0)
        pack_tile(buffer, end - at, 4, packed, at, n)
        if error.size:
            _powers(stored, powers)
            _mx_tile(buffer[: end - at], factors, values, False, spare, bytes_)
            lost(tile, values, error, at)


@inline
def _mx_tile(codes: Any, scales: Any, out: Any, add: bool, spare: Any, bytes_: Any) -> None:
    for i in range((codes.size + MX_BLOCK - 1) // MX_BLOCK):
        last = min((i + 1) * MX_BLOCK, codes.size)
        _from_small(codes, i * MX_BLOCK, last, scales[i], _E2M1, out, add, spare, bytes_)


@kernel(READ_BYTES, FLOATS, INT, INT, BOOL)
def mxfp4_decode(wire: Any, out: Any, start: int, stop: int, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    n = out.size
    blocks = (n + MX_BLOCK - 1) // MX_BLOCK
    packed = wire[blocks:]
    buffer, powers = np.empty(TILE, np.uint8), np.empty(TILE // MX_BLOCK, np.uint32)
    scales = powers.view(np.float32)
    spare, bytes_ = _spares()
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        first, last = at // MX_BLOCK, (end + MX_BLOCK - 1) // MX_BLOCK
        _powers(wire[first:last], powers)
        unpack_tile(buffer, end - at, 4, packed, at, n)
        _mx_tile(buffer[: end - at], scales, out[at:end], add, spare, bytes_)
