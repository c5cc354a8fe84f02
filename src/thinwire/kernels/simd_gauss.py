"""Vector code of the ``gaussB`` kernels, a block of whole steps of 64 elements a call. No bounds are checked.

Sums over a block are left as one row of 16 lanes, and the ``fold`` functions add up the rows of 16 blocks at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from thinwire.kernels import layout
from thinwire.kernels.simd import F32, I8, I32, I64, VECTOR, Emitter, permute_8, shuffles

STEP = 64
ROW = VECTOR
"""Lanes of a row of sums: lane i has elements i, i + 16, ... of its block."""
_WORDS, _FLOATS = ir.VectorType(I32, VECTOR), ir.VectorType(F32, VECTOR)
_GRAIN, _CLAMP = 10 / 3, 2.1


def _repeat(e: Emitter, steps: Any, totals: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """``totals = body(at, totals)`` for ``at`` = 0, STEP, ..., ``steps`` times."""
    places = [cgutils.alloca_once_value(e.b, total) for total in totals]  # registers, once LLVM has promoted them
    with cgutils.for_range(e.b, steps) as loop:
        values = body(e.b.mul(loop.index, ir.Constant(I64, STEP)), [e.b.load(place) for place in places])
        for place, value in zip(places, values, strict=True):
            e.b.store(value, place)
    return [e.b.load(place) for place in places]


def _row(e: Emitter, argument: int, index: Any) -> Any:
    return e.pointer(argument, e.b.mul(index, ir.Constant(I64, ROW)), e.context.get_data_type(e.types[argument].dtype))


@intrinsic
def measure(typingctx: Any, x: Any, at: Any, steps: Any, row: Any, tops: Any, lows: Any, squares: Any) -> Any:
    """Rows of sums of squares, and of the largest and smallest keys, of a block.

    A key is twice the bits of ``|x|``; in ``lows`` it is less one, so that zero is larger than all others.
    """

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, one = e.pointer(0, args[1], F32), e.constant(I32, 1, VECTOR)

        def body(at: Any, totals: list[Any]) -> list[Any]:
            top, low, total = totals
            place = b.gep(source, [at])
            for k in range(0, STEP, VECTOR):
                e.prefetch_next_tile(place, F32, k)
                value = e.load(place, F32, VECTOR, k)
                pattern = b.bitcast(value, _WORDS)
                key = b.add(pattern, pattern)
                top, low = e.binary("umax", top, key), e.binary("umin", low, b.sub(key, one))
                total = b.fadd(total, b.fmul(value, value))
            return [top, low, total]

        start = [e.constant(I32, 0, VECTOR), e.constant(I32, 0xFFFFFFFF, VECTOR), e.constant(F32, 0.0, VECTOR)]
        for index, value in enumerate(_repeat(e, args[2], start, body)):
            e.store(value, _row(e, 4 + index, args[3]), value.type.element)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.int64, types.int64, tops, lows, squares), code


def _make_fold(element: Any, join: Callable[[Emitter, Any, Any], Any]) -> Any:
    @intrinsic
    def fold(typingctx: Any, rows: Any, first: Any) -> Any:
        """Lanes of 16 rows from row ``first`` on joined neighbour by neighbour; row i's one number goes to element i."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source = e.pointer(0, builder.mul(args[1], ir.Constant(I64, ROW)), element)
            level = [e.load(source, element, VECTOR, ROW * i) for i in range(VECTOR)]
            while len(level) > 1:
                level = [_neighbours(e, a, b, join) for a, b in zip(level[::2], level[1::2], strict=True)]
            e.store(level[0], e.pointer(0, args[1], element), element)
            return context.get_dummy_value()

        return types.none(rows, types.int64), code

    return fold


def _neighbours(e: Emitter, a: Any, b: Any, join: Callable[[Emitter, Any, Any], Any]) -> Any:
    """Neighbouring lanes joined: those of ``a`` in the lower half, those of ``b`` in the upper."""
    even, odd = (e.b.shuffle_vector(a, b, ir.Constant(_WORDS, list(range(k, 2 * VECTOR, 2)))) for k in (0, 1))
    return join(e, even, odd)


class _Book:
    """The codebook of ``bits``: indices of magnitudes, and levels of indices, as vector code."""

    def __init__(self, e: Emitter, bits: int) -> None:
        self.e, self.bits = e, bits
        self.levels: list[float] = [float(level) for level in layout.GAUSS_LEVELS[bits]]

    def place(self, pattern: Any) -> tuple[Any, Any]:
        """fp32 bits -> index, in the low ``bits - 1`` bits, and the level as fp32."""
        b, e = self.e.b, self.e
        magnitude = b.and_(pattern, e.constant(I32, 0x7FFFFFFF, VECTOR))
        if self.bits == 4 and shuffles():
            index = self._by_table(magnitude)
            return index, permute_8(e, self.levels, index)
        index, level = e.constant(I32, 0, VECTOR), e.constant(F32, self.levels[0], VECTOR)
        number = b.bitcast(magnitude, _FLOATS)
        for threshold, upper in zip(layout.GAUSS_THRESHOLDS[self.bits], self.levels[1:], strict=True):
            # As floats: LLVM takes two instructions for bits that it knows to be positive.
            above = b.fcmp_ordered(">=", number, e.constant(F32, float(threshold), VECTOR))
            index = b.sub(index, b.sext(above, _WORDS))
            level = b.select(above, e.constant(F32, upper, VECTOR), level)
        return index, level

    def _by_table(self, magnitude: Any) -> Any:
        """Of 4 bits: between k - 1/2 and k + 1/2 grains lies no threshold but that below level k, so one comparison does."""
        b, e = self.e.b, self.e
        clamp = int(np.float32(_CLAMP).view(np.uint32))
        small = b.bitcast(e.binary("smin", magnitude, e.constant(I32, clamp, VECTOR)), _FLOATS)
        grains = e.nearest_bits(b.fmul(small, e.constant(F32, _GRAIN, VECTOR)))
        thresholds = [0.0, *(float(threshold) for threshold in layout.GAUSS_THRESHOLDS[4])]
        below = b.fcmp_ordered("<", b.bitcast(magnitude, _FLOATS), permute_8(e, thresholds, grains))
        return b.add(grains, b.sext(below, _WORDS))

    def value(self, codes: Any) -> Any:
        """Codes as 32-bit integers -> signed levels."""
        b, e, half = self.e.b, self.e, len(self.levels)
        if shuffles() and half < 8:
            signed = [*self.levels, *(-level for level in self.levels)]
            return permute_8(e, signed * (4 // half), codes)
        sign = b.shl(b.lshr(codes, e.constant(I32, self.bits - 1, VECTOR)), e.constant(I32, 31, VECTOR))
        level = permute_8(e, self.levels, codes) if shuffles() else self._chosen(codes)
        return b.bitcast(b.or_(b.bitcast(level, _WORDS), sign), _FLOATS)

    def _chosen(self, index: Any) -> Any:
        """The levels of indices by a tree of selections over the index's bits."""
        values = [self.e.constant(F32, level, VECTOR) for level in self.levels]
        for bit in range(self.bits - 1):
            one = self.e.constant(I32, 1 << bit, VECTOR)
            odd = self.e.b.icmp_unsigned("==", self.e.b.and_(index, one), one)
            values = [self.e.b.select(odd, b, a) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]


def _make_code(bits: int, fitted: bool, kept: bool) -> Any:
    @intrinsic
    def code_steps(
        typingctx: Any, x: Any, at: Any, steps: Any, factor: Any, codes: Any, row: Any, products: Any, squares: Any
    ) -> Any:  # fmt: skip
        """Of numbers ``x * factor``: the codes if ``kept``; with ``fitted``, rows of sums of level times |number| and level^2."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(context, builder, sig, args), builder
            source, target = e.pointer(0, args[1], F32), e.pointer(4, args[1], I8)
            factor, book = e.splat(args[3], VECTOR), _Book(e, bits)

            def body(at: Any, totals: list[Any]) -> list[Any]:
                place, output = b.gep(source, [at]), b.gep(target, [at])
                for k in range(0, STEP, VECTOR):
                    pattern = b.bitcast(b.fmul(e.load(place, F32, VECTOR, k), factor), _WORDS)
                    index, level = book.place(pattern)
                    if kept:
                        sign = b.lshr(pattern, e.constant(I32, 32 - bits, VECTOR))
                        sign = b.and_(sign, e.constant(I32, 1 << (bits - 1), VECTOR))
                        e.store(b.trunc(b.or_(index, sign), ir.VectorType(I8, VECTOR)), output, I8, k)
                    if fitted:
                        number = b.bitcast(b.and_(pattern, e.constant(I32, 0x7FFFFFFF, VECTOR)), _FLOATS)
                        pairs = zip(totals, (number, level), strict=True)
                        totals = [b.fadd(total, b.fmul(level, by)) for total, by in pairs]
                return totals

            start = [e.constant(F32, 0.0, VECTOR)] * (2 if fitted else 0)
            for index, value in enumerate(_repeat(e, args[2], start, body)):
                e.store(value, _row(e, 6 + index, args[5]), F32)
            return context.get_dummy_value()

        places = (types.int64, types.int64, types.float32)
        return types.none(x, *places, codes, types.int64, products, squares), code

    return code_steps


def _make_values(bits: int, add: bool) -> Any:
    @intrinsic
    def values_step(typingctx: Any, codes: Any, codes_at: Any, scale: Any, out: Any, at: Any) -> Any:
        """``out = level(code) * scale``, or ``out +=`` that, of STEP elements."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(context, builder, sig, args), builder
            source, target = e.pointer(0, args[1], I8), e.pointer(3, args[4], F32)
            scale, book = e.splat(args[2], VECTOR), _Book(e, bits)
            for k in range(0, STEP, VECTOR):
                e.prefetch_next_tile(target, F32, k, write=True)
                value = b.fmul(book.value(b.zext(e.load(source, I8, VECTOR, k), _WORDS)), scale)
                value = b.fadd(e.load(target, F32, VECTOR, k), value) if add else value
                e.store(value, target, F32, k)
            return context.get_dummy_value()

        return types.none(codes, types.int64, types.float32, out, types.int64), code

    return values_step


fold_largest = _make_fold(I32, lambda e, a, b: e.binary("umax", a, b))
fold_smallest = _make_fold(I32, lambda e, a, b: e.binary("umin", a, b))
fold_sums = _make_fold(F32, lambda e, a, b: e.b.fadd(a, b))
code_1, code_2, code_3, code_4 = (_make_code(bits, fitted=False, kept=True) for bits in (1, 2, 3, 4))
sum_1, sum_2, sum_3, sum_4 = (_make_code(bits, fitted=True, kept=False) for bits in (1, 2, 3, 4))
fit_1, fit_2, fit_3, fit_4 = (_make_code(bits, fitted=True, kept=True) for bits in (1, 2, 3, 4))
set_1, set_2, set_3, set_4 = (_make_values(bits, add=False) for bits in (1, 2, 3, 4))
add_1, add_2, add_3, add_4 = (_make_values(bits, add=True) for bits in (1, 2, 3, 4))
