"""Numba kernels of ``gaussB`` and ``sign1``; the definition is kernels/reference_gauss.py."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels import simd_gauss
from thinwire.kernels.cpu_int import largest_key
from thinwire.kernels.cpu_tile import load_tile, lost, pack_tile, unpack_tile
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import BF16_MIN_NORMAL, BF16_NAN, GAUSS_LARGEST_SCALE, TILE
from thinwire.kernels.reference_gauss import LEAST, RMS
from thinwire.kernels.simd_gauss import PLAIN, PRODUCTS, SQUARES, STEP

_INFINITE = np.uint32(0x7F800000)
code_1, code_2, code_3, code_4 = simd_gauss.code_1, simd_gauss.code_2, simd_gauss.code_3, simd_gauss.code_4
fit_1, fit_2, fit_3, fit_4 = simd_gauss.fit_1, simd_gauss.fit_2, simd_gauss.fit_3, simd_gauss.fit_4
set_1, set_2, set_3, set_4 = simd_gauss.set_1, simd_gauss.set_2, simd_gauss.set_3, simd_gauss.set_4
add_1, add_2, add_3, add_4 = simd_gauss.add_1, simd_gauss.add_2, simd_gauss.add_3, simd_gauss.add_4
add_squares = simd_gauss.add_squares
sum_of_plain, sum_of_products, sum_of_squares = (
    simd_gauss.sum_of_plain,
    simd_gauss.sum_of_products,
    simd_gauss.sum_of_squares,
)


@inline
def _rms(block: Any, factor: Any, sums: Any) -> Any:
    for i in range(PRODUCTS):
        sums[i] = np.float32(0)
    at = 0
    while at + STEP <= block.size:
        add_squares(block, at, factor, sums)
        at += STEP
    for i in range(at, block.size):
        value = block[i] * factor
        sums[PLAIN + i % 16] += value * value
    return np.sqrt(sum_of_plain(sums) / np.float32(block.size))


@inline
def _code(block: Any, factor: Any, inverse: Any, bits: int, fitted: bool, tables: Any, codes: Any, sums: Any) -> None:
    """Codes of a block; with ``fitted`` also the sums of products and squares. ``tables`` are thresholds, then levels."""
    for i in range(PRODUCTS, SQUARES + 16):
        sums[i] = np.float32(0)
    at, half = 0, 1 << (bits - 1)
    while at + STEP <= block.size:
        if bits == 4:
            if fitted:
                fit_4(block, at, factor, inverse, codes, at, sums)
            else:
                code_4(block, at, factor, inverse, codes, at, sums)
        elif bits == 3:
            if fitted:
                fit_3(block, at, factor, inverse, codes, at, sums)
            else:
                code_3(block, at, factor, inverse, codes, at, sums)
        elif bits == 2:
            if fitted:
                fit_2(block, at, factor, inverse, codes, at, sums)
            else:
                code_2(block, at, factor, inverse, codes, at, sums)
        elif fitted:
            fit_1(block, at, factor, inverse, codes, at, sums)
        else:
            code_1(block, at, factor, inverse, codes, at, sums)
        at += STEP
    for i in range(at, block.size):
        number = abs((block[i] * factor) * inverse)
        index = 0
        for k in range(half - 1):
            index += number >= tables[k]
        level = tables[half - 1 + index]
        sums[PRODUCTS + i % 16] += level * number
        sums[SQUARES + i % 16] += level * level
        codes[i] = np.uint8(index | (half if block.view(np.uint32)[i] >> np.uint32(31) else 0))


@inline
def _scale(block: Any, bits: int, fit: int, tables: Any, codes: Any, sums: Any, single: Any) -> Any:
    """Codes of a block, and its scale as bf16 bits."""
    top = largest_key(block.view(np.uint32), 0, block.size) >> np.uint32(1)
    if top >= _INFINITE:
        codes[:] = np.uint8(0)
        return np.uint32(BF16_NAN)
    exponent = min(max(np.int64(top >> np.uint32(23)) - 127, -126), 126)
    single.view(np.uint32)[0] = np.uint32(127 - exponent) << np.uint32(23)
    single.view(np.uint32)[1] = np.uint32(127 + exponent) << np.uint32(23)
    factor, back = single[0], single[1]
    rms = _rms(block, factor, sums)
    if not rms > np.float32(0):
        codes[:] = np.uint8(0)
        return np.uint32(0)
    inverse, stretch = np.float32(1) / rms, np.float32(1)
    _code(block, factor, inverse, bits, fit != RMS, tables, codes, sums)
    if fit == LEAST:
        stretch = sum_of_products(sums) / sum_of_squares(sums)
        _code(block, factor, inverse * (np.float32(1) / stretch), bits, True, tables, codes, sums)
        stretch = stretch * (sum_of_products(sums) / sum_of_squares(sums))
    elif fit != RMS:
        stretch = np.float32(block.size) / sum_of_products(sums)
    single[0] = (rms * stretch) * back
    pattern = single.view(np.uint32)[0]
    stored = (pattern + np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    stored = min(stored, np.uint32(GAUSS_LARGEST_SCALE))
    if stored < np.uint32(BF16_MIN_NORMAL):
        codes[:] = np.uint8(0)
        return np.uint32(0)
    return stored


@inline
def _values(codes: Any, at: int, end: int, scale: Any, bits: int, tables: Any, out: Any) -> None:
    half = 1 << (bits - 1)
    while at + STEP <= end:
        if bits == 4:
            set_4(codes, at, scale, out, at)
        elif bits == 3:
            set_3(codes, at, scale, out, at)
        elif bits == 2:
            set_2(codes, at, scale, out, at)
        else:
            set_1(codes, at, scale, out, at)
        at += STEP
    for i in range(at, end):
        level = tables[half - 1 + (codes[i] & (half - 1))]
        out[i] = (-level if codes[i] & half else level) * scale


@inline
def _accumulate(codes: Any, at: int, end: int, scale: Any, bits: int, tables: Any, out: Any) -> None:
    half = 1 << (bits - 1)
    while at + STEP <= end:
        if bits == 4:
            add_4(codes, at, scale, out, at)
        elif bits == 3:
            add_3(codes, at, scale, out, at)
        elif bits == 2:
            add_2(codes, at, scale, out, at)
        else:
            add_1(codes, at, scale, out, at)
        at += STEP
    for i in range(at, end):
        level = tables[half - 1 + (codes[i] & (half - 1))]
        out[i] += (-level if codes[i] & half else level) * scale


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, INT, INT, FLOATS, FLOATS)
def gauss_encode(
    x: Any, kind: int, wire: Any, n: int, start: int, stop: int, bits: int, block: int, fit: int, tables: Any, error: Any
) -> None:  # fmt: skip
    """Encode elements [start, stop) of a row; ``start`` is a multiple of the tile. ``error`` may be empty."""
    blocks = (n + block - 1) // block
    packed, halves = wire[2 * blocks :], wire[: 2 * blocks].view(np.uint16)
    scratch = np.empty(TILE, np.uint32)
    buffer, values = np.empty(TILE, np.uint8), np.empty(TILE, np.float32)
    sums, single = np.empty(48, np.float32), np.empty(2, np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        tile = load_tile(x, kind, at, end, scratch)
        for first in range(0, end - at, block):
            last = min(first + block, end - at)
            stored = _scale(tile[first:last], bits, fit, tables, buffer[first:last], sums, single)
            halves[(at + first) // block] = np.uint16(stored)
            if error.size:
                single.view(np.uint32)[0] = stored << np.uint32(16)
                _values(buffer, first, last, single[0], bits, tables, values)
        pack_tile(buffer, end - at, bits, packed, at, n)
        if error.size:
            lost(tile, values, error, at)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, INT, FLOATS, BOOL)
def gauss_decode(wire: Any, out: Any, start: int, stop: int, bits: int, block: int, tables: Any, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``."""
    n = out.size
    blocks = (n + block - 1) // block
    packed, halves = wire[2 * blocks :], wire[: 2 * blocks].view(np.uint16)
    buffer, single = np.empty(TILE, np.uint8), np.empty(1, np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        unpack_tile(buffer, end - at, bits, packed, at, n)
        target = out[at:end]
        for first in range(0, end - at, block):
            last = min(first + block, end - at)
            single.view(np.uint32)[0] = np.uint32(halves[(at + first) // block]) << np.uint32(16)
            if add:
                _accumulate(buffer, first, last, single[0], bits, tables, target)
            else:
                _values(buffer, first, last, single[0], bits, tables, target)
