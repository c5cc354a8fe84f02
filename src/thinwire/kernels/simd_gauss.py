"""Vector code of the ``gaussB`` kernels, 64 elements a call. No bounds are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels import layout
from thinwire.kernels.simd import F32, I8, I32, I64, VECTOR, Emitter

STEP = 64
PLAIN, PRODUCTS, SQUARES = 0, 16, 32
"""Where in an array of 48 sums the lanes of x^2, of level times number and of squared levels lie."""


@intrinsic
def add_squares(typingctx: Any, x: Any, at: Any, factor: Any, sums: Any) -> Any:
    """Add ``(x * factor)^2`` to the first 16 of ``sums``."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        source, target = e.pointer(0, args[1], F32), e.pointer(3, ir.Constant(I64, PLAIN), F32)
        total, factor = e.load(target, F32, VECTOR), e.splat(args[2], VECTOR)
        for k in range(0, STEP, VECTOR):
            e.prefetch_next_tile(source, F32, k)
            value = builder.fmul(e.load(source, F32, VECTOR, k), factor)
            total = builder.fadd(total, builder.fmul(value, value))
        e.store(total, target, F32)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.float32, sums), code


def _make_sum(first: int) -> Any:
    @intrinsic
    def sum_of(typingctx: Any, sums: Any) -> Any:
        """16 lanes of ``sums`` added neighbour by neighbour: float32."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            value, lanes = e.load(e.pointer(0, ir.Constant(I64, first), F32), F32, VECTOR), VECTOR
            while lanes > 1:
                lanes //= 2
                picks = [ir.Constant(ir.VectorType(I32, lanes), list(range(k, 2 * lanes, 2))) for k in (0, 1)]
                even, odd = (builder.shuffle_vector(value, value, pick) for pick in picks)
                value = builder.fadd(even, odd)
            return builder.extract_element(value, ir.Constant(I32, 0))

        return types.float32(sums), code

    return sum_of


def _level(e: Emitter, index: Any, bits: int) -> Any:
    """The levels of VECTOR indices, by a tree of selections over the index's bits."""
    values = [e.constant(F32, float(level), VECTOR) for level in layout.GAUSS_LEVELS[bits]]
    for bit in range(bits - 1):
        one = e.constant(I32, 1 << bit, VECTOR)
        odd = e.b.icmp_unsigned("==", e.b.and_(index, one), one)
        values = [e.b.select(odd, b, a) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _make_code(bits: int, fitted: bool) -> Any:
    def emit(e: Emitter, x: Any, factor: Any, inverse: Any, codes: Any, sums: Any) -> None:
        b, wide = e.b, ir.VectorType(I32, VECTOR)
        products, squares = e.load(sums, F32, VECTOR, PRODUCTS), e.load(sums, F32, VECTOR, SQUARES)
        for k in range(0, STEP, VECTOR):
            pattern = b.bitcast(b.fmul(b.fmul(e.load(x, F32, VECTOR, k), factor), inverse), wide)
            sign = b.lshr(pattern, e.constant(I32, 31, VECTOR))
            magnitude = b.and_(pattern, e.constant(I32, 0x7FFFFFFF, VECTOR))
            index = e.constant(I32, 0, VECTOR)
            # Numbers that are not negative compare as their bits do.
            for threshold in layout.GAUSS_THRESHOLDS[bits].view(np.uint32):
                above = b.icmp_signed(">=", magnitude, e.constant(I32, int(threshold), VECTOR))
                index = b.sub(index, b.sext(above, wide))
            if fitted:
                level, number = _level(e, index, bits), b.bitcast(magnitude, ir.VectorType(F32, VECTOR))
                products = b.fadd(products, b.fmul(level, number))
                squares = b.fadd(squares, b.fmul(level, level))
            code = b.or_(index, b.shl(sign, e.constant(I32, bits - 1, VECTOR)))
            e.store(b.trunc(code, ir.VectorType(I8, VECTOR)), codes, I8, k)
        if fitted:
            e.store(products, sums, F32, PRODUCTS)
            e.store(squares, sums, F32, SQUARES)

    @intrinsic
    def code_step(typingctx: Any, x: Any, at: Any, factor: Any, inverse: Any, codes: Any, codes_at: Any, sums: Any) -> Any:
        """Codes of STEP numbers ``x * factor * inverse``; with ``fitted``, their sums of products and squares too."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            factor, inverse = e.splat(args[2], VECTOR), e.splat(args[3], VECTOR)
            target, total = e.pointer(4, args[5], I8), e.pointer(6, ir.Constant(I64, 0), F32)
            emit(e, e.pointer(0, args[1], F32), factor, inverse, target, total)
            return context.get_dummy_value()

        return types.none(x, types.int64, types.float32, types.float32, codes, types.int64, sums), code

    return code_step


def _make_values(bits: int, add: bool) -> Any:
    @intrinsic
    def values_step(typingctx: Any, codes: Any, codes_at: Any, scale: Any, out: Any, at: Any) -> Any:
        """``out = level(code) * scale``, or ``out +=`` that."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(context, builder, sig, args), builder
            source, target = e.pointer(0, args[1], I8), e.pointer(3, args[4], F32)
            wide, floats = ir.VectorType(I32, VECTOR), ir.VectorType(F32, VECTOR)
            scale = e.splat(args[2], VECTOR)
            for k in range(0, STEP, VECTOR):
                e.prefetch_next_tile(target, F32, k, write=True)
                codes = b.zext(e.load(source, I8, VECTOR, k), wide)
                sign = b.shl(b.lshr(codes, e.constant(I32, bits - 1, VECTOR)), e.constant(I32, 31, VECTOR))
                level = b.bitcast(b.or_(b.bitcast(_level(e, codes, bits), wide), sign), floats)
                value = b.fmul(level, scale)
                value = b.fadd(e.load(target, F32, VECTOR, k), value) if add else value
                e.store(value, target, F32, k)
            return context.get_dummy_value()

        return types.none(codes, types.int64, types.float32, out, types.int64), code

    return values_step


sum_of_plain, sum_of_products, sum_of_squares = (_make_sum(first) for first in (PLAIN, PRODUCTS, SQUARES))
code_1, code_2, code_3, code_4 = (_make_code(bits, fitted=False) for bits in (1, 2, 3, 4))
fit_1, fit_2, fit_3, fit_4 = (_make_code(bits, fitted=True) for bits in (1, 2, 3, 4))
set_1, set_2, set_3, set_4 = (_make_values(bits, add=False) for bits in (1, 2, 3, 4))
add_1, add_2, add_3, add_4 = (_make_values(bits, add=True) for bits in (1, 2, 3, 4))
