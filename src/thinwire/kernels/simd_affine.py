"""Vector code of the ``minmaxB`` and ``affineB`` kernels. Every function takes element offsets and checks no bounds.

Order keys are fp32 bits as signed integers that compare as the numbers do; minima of floats themselves do not
vectorize, since NaN has no order.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels.simd import F32, F64, I8, I16, I32, I64, VECTOR, Emitter
from thinwire.kernels.simd_rng import emit_dither, numbers_from

WIDE = ir.VectorType(F64, VECTOR)
LONG = 512


@intrinsic
def float_of_bits(typingctx: Any, pattern: Any) -> Any:
    """int32 bits -> the fp32 number that they are."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], F32)

    return types.float32(types.int32), code


def _order(e: Emitter, patterns: Any) -> Any:
    sign = e.b.ashr(patterns, e.constant(I32, 31, VECTOR))
    return e.b.xor(patterns, e.b.and_(sign, e.constant(I32, 0x7FFFFFFF, VECTOR)))


@intrinsic
def widen_range(typingctx: Any, x: Any, at: Any, extremes: Any) -> Any:
    """Take LONG elements into ``extremes``: VECTOR largest order keys, then VECTOR smallest. No sum across lanes, one read."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        source, target = e.pointer(0, args[1], I32), e.pointer(2, ir.Constant(I64, 0), I32)
        highest, lowest = e.load(target, I32, VECTOR), e.load(target, I32, VECTOR, VECTOR)
        for k in range(0, LONG, VECTOR):
            e.prefetch_next_tile(source, I32, k)
            key = _order(e, e.load(source, I32, VECTOR, k))
            highest, lowest = e.binary("smax", highest, key), e.binary("smin", lowest, key)
        e.store(highest, target, I32)
        e.store(lowest, target, I32, VECTOR)
        return context.get_dummy_value()

    return types.none(x, types.int64, extremes), code


def _make_extreme_key(name: str, lanes: int) -> Any:
    @intrinsic
    def extreme_key(typingctx: Any, x: Any, at: Any) -> Any:
        """The largest (``smax``) or smallest (``smin``) order key of ``lanes`` elements: int32."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source = e.pointer(0, args[1], I32)
            return e.reduce(name, [_order(e, e.load(source, I32, VECTOR, k)) for k in range(0, lanes, VECTOR)])

        return types.int32(x, types.int64), code

    return extreme_key


def _element(codes: Any) -> Any:
    """The LLVM type of an array of codes: bytes or 16-bit integers."""
    return I8 if codes.dtype.bitwidth == 8 else I16


@intrinsic
def to_codes(typingctx: Any, x: Any, at: Any, low: Any, factor: Any, codes: Any, codes_at: Any) -> Any:
    """``codes = round((x - low) * factor)`` in fp64 of LANES elements."""
    element = _element(codes)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], F32), e.pointer(4, args[5], element)
        low, factor = e.splat(args[2], VECTOR), e.splat(args[3], VECTOR)
        for k in range(0, LANES, VECTOR):
            e.prefetch_next_tile(source, F32, k)
            e.prefetch_next_tile(target, element, k, write=True)
            value = b.fpext(e.load(source, F32, VECTOR, k), WIDE)
            steps = e.nearest(b.fmul(b.fsub(value, low), factor))
            e.store(b.trunc(steps, ir.VectorType(element, VECTOR)), target, element, k)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.float64, types.float64, codes, types.int64), code


@intrinsic
def to_steps(
    typingctx: Any, x: Any, at: Any, inverse: Any, lowest: Any, highest: Any, zero: Any, codes: Any, codes_at: Any
) -> Any:  # fmt: skip
    """``codes = round(clip(x, lowest, highest) * inverse) + zero`` of LANES elements, as bytes; the product is fp64."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], F32), e.pointer(6, args[7], I8)
        inverse, lowest, highest = (e.splat(number, VECTOR) for number in args[2:5])
        zero = e.splat(args[5], VECTOR)
        for k in range(0, LANES, VECTOR):
            e.prefetch_next_tile(source, F32, k)
            e.prefetch_next_tile(target, I8, k, write=True)
            value = e.load(source, F32, VECTOR, k)
            value = b.select(b.fcmp_ordered(">", lowest, value), lowest, value)
            value = b.select(b.fcmp_ordered("<", highest, value), highest, value)
            steps = e.nearest(b.fmul(b.fpext(value, WIDE), inverse))
            e.store(b.add(b.trunc(steps, ir.VectorType(I8, VECTOR)), zero), target, I8, k)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.float64, types.float32, types.float32, types.uint8, codes, types.int64), code


@intrinsic
def draw_codes(
    typingctx: Any, x: Any, at: Any, low: Any, factor: Any, codes: Any, codes_at: Any, number: Any, k0: Any, k1: Any
) -> Any:  # fmt: skip
    """As :func:`to_codes` with dither before rounding; ``number`` is the first element's."""
    element = _element(codes)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], F32), e.pointer(4, args[5], element)
        low, factor, first, second = (e.splat(args[k], VECTOR) for k in (2, 3, 7, 8))
        for k in range(0, LANES, VECTOR):
            e.prefetch_next_tile(source, F32, k)
            e.prefetch_next_tile(target, element, k, write=True)
            noise = b.fpext(emit_dither(e, numbers_from(e, args[6], k), first, second), WIDE)
            value = b.fpext(e.load(source, F32, VECTOR, k), WIDE)
            steps = e.nearest(b.fadd(b.fmul(b.fsub(value, low), factor), noise))
            e.store(b.trunc(steps, ir.VectorType(element, VECTOR)), target, element, k)
        return context.get_dummy_value()

    number = types.uint32
    return types.none(x, types.int64, types.float64, types.float64, codes, types.int64, number, number, number), code


@intrinsic
def draw_steps(
    typingctx: Any, x: Any, at: Any, inverse: Any, lowest: Any, highest: Any, zero: Any, codes: Any, codes_at: Any,
    number: Any, k0: Any, k1: Any,
) -> Any:  # fmt: skip
    """``codes = clip(round(x * inverse + dither), lowest, highest) + zero`` of LANES elements, as bytes; limits are int32."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], F32), e.pointer(6, args[7], I8)
        inverse, lowest, highest, zero, first, second = (e.splat(args[k], VECTOR) for k in (2, 3, 4, 5, 9, 10))
        for k in range(0, LANES, VECTOR):
            e.prefetch_next_tile(source, F32, k)
            e.prefetch_next_tile(target, I8, k, write=True)
            noise = b.fpext(emit_dither(e, numbers_from(e, args[8], k), first, second), WIDE)
            value = b.fpext(e.load(source, F32, VECTOR, k), WIDE)
            steps = b.trunc(e.nearest(b.fadd(b.fmul(value, inverse), noise)), ir.VectorType(I32, VECTOR))
            steps = e.binary("smin", e.binary("smax", steps, lowest), highest)
            e.store(b.add(b.trunc(steps, ir.VectorType(I8, VECTOR)), zero), target, I8, k)
        return context.get_dummy_value()

    number, limit = types.uint32, types.int32
    return types.none(
        x, types.int64, types.float64, limit, limit, types.uint8, codes, types.int64, number, number, number
    ), code  # fmt: skip


def _make_from_codes(add: bool) -> Any:
    @intrinsic
    def from_codes(typingctx: Any, codes: Any, codes_at: Any, low: Any, step: Any, out: Any, at: Any) -> Any:
        """``out = low + codes * step`` in fp64, rounded once to fp32, of LANES elements; or ``out +=`` that."""
        element = _element(codes)

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(context, builder, sig, args), builder
            source, target = e.pointer(0, args[1], element), e.pointer(4, args[5], F32)
            low, step = e.splat(args[2], VECTOR), e.splat(args[3], VECTOR)
            for k in range(0, LANES, VECTOR):
                e.prefetch_next_tile(target, F32, k, write=True)
                wide = b.zext(e.load(source, element, VECTOR, k), ir.VectorType(I32, VECTOR))
                value = b.fadd(low, b.fmul(b.sitofp(wide, WIDE), step))
                value = b.fptrunc(value, ir.VectorType(F32, VECTOR))
                value = b.fadd(e.load(target, F32, VECTOR, k), value) if add else value
                e.store(value, target, F32, k)
            return context.get_dummy_value()

        return types.none(codes, types.int64, types.float64, types.float64, out, types.int64), code

    return from_codes


LANES = 64
highest_key, lowest_key = _make_extreme_key("smax", LANES), _make_extreme_key("smin", LANES)
from_codes, add_codes = _make_from_codes(add=False), _make_from_codes(add=True)
