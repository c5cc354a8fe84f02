"""Numba kernels of ``gaussB`` and ``sign1``; the definition is kernels/reference_gauss.py."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels import simd_gauss
from thinwire.kernels.cpu_tile import load_tile, lost, pack_tile, unpack_tile
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import BF16_MIN_NORMAL, BF16_NAN, GAUSS_LARGEST_SCALE, TILE
from thinwire.kernels.reference_gauss import LEAST, RMS
from thinwire.kernels.simd_gauss import ROW, STEP, fold_largest, fold_smallest, fold_sums, measure

_INFINITE = np.uint32(0xFF000000)
"""The key of infinity: twice its bits."""
_CALM = 50
code_1, code_2, code_3, code_4 = simd_gauss.code_1, simd_gauss.code_2, simd_gauss.code_3, simd_gauss.code_4
sum_1, sum_2, sum_3, sum_4 = simd_gauss.sum_1, simd_gauss.sum_2, simd_gauss.sum_3, simd_gauss.sum_4
fit_1, fit_2, fit_3, fit_4 = simd_gauss.fit_1, simd_gauss.fit_2, simd_gauss.fit_3, simd_gauss.fit_4
set_1, set_2, set_3, set_4 = simd_gauss.set_1, simd_gauss.set_2, simd_gauss.set_3, simd_gauss.set_4
add_1, add_2, add_3, add_4 = simd_gauss.add_1, simd_gauss.add_2, simd_gauss.add_3, simd_gauss.add_4


@inline
def _measure(tile: Any, first: int, last: int, row: int, tops: Any, lows: Any, squares: Any) -> None:
    """The rows of the block [first, last): see :func:`thinwire.kernels.simd_gauss.measure`."""
    steps = (last - first) // STEP
    measure(tile, first, steps, row, tops, lows, squares)
    for i in range(first + steps * STEP, last):
        key, lane = np.uint32(tile.view(np.uint32)[i] << np.uint32(1)), row * ROW + (i - first) % ROW
        tops[lane], lows[lane] = max(tops[lane], key), min(lows[lane], np.uint32(key - np.uint32(1)))
        squares[lane] += tile[i] * tile[i]


@inline
def _wild(top: Any, low: Any) -> bool:
    """Whether squares of a block's numbers as they are could leave the range of normal numbers, scaled or not.

    If none does, every sum of squares is that of the scaled numbers times a power of two: each product and each sum is
    the same real number but for that power, and is rounded at the same place. So such a block need not be scaled first.
    Zeros, whose key less one is the largest of all, are exact either way; a block without a scale may be either.
    """
    exponent = np.int64(top >> np.uint32(24)) - 127
    tiny = np.int64(low) < ((max(exponent, 0) + 127 - 63) << 24)  # |x| and |x| / 2**exponent are to be at least 2**-63
    return top > np.uint32(0) and top < _INFINITE and (abs(exponent) > _CALM or tiny)


@inline
def _power(exponent: Any, single: Any) -> Any:
    """``2**exponent`` as fp32."""
    single.view(np.uint32)[0] = np.uint32(np.uint32(127 + exponent) << np.uint32(23))
    return single[0]


@inline
def _exponent(top: Any) -> Any:
    return min(max(np.int64(top >> np.uint32(24)) - 127, -126), 126)


@inline
def _tame(tile: Any, block: int, blocks: int, work: Any, single: Any, tops: Any, squares: Any, wild: Any) -> None:
    """``work`` is the tile with its wild blocks scaled, and ``squares`` has their rows anew, not folded yet."""
    for row in range(blocks):
        first, last = row * block, min((row + 1) * block, tile.size)
        factor = _power(-_exponent(tops[row]), single) if wild[row] else np.float32(1)
        for i in range(first, last):
            work[i] = tile[i] * factor
        if wild[row]:
            for lane in range(row * ROW, (row + 1) * ROW):
                squares[lane] = np.float32(0)
            for i in range(first, last):
                squares[row * ROW + (i - first) % ROW] += work[i] * work[i]


@inline
def _start(
    tile: Any, block: int, blocks: int, work: Any, single: Any, tops: Any, lows: Any, squares: Any, wild: Any, rms: Any,
    factors: Any,
) -> bool:  # fmt: skip
    """Root mean square of each block, its largest number scaled to [1, 2), and the factor of its numbers to be coded.

    Returns whether these are the numbers of ``work``.
    """
    for row in range(blocks):
        _measure(tile, row * block, min((row + 1) * block, tile.size), row, tops, lows, squares)
    some = False
    for row in range(0, blocks, ROW):
        fold_largest(tops, row)
        fold_smallest(lows, row)
    for row in range(blocks):
        wild[row] = _wild(tops[row], lows[row])
        some |= wild[row]
    if some:
        _tame(tile, block, blocks, work, single, tops, squares, wild)
    for row in range(0, blocks, ROW):
        fold_sums(squares, row)
    for row in range(blocks):
        factor = np.float32(1) if wild[row] else _power(-_exponent(tops[row]), single)
        count = np.float32(min(block, tile.size - row * block))
        rms[row] = np.sqrt((squares[row] * (factor * factor)) / count)
        factors[row] = factor * (np.float32(1) / rms[row])
    return some


@inline
def _code(
    tile: Any, first: int, last: int, factor: Any, row: int, bits: int, fitted: bool, kept: bool, tables: Any, codes: Any,
    products: Any, squares: Any,
) -> None:  # fmt: skip
    """Codes of the block [first, last) times ``factor`` if ``kept``; with ``fitted``, the rows of its sums.

    ``tables`` are thresholds, then levels.
    """
    steps, half = (last - first) // STEP, 1 << (bits - 1)
    if bits == 4:
        if not fitted:
            code_4(tile, first, steps, factor, codes, row, products, squares)
        elif kept:
            fit_4(tile, first, steps, factor, codes, row, products, squares)
        else:
            sum_4(tile, first, steps, factor, codes, row, products, squares)
    elif bits == 3:
        if not fitted:
            code_3(tile, first, steps, factor, codes, row, products, squares)
        elif kept:
            fit_3(tile, first, steps, factor, codes, row, products, squares)
        else:
            sum_3(tile, first, steps, factor, codes, row, products, squares)
    elif bits == 2:
        if not fitted:
            code_2(tile, first, steps, factor, codes, row, products, squares)
        elif kept:
            fit_2(tile, first, steps, factor, codes, row, products, squares)
        else:
            sum_2(tile, first, steps, factor, codes, row, products, squares)
    elif not fitted:
        code_1(tile, first, steps, factor, codes, row, products, squares)
    elif kept:
        fit_1(tile, first, steps, factor, codes, row, products, squares)
    else:
        sum_1(tile, first, steps, factor, codes, row, products, squares)
    for i in range(first + steps * STEP, last):
        number = abs(tile[i] * factor)
        index = 0
        for k in range(half - 1):
            index += number >= tables[k]
        if kept:
            codes[i] = np.uint8(index | (half if tile.view(np.uint32)[i] >> np.uint32(31) else 0))
        if fitted:
            level, lane = tables[half - 1 + index], row * ROW + (i - first) % ROW
            products[lane] += level * number
            squares[lane] += level * level


@inline
def _either(tile: Any, work: Any, scaled: Any) -> Any:
    if scaled:
        return work
    return tile


@inline
def _code_all(
    tile: Any, block: int, blocks: int, factors: Any, bits: int, fitted: bool, kept: bool, tables: Any, codes: Any,
    products: Any, squares: Any,
) -> None:  # fmt: skip
    """:func:`_code` of every block of a tile, with the sums of block i folded to element i."""
    for row in range(blocks):
        first, last = row * block, min((row + 1) * block, tile.size)
        _code(tile, first, last, factors[row], row, bits, fitted, kept, tables, codes, products, squares)
    if fitted:
        for row in range(0, blocks, ROW):
            fold_sums(products, row)
            fold_sums(squares, row)


@inline
def _stored(top: Any, scale: Any, rms: Any, single: Any) -> Any:
    """A block's scale as bf16 bits; 0 where it is too small."""
    if top >= _INFINITE:
        return np.uint32(BF16_NAN)
    single[0] = scale
    pattern = single.view(np.uint32)[0]
    stored = np.uint32((pattern + np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
    stored = min(stored, np.uint32(GAUSS_LARGEST_SCALE))
    return stored if rms > np.float32(0) and stored >= np.uint32(BF16_MIN_NORMAL) else np.uint32(0)


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
    total = (n + block - 1) // block
    packed, halves = wire[2 * total :], wire[: 2 * total].view(np.uint16)
    scratch = np.empty(TILE, np.uint32)
    codes, values, work = np.empty(TILE, np.uint8), np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    most = (TILE // block + ROW - 1) // ROW * ROW
    tops, lows = np.empty(most * ROW, np.uint32), np.empty(most * ROW, np.uint32)
    products, squares = np.empty(most * ROW, np.float32), np.empty(most * ROW, np.float32)
    wild, single = np.empty(most, np.bool_), np.empty(1, np.float32)
    rms, factors, stretch = np.empty(most, np.float32), np.empty(most, np.float32), np.empty(most, np.float32)
    for at in range(start, stop, TILE):
        tile = load_tile(x, kind, at, min(at + TILE, stop), scratch)
        blocks = (tile.size + block - 1) // block
        scaled = _start(tile, block, blocks, work, single, tops, lows, squares, wild, rms, factors)
        source = _either(tile, work[: tile.size], scaled)
        stretch[:] = np.float32(1)
        if fit == LEAST:
            _code_all(source, block, blocks, factors, bits, True, False, tables, codes, products, squares)
            for i in range(blocks):
                stretch[i] = products[i] / squares[i]
                factors[i] = factors[i] * (np.float32(1) / stretch[i])
        if fit == RMS:
            _code_all(source, block, blocks, factors, bits, False, True, tables, codes, products, squares)
        else:
            _code_all(source, block, blocks, factors, bits, True, True, tables, codes, products, squares)
        for i in range(blocks):
            first, last = i * block, min((i + 1) * block, tile.size)
            if fit == LEAST:
                stretch[i] = stretch[i] * (products[i] / squares[i])
            elif fit != RMS:
                stretch[i] = np.float32(last - first) / products[i]
            scale = (rms[i] * stretch[i]) * _power(_exponent(tops[i]), single)
            stored = _stored(tops[i], scale, rms[i], single)
            halves[at // block + i] = np.uint16(stored)
            single.view(np.uint32)[0] = np.uint32(stored << np.uint32(16))
            if not abs(single[0]) > np.float32(0):
                codes[first:last] = np.uint8(0)
            if error.size:
                _values(codes, first, last, single[0], bits, tables, values)
        pack_tile(codes, tile.size, bits, packed, at, n)
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
