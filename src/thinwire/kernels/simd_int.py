"""Vector code of the ``intB`` kernels and of packing. Every function takes element offsets and checks no bounds.

``at`` arguments are elements from the start of their array; ``half`` is ``2**(bits-1)``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels import layout
from thinwire.kernels.layout import UNIT
from thinwire.kernels.simd import F32, I8, I32, VECTOR, Emitter


def _make_largest_key(lanes: int) -> Any:
    @intrinsic
    def largest_key(typingctx: Any, x: Any, at: Any) -> Any:
        """The largest magnitude key (fp32 bits rotated left by one) of ``lanes`` elements of ``x``: uint32."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source = e.pointer(0, args[1], I32)
            one = e.constant(I32, 1, VECTOR)
            vectors = [e.load(source, I32, VECTOR, k) for k in range(0, lanes, VECTOR)]
            return e.reduce("umax", [e.call("fshl.v16i32", v.type, v, v, one) for v in vectors])

        return types.uint32(x, types.int64), code

    return largest_key


@intrinsic
def largest_keys_16x32(typingctx: Any, x: Any, at: Any, keys: Any, keys_at: Any) -> Any:
    """The largest keys of 16 blocks of 32 elements each. A tree of shuffles leaves block i's in lane i."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        source = e.pointer(0, args[1], I32)
        one = e.constant(I32, 1, VECTOR)

        def key(block: int, part: int) -> Any:
            v = e.load(source, I32, VECTOR, 32 * block + VECTOR * part)
            return e.call("fshl.v16i32", v.type, v, v, one)

        level = [e.binary("umax", key(i, 0), key(i, 1)) for i in range(VECTOR)]
        while len(level) > 1:
            level = [_fold(e, a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
        e.store(level[0], e.pointer(2, args[3], I32), I32)
        return context.get_dummy_value()

    return types.none(x, types.int64, keys, types.int64), code


def _fold(e: Emitter, a: Any, b: Any) -> Any:
    """Maxima of neighbouring lanes: those of ``a`` in the lower half, those of ``b`` in the upper."""
    lanes = ir.VectorType(I32, VECTOR)
    even = ir.Constant(lanes, list(range(0, 2 * VECTOR, 2)))
    odd = ir.Constant(lanes, list(range(1, 2 * VECTOR, 2)))
    return e.binary("umax", e.b.shuffle_vector(a, b, even), e.b.shuffle_vector(a, b, odd))


def _make_log_scales(thresholds: Any) -> Any:
    @intrinsic
    def log_scales(
        typingctx: Any, keys: Any, at: Any, maximum: Any, shrink: Any, stored: Any, scales: Any
    ) -> Any:  # fmt: skip
        """Bytes and values of the log scales of 16 blocks, relative to ``maximum``; ``shrink`` is ``bits - 1``."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(context, builder, sig, args), builder
            wide, floats = ir.VectorType(I32, VECTOR), ir.VectorType(F32, VECTOR)

            def const(value: int) -> Any:
                return e.constant(I32, value, VECTOR)

            key = e.load(e.pointer(0, args[1], I32), I32, VECTOR)
            finite = b.icmp_unsigned("<", key, const(layout.NONFINITE_KEY))
            magnitude = b.select(finite, b.lshr(key, const(1)), const(0))
            ratio = b.bitcast(b.fdiv(b.bitcast(magnitude, floats), e.splat(args[2], VECTOR)), wide)
            mantissa = b.and_(ratio, const(0x7FFFFF))
            steps = b.shl(b.sub(b.lshr(ratio, const(23)), const(127)), const(3))
            for threshold in thresholds:
                steps = b.sub(steps, b.sext(b.icmp_unsigned(">=", mantissa, const(int(threshold))), wide))
            k = e.binary("smin", e.binary("smax", b.sub(const(0), steps), const(0)), const(layout.LOG_LAST))
            factor = const(0)
            for i, pattern in enumerate(layout.log_table(1)[: layout.LOG_STEPS].view("u4")):
                factor = b.select(b.icmp_unsigned("==", b.and_(k, const(7)), const(i)), const(int(pattern)), factor)
            octaves = b.add(b.lshr(k, const(3)), e.splat(args[3], VECTOR))
            factor = b.bitcast(b.sub(factor, b.shl(octaves, const(23))), floats)
            scale = b.bitcast(b.fmul(factor, e.splat(args[2], VECTOR)), wide)
            positive = b.icmp_unsigned("==", b.and_(key, const(1)), const(0))
            k = b.select(positive, b.or_(k, const(layout.LOG_SIGN)), k)
            zero = b.icmp_unsigned("<", scale, const(0x00800000))
            scale = b.select(positive, b.or_(scale, const(0x80000000)), scale)
            k = b.select(finite, b.select(zero, const(layout.LOG_ZERO), k), const(layout.LOG_NONFINITE))
            scale = b.select(finite, b.select(zero, const(0), scale), const(0x7FC00000))
            e.store(b.trunc(k, ir.VectorType(I8, VECTOR)), e.pointer(4, args[1], I8), I8)
            e.store(b.bitcast(scale, floats), e.pointer(5, args[1], F32), F32)
            return context.get_dummy_value()

        return types.none(keys, types.int64, types.float32, types.int32, stored, scales), code

    return log_scales


def _quantize_lanes(e: Emitter, source: Any, target: Any, lanes: int, factor: Any, offset: Any) -> None:
    """The codes of ``lanes`` elements from ``source`` on, as bytes from ``target`` on."""
    b = e.b
    zero = e.constant(I32, 0, VECTOR)
    top = b.sub(b.add(offset, offset), e.constant(I32, 1, VECTOR))
    for k in range(0, lanes, VECTOR):
        e.prefetch_next_tile(source, F32, k)
        codes = b.add(e.nearest(b.fmul(e.load(source, F32, VECTOR, k), factor)), offset)
        codes = e.binary("smax", e.binary("smin", codes, top), zero)
        e.store(b.trunc(codes, ir.VectorType(I8, VECTOR)), target, I8, k)


def _make_quantize(lanes: int) -> Any:
    @intrinsic
    def quantize(typingctx: Any, x: Any, at: Any, inverse: Any, half: Any, codes: Any, codes_at: Any) -> Any:
        """``codes = clip(round(x * inverse), -half, half - 1) + half`` of ``lanes`` elements, as bytes."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source, target = e.pointer(0, args[1], F32), e.pointer(4, args[5], I8)
            for k in range(0, lanes, VECTOR):
                e.prefetch_next_tile(target, I8, k, write=True)
            _quantize_lanes(e, source, target, lanes, e.splat(args[2], VECTOR), e.splat(args[3], VECTOR))
            return context.get_dummy_value()

        return types.none(x, types.int64, types.float32, types.int32, codes, types.int64), code

    return quantize


@intrinsic
def quantize_16x32(typingctx: Any, x: Any, at: Any, scales: Any, scales_at: Any, half: Any, codes: Any) -> Any:
    """Codes of 16 blocks of 32 elements each, all finite; a scale of zero gives the code of zero."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], F32), e.pointer(5, args[1], I8)
        scale = e.load(e.pointer(2, args[3], F32), F32, VECTOR)
        zero = e.constant(F32, 0.0, VECTOR)
        inverse = b.select(b.fcmp_ordered("==", scale, zero), zero, b.fdiv(e.constant(F32, 1.0, VECTOR), scale))
        for i in range(VECTOR):
            lane = ir.Constant(ir.VectorType(I32, VECTOR), [i] * VECTOR)
            part, place = (b.gep(p, [ir.Constant(ir.IntType(64), 32 * i)]) for p in (source, target))
            _quantize_lanes(e, part, place, 32, b.shuffle_vector(inverse, inverse, lane), e.splat(args[4], VECTOR))
        return context.get_dummy_value()

    return types.none(x, types.int64, scales, types.int64, types.int32, codes), code


def _values(e: Emitter, codes: Any, at: int, offset: Any, scale: Any) -> Any:
    wide = e.b.zext(e.load(codes, I8, VECTOR, at), ir.VectorType(I32, VECTOR))
    return e.b.fmul(e.b.sitofp(e.b.sub(wide, offset), ir.VectorType(F32, VECTOR)), scale)


def _make_dequantize(lanes: int, add: bool) -> Any:
    @intrinsic
    def dequantize(typingctx: Any, codes: Any, codes_at: Any, scale: Any, half: Any, out: Any, at: Any) -> Any:
        """``out = (codes - half) * scale`` of ``lanes`` elements, or ``out +=`` that."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source, target = e.pointer(0, args[1], I8), e.pointer(4, args[5], F32)
            factor, offset = e.splat(args[2], VECTOR), e.splat(args[3], VECTOR)
            for k in range(0, lanes, VECTOR):
                e.prefetch_next_tile(target, F32, k, write=True)
                value = _values(e, source, k, offset, factor)
                value = builder.fadd(e.load(target, F32, VECTOR, k), value) if add else value
                e.store(value, target, F32, k)
            return context.get_dummy_value()

        return types.none(codes, types.int64, types.float32, types.int32, out, types.int64), code

    return dequantize


log_scales_16, log_scales_up_16 = _make_log_scales(layout.LOG_THRESHOLDS), _make_log_scales(layout.LOG_UP)
largest_key_32, largest_key_128 = _make_largest_key(32), _make_largest_key(128)
quantize_32, quantize_128 = _make_quantize(32), _make_quantize(128)
dequantize_32, dequantize_128 = _make_dequantize(32, add=False), _make_dequantize(128, add=False)
accumulate_32, accumulate_128 = _make_dequantize(32, add=True), _make_dequantize(128, add=True)


def _make_pack_unit(width: int) -> Any:
    size = UNIT * width // 8

    @intrinsic
    def pack_unit(typingctx: Any, codes: Any, codes_at: Any, shift: Any, plane: Any, at: Any) -> Any:
        """``width`` bits, from bit ``shift`` up, of UNIT codes -> ``UNIT * width / 8`` bytes of the plane."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source, target = e.pointer(0, args[1], I8), e.pointer(3, args[4], I8)
            down, mask = e.splat(builder.trunc(args[2], I8), size), e.constant(I8, (1 << width) - 1, size)
            packed = None
            for k in range(0, size, VECTOR):
                e.prefetch_next_tile(target, I8, k, write=True)
            for slot in range(8 // width):
                piece = builder.and_(builder.lshr(e.load(source, I8, size, slot * size), down), mask)
                piece = builder.shl(piece, e.constant(I8, slot * width, size))
                packed = piece if packed is None else builder.or_(packed, piece)
            e.store(packed, target, I8)
            return context.get_dummy_value()

        return types.none(codes, types.int64, types.int64, plane, types.int64), code

    return pack_unit


def _make_or_unit(width: int) -> Any:
    size = UNIT * width // 8

    @intrinsic
    def or_unit(typingctx: Any, codes: Any, codes_at: Any, shift: Any, plane: Any, at: Any) -> Any:
        """The inverse of ``pack_unit``: ors the plane's bits into UNIT codes."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            target, source = e.pointer(0, args[1], I8), e.pointer(3, args[4], I8)
            up, mask = e.splat(builder.trunc(args[2], I8), size), e.constant(I8, (1 << width) - 1, size)
            packed = e.load(source, I8, size)
            for slot in range(8 // width):
                piece = builder.and_(builder.lshr(packed, e.constant(I8, slot * width, size)), mask)
                piece = builder.or_(builder.shl(piece, up), e.load(target, I8, size, slot * size))
                e.store(piece, target, I8, slot * size)
            return context.get_dummy_value()

        return types.none(codes, types.int64, types.int64, plane, types.int64), code

    return or_unit


pack_unit_4, pack_unit_2, pack_unit_1 = _make_pack_unit(4), _make_pack_unit(2), _make_pack_unit(1)
or_unit_4, or_unit_2, or_unit_1 = _make_or_unit(4), _make_or_unit(2), _make_or_unit(1)
