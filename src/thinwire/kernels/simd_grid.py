"""Vector code of ``grid``. Offsets are in elements; nothing checks bounds."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels.simd import F32, I8, I32, I64, VECTOR, Emitter
from thinwire.kernels.simd_rng import emit_dither, emit_drawn, numbers_from

SPAN, PART = 128, 32
_FLOATS, _WORDS = ir.VectorType(F32, VECTOR), ir.VectorType(I32, VECTOR)


@intrinsic
def add_squares(typingctx: Any, x: Any, at: Any, factor: Any, sums: Any) -> Any:
    """Adds the squares of ``x * factor`` of SPAN elements to VECTOR sums, each element to the sum of its lane."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        source, target = e.pointer(0, args[1], F32), e.pointer(3, ir.Constant(I64, 0), F32)
        factor, total = e.splat(args[2], VECTOR), e.load(target, F32, VECTOR)
        for k in range(0, SPAN, VECTOR):
            value = builder.fmul(e.load(source, F32, VECTOR, k), factor)
            total = builder.fadd(total, builder.fmul(value, value))
        e.store(total, target, F32)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.float32, sums), code


@intrinsic
def draw_levels(
    typingctx: Any, x: Any, at: Any, inverse: Any, shrink: Any, first: Any, codes: Any, number: Any, k0: Any, k1: Any
) -> Any:  # fmt: skip
    """Codes of PART elements with dither; ``first`` is what 1 / (1 - shrink) is in fp32, ``number`` the first element's."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], F32), e.pointer(5, args[1], I8)
        factor, shrink, first, low, high = (e.splat(args[k], VECTOR) for k in (2, 3, 4, 7, 8))
        signs, middle = e.constant(I32, 0x80000000, VECTOR), e.constant(I32, 128, VECTOR)
        for k in range(0, PART, VECTOR):
            e.prefetch_next_tile(source, F32, k)
            e.prefetch_next_tile(target, I8, k, write=True)
            exact = b.bitcast(b.fmul(e.load(source, F32, VECTOR, k), factor), _WORDS)
            magnitude = b.bitcast(b.and_(exact, b.not_(signs)), _FLOATS)
            near, far = b.fmul(magnitude, first), b.fadd(magnitude, shrink)
            steps = b.bitcast(b.select(b.fcmp_ordered("<", near, far), near, far), _WORDS)
            steps = b.bitcast(b.or_(steps, b.and_(exact, signs)), _FLOATS)
            value = emit_drawn(e, steps, emit_dither(e, numbers_from(e, args[6], k), low, high), middle)
            e.store(b.trunc(value, ir.VectorType(I8, VECTOR)), target, I8, k)
        return context.get_dummy_value()

    real, number = types.float32, types.uint32
    return types.none(x, types.int64, real, real, real, codes, number, number, number), code


def _make_restore(add: bool) -> Any:
    @intrinsic
    def restore(typingctx: Any, codes: Any, codes_at: Any, scale: Any, shrink: Any, out: Any, at: Any) -> Any:
        """``out = (k - shrink * sign(k)) * scale`` of SPAN elements with ``k = code - 128``, or ``out +=`` that."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(context, builder, sig, args), builder
            source, target = e.pointer(0, args[1], I8), e.pointer(4, args[5], F32)
            scale, shrink = e.splat(args[2], VECTOR), e.splat(args[3], VECTOR)
            one = e.constant(I32, 1, VECTOR)
            for i in range(0, SPAN, VECTOR):
                e.prefetch_next_tile(target, F32, i, write=True)
                k = b.sub(b.zext(e.load(source, I8, VECTOR, i), _WORDS), e.constant(I32, 128, VECTOR))
                sign = e.binary("smax", e.binary("smin", k, one), b.neg(one))
                value = b.fsub(b.sitofp(k, _FLOATS), b.fmul(b.sitofp(sign, _FLOATS), shrink))
                value = b.fmul(value, scale)
                e.store(b.fadd(e.load(target, F32, VECTOR, i), value) if add else value, target, F32, i)
            return context.get_dummy_value()

        return types.none(codes, types.int64, types.float32, types.float32, out, types.int64), code

    return restore


set_levels, add_levels = _make_restore(add=False), _make_restore(add=True)
