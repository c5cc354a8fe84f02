"""Vector code between fp32 and floats of a byte or less. Offsets are in elements; nothing checks bounds.

``shape`` is :attr:`thinwire.kernels.smallfloat.SmallFloat.shape`; where it is a constant of the caller, LLVM folds it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels.simd import F32, I8, I16, I32, I64, VECTOR, Emitter
from thinwire.kernels.simd_cast import converts_half
from thinwire.kernels.smallfloat import MX_BLOCK

STRIP = 32
"""Elements that become bytes at once: where there is no one instruction for that, more elements share its steps."""
STRIPS = 16
"""Strips that share the loading of a format's constants."""
SHAPE = types.UniTuple(types.uint32, 5)
_HALVES = ir.VectorType(ir.HalfType(), VECTOR)
_FLOATS, _WORDS, _SHORTS, _BYTES = (ir.VectorType(element, VECTOR) for element in (F32, I32, I16, I8))


def _i32(value: int) -> Any:
    return ir.Constant(I32, value)


class _Format:
    """The numbers of a shape as scalars, and what follows from them."""

    def __init__(self, e: Emitter, shape: Any) -> None:
        self.e = e
        self.shift, self.lowest, self.top, self.special, self.down = (e.b.extract_value(shape, i) for i in range(5))

    def const(self, value: int, lanes: int = VECTOR) -> Any:
        return self.e.constant(I32, value, lanes)

    def wide(self, number: Any, lanes: int = VECTOR) -> Any:
        return self.e.splat(number, lanes)

    def codes(self, scaled: Any) -> Any:
        """fp32 -> codes, as bytes; of NaN, that of the largest number.

        Adding a power of two whose last place in fp32 is the code's own leaves, in the low bits of the sum, the number in
        units of that place, rounded to nearest even; the exponents below have used 2**mantissa codes each. What the bits
        above the byte hold does not matter, nor what overflows it before ``below`` is taken off.
        """
        b, e, lanes = self.e.b, self.e, scaled.type.count
        words, floats = ir.VectorType(I32, lanes), ir.VectorType(F32, lanes)
        pattern = b.bitcast(scaled, words)
        magnitude = b.and_(pattern, self.const(0x7FFFFFFF, lanes))
        magnitude = e.binary("smin", magnitude, self.wide(self._largest(), lanes))
        exponent = e.binary("smax", b.and_(magnitude, self.const(0x7F800000, lanes)), self.wide(self.lowest, lanes))
        magic = b.add(exponent, self.wide(b.shl(self.shift, _i32(23)), lanes))
        total = b.bitcast(b.fadd(b.bitcast(magnitude, floats), b.bitcast(magic, floats)), words)
        code = b.add(total, b.lshr(exponent, self.wide(self.shift, lanes)))
        sign = b.lshr(b.and_(pattern, self.const(0x80000000, lanes)), self.wide(self.down, lanes))
        below = b.trunc(b.lshr(self.lowest, self.shift), I8)
        return b.sub(b.trunc(b.add(code, sign), ir.VectorType(I8, lanes)), self.wide(below, lanes))

    def _largest(self) -> Any:
        """fp32 bits of the largest number, whose code counts from the exponent below the smallest normal number's."""
        b = self.e.b
        return b.add(b.shl(self.top, self.shift), b.sub(self.lowest, _i32(1 << 23)))

    def values(self, codes: Any) -> Any:
        """Codes of a byte -> fp32."""
        return self._by_half(codes) if converts_half() else self._by_integers(codes)

    def _by_half(self, codes: Any) -> Any:
        """By way of fp16, which has the same layout with more mantissa; the exponents' difference is a factor."""
        b = self.e.b
        up = b.trunc(b.sub(self.shift, _i32(13)), I16)

        def short(number: Any) -> Any:
            return self.e.splat(number, VECTOR)

        mask = b.or_(b.shl(ir.Constant(I16, 0x7F), up), ir.Constant(I16, 0x8000))
        half = b.and_(b.shl(b.sext(codes, _SHORTS), short(up)), short(mask))
        magnitude = b.and_(half, self.e.constant(I16, 0x7FFF, VECTOR))
        special = b.icmp_signed(">=", magnitude, short(b.shl(b.trunc(self.special, I16), up)))
        half = b.or_(half, b.and_(b.sext(special, _SHORTS), self.e.constant(I16, 0x7C00, VECTOR)))
        factor = b.bitcast(b.add(self.lowest, _i32(14 << 23)), F32)
        return b.fmul(b.fpext(b.bitcast(half, _HALVES), _FLOATS), self.wide(factor))

    def _by_integers(self, codes: Any) -> Any:
        """No step on the way meets a subnormal number of fp32, which some processors are slow at."""
        b, one = self.e.b, 1 << 23
        sign = b.shl(b.zext(codes, _WORDS), self.const(24))
        magnitude = b.and_(b.zext(codes, _WORDS), self.const(0x7F))
        placed = b.shl(magnitude, self.wide(self.shift))
        subnormal = b.icmp_signed("<", placed, self.const(one))
        # A subnormal number is what its bits say after the leading one of the smallest exponent, less that one.
        base = b.select(subnormal, self.wide(self.lowest), self.wide(b.sub(self.lowest, _i32(one))))
        extra = b.select(subnormal, self.wide(self.lowest), self.const(0))
        value = b.fsub(b.bitcast(b.add(placed, base), _FLOATS), b.bitcast(extra, _FLOATS))
        special = b.icmp_signed(">=", magnitude, self.wide(self.special))
        pattern = b.select(special, b.or_(placed, self.const(0x7F800000)), b.bitcast(value, _WORDS))
        return b.bitcast(b.or_(pattern, b.and_(sign, self.const(0x80000000))), _FLOATS)


def _make_to_small(strips: int) -> Any:
    @intrinsic
    def to_small(typingctx: Any, x: Any, at: Any, factors: Any, factors_at: Any, shape: Any, codes: Any, codes_at: Any) -> Any:
        """Codes of ``x * factor`` of ``strips`` strips of elements, as bytes; each strip has a factor of its own."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source, target = e.pointer(0, args[1], F32), e.pointer(5, args[6], I8)
            factors, small = e.pointer(2, args[3], F32), _Format(e, args[4])
            for i in range(strips):
                for k in range(i * STRIP, (i + 1) * STRIP, VECTOR):
                    e.prefetch_next_tile(source, F32, k)
                    e.prefetch_next_tile(target, I8, k, write=True)
                scaled = builder.fmul(e.load(source, F32, STRIP, i * STRIP), _factor(e, factors, i, STRIP))
                e.store(small.codes(scaled), target, I8, i * STRIP)
            return context.get_dummy_value()

        return types.none(x, types.int64, factors, types.int64, SHAPE, codes, types.int64), code

    return to_small


def _factor(e: Emitter, factors: Any, index: int, lanes: int) -> Any:
    return e.splat(e.b.load(e.b.gep(factors, [ir.Constant(I64, index)])), lanes)


def _deliver(e: Emitter, value: Any, target: Any, at: int, add: bool) -> None:
    value = e.b.fadd(e.load(target, F32, VECTOR, at), value) if add else value
    e.store(value, target, F32, at)


def _make_from_small(strips: int, add: bool) -> Any:
    @intrinsic
    def from_small(typingctx: Any, codes: Any, codes_at: Any, scales: Any, scales_at: Any, shape: Any, out: Any, at: Any) -> Any:
        """``out = number * scale`` of ``strips`` strips of codes of a byte, or ``out +=`` that; each has a scale of its own."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source, target = e.pointer(0, args[1], I8), e.pointer(5, args[6], F32)
            scales, small = e.pointer(2, args[3], F32), _Format(e, args[4])
            for k in range(0, strips * STRIP, VECTOR):
                e.prefetch_next_tile(target, F32, k, write=True)
                value = small.values(e.load(source, I8, VECTOR, k))
                _deliver(e, builder.fmul(value, _factor(e, scales, k // STRIP, VECTOR)), target, k, add)
            return context.get_dummy_value()

        return types.none(codes, types.int64, scales, types.int64, SHAPE, out, types.int64), code

    return from_small


def _twice_e2m1(e: Emitter, codes: Any) -> Any:
    """Twice the number of each e2m1 code: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives, as bytes."""
    b, lanes = e.b, codes.type.count

    def const(value: int) -> Any:
        return e.constant(I8, value, lanes)

    magnitude = b.and_(codes, const(7))
    two = b.or_(b.and_(codes, const(1)), const(2))
    three = b.add(two, two)
    value = b.select(b.icmp_signed(">", magnitude, const(3)), three, magnitude)
    value = b.select(b.icmp_signed(">", magnitude, const(5)), b.add(three, three), value)
    return b.select(b.icmp_signed(">", codes, const(7)), b.sub(const(0), value), value)


def _make_from_e2m1(add: bool) -> Any:
    @intrinsic
    def from_e2m1(typingctx: Any, codes: Any, codes_at: Any, halves: Any, halves_at: Any, out: Any, at: Any) -> Any:
        """``out = number * scale``, or ``out +=`` that, of a block of e2m1 codes; ``halves`` holds half its scale."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source, target = e.pointer(0, args[1], I8), e.pointer(4, args[5], F32)
            factor = _factor(e, e.pointer(2, args[3], F32), 0, VECTOR)
            doubles = _twice_e2m1(e, e.load(source, I8, MX_BLOCK))
            for k in range(0, MX_BLOCK, VECTOR):
                e.prefetch_next_tile(target, F32, k, write=True)
                part = ir.Constant(_WORDS, list(range(k, k + VECTOR)))
                wide = builder.sext(builder.shuffle_vector(doubles, doubles, part), _WORDS)
                _deliver(e, builder.fmul(builder.sitofp(wide, _FLOATS), factor), target, k, add)
            return context.get_dummy_value()

        return types.none(codes, types.int64, halves, types.int64, out, types.int64), code

    return from_e2m1


to_small_1, to_small_16 = _make_to_small(1), _make_to_small(STRIPS)
set_small_1, set_small_16 = _make_from_small(1, add=False), _make_from_small(STRIPS, add=False)
add_small_16 = _make_from_small(STRIPS, add=True)
set_e2m1, add_e2m1 = _make_from_e2m1(add=False), _make_from_e2m1(add=True)
