"""Vector code between fp32 and floats of a byte or less. Offsets are in elements; nothing checks bounds.

``shape`` is :attr:`thinwire.kernels.smallfloat.SmallFloat.shape`; where it is a constant of the caller, LLVM folds it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels.simd import F32, I8, I32, VECTOR, Emitter

SHAPE = types.UniTuple(types.uint32, 5)
_FLOATS, _WORDS, _BYTES = (ir.VectorType(element, VECTOR) for element in (F32, I32, I8))
_ONE_EXPONENT = 1 << 23


class _Format:
    """The numbers of a shape, each in all lanes."""

    def __init__(self, e: Emitter, shape: Any) -> None:
        self.e, b = e, e.b
        shift, lowest, top, special, down = (b.extract_value(shape, i) for i in range(5))
        one = ir.Constant(I32, 1)
        self.shift, self.lowest, self.top, self.special, self.down = (
            e.splat(number, VECTOR) for number in (shift, lowest, top, special, down)
        )
        # Half a unit in the last place less one, and exponents counted from the smallest normal number's, which is 1.
        rounding = b.sub(b.shl(one, b.sub(shift, one)), one)
        self.rounding = e.splat(b.sub(rounding, b.sub(lowest, ir.Constant(I32, _ONE_EXPONENT))), VECTOR)
        # The power of two whose last place in fp32 is the subnormal numbers' unit: 23 - mantissa exponents up.
        self.magic = e.splat(b.add(lowest, b.shl(shift, ir.Constant(I32, 23))), VECTOR)
        self.normal = e.splat(b.shl(one, b.sub(ir.Constant(I32, 23), shift)), VECTOR)
        self.sign = e.splat(b.lshr(ir.Constant(I32, 0x80000000), down), VECTOR)

    def const(self, value: int) -> Any:
        return self.e.constant(I32, value, VECTOR)

    def codes(self, scaled: Any) -> Any:
        """fp32 -> codes, int32; of a number that is not finite, some finite code."""
        b, e = self.e.b, self.e
        pattern = b.bitcast(scaled, _WORDS)
        magnitude = b.and_(pattern, self.const(0x7FFFFFFF))
        odd = b.and_(b.lshr(magnitude, self.shift), self.const(1))
        normal = b.lshr(b.add(b.add(magnitude, odd), self.rounding), self.shift)
        total = b.fadd(b.bitcast(magnitude, _FLOATS), b.bitcast(self.magic, _FLOATS))
        subnormal = b.sub(b.bitcast(total, _WORDS), self.magic)
        code = b.select(b.icmp_unsigned("<", magnitude, self.lowest), subnormal, normal)
        sign = b.and_(b.lshr(pattern, self.down), self.sign)
        return b.or_(e.binary("umin", code, self.top), sign)

    def values(self, codes: Any) -> Any:
        """Codes, int32 -> fp32. No step on the way meets a subnormal number of fp32, which processors are slow at."""
        b = self.e.b
        magnitude = b.and_(codes, b.sub(self.sign, self.const(1)))
        subnormal = b.icmp_unsigned("<", magnitude, self.normal)
        base = b.select(subnormal, self.lowest, b.sub(self.lowest, self.const(_ONE_EXPONENT)))
        pattern = b.add(b.shl(magnitude, self.shift), base)
        extra = b.bitcast(b.select(subnormal, self.lowest, self.const(0)), _FLOATS)
        pattern = b.bitcast(b.fsub(b.bitcast(pattern, _FLOATS), extra), _WORDS)
        special = b.icmp_unsigned(">=", magnitude, self.special)
        pattern = b.select(special, b.or_(b.shl(magnitude, self.shift), self.const(0x7F800000)), pattern)
        return b.bitcast(b.or_(pattern, b.shl(b.and_(codes, self.sign), self.down)), _FLOATS)


def _make_to_small(lanes: int) -> Any:
    @intrinsic
    def to_small(typingctx: Any, x: Any, at: Any, inverse: Any, shape: Any, codes: Any, codes_at: Any) -> Any:
        """Codes of ``x * inverse`` of ``lanes`` elements, as bytes."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source, target = e.pointer(0, args[1], F32), e.pointer(4, args[5], I8)
            factor, small = e.splat(args[2], VECTOR), _Format(e, args[3])
            for k in range(0, lanes, VECTOR):
                e.prefetch_next_tile(source, F32, k)
                e.prefetch_next_tile(target, I8, k, write=True)
                found = small.codes(builder.fmul(e.load(source, F32, VECTOR, k), factor))
                e.store(builder.trunc(found, _BYTES), target, I8, k)
            return context.get_dummy_value()

        return types.none(x, types.int64, types.float32, SHAPE, codes, types.int64), code

    return to_small


def _make_from_small(lanes: int, add: bool) -> Any:
    @intrinsic
    def from_small(typingctx: Any, codes: Any, codes_at: Any, scale: Any, shape: Any, out: Any, at: Any) -> Any:
        """``out = number * scale`` of ``lanes`` elements, or ``out +=`` that."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            source, target = e.pointer(0, args[1], I8), e.pointer(4, args[5], F32)
            factor, small = e.splat(args[2], VECTOR), _Format(e, args[3])
            for k in range(0, lanes, VECTOR):
                e.prefetch_next_tile(target, F32, k, write=True)
                wide = builder.zext(e.load(source, I8, VECTOR, k), _WORDS)
                value = builder.fmul(small.values(wide), factor)
                value = builder.fadd(e.load(target, F32, VECTOR, k), value) if add else value
                e.store(value, target, F32, k)
            return context.get_dummy_value()

        return types.none(codes, types.int64, types.float32, SHAPE, out, types.int64), code

    return from_small


to_small_32, to_small_128 = _make_to_small(32), _make_to_small(128)
set_small_32, set_small_128 = _make_from_small(32, add=False), _make_from_small(128, add=False)
add_small_32, add_small_128 = _make_from_small(32, add=True), _make_from_small(128, add=True)
