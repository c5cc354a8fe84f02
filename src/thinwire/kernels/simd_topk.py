"""Vector code of the ``topk`` selection: comparisons of 64 magnitudes at a time. Nothing checks bounds."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels.simd import F32, I32, I64, VECTOR, Emitter

LANES = 64


@intrinsic
def mask_above(typingctx: Any, patterns: Any, at: Any, limit: Any) -> Any:
    """Bit i says whether the magnitude (fp32 bits without the sign) of element ``at + i`` is above ``limit``: uint64."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, limit = e.pointer(0, args[1], I32), e.splat(b.trunc(args[2], I32), VECTOR)
        word = ir.Constant(I64, 0)
        for k in range(0, LANES, VECTOR):
            magnitude = b.and_(e.load(source, I32, VECTOR, k), e.constant(I32, 0x7FFFFFFF, VECTOR))
            bits = b.bitcast(b.icmp_signed(">", magnitude, limit), ir.IntType(VECTOR))
            word = b.or_(word, b.shl(b.zext(bits, I64), ir.Constant(I64, k)))
        return word

    return types.uint64(patterns, types.int64, types.int64), code


@intrinsic
def count_from(typingctx: Any, keys: Any, size: Any, limit: Any) -> Any:
    """How many of ``keys`` (int32, ``size`` a multiple of LANES) are ``limit`` or more: int64."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, limit = e.pointer(0, ir.Constant(I64, 0), I32), e.splat(b.trunc(args[2], I32), VECTOR)
        vector = limit.type
        before = b.block
        loop, done = b.append_basic_block("count"), b.append_basic_block("counted")
        b.branch(loop)
        b.position_at_end(loop)
        at, total = b.phi(I64), b.phi(vector)
        place, found = b.gep(source, [at]), total
        for k in range(0, LANES, VECTOR):
            # A comparison that holds is -1.
            found = b.sub(found, b.sext(b.icmp_signed(">=", e.load(place, I32, VECTOR, k), limit), vector))
        following = b.add(at, ir.Constant(I64, LANES))
        at.add_incoming(ir.Constant(I64, 0), before)
        at.add_incoming(following, loop)
        total.add_incoming(e.constant(I32, 0, VECTOR), before)
        total.add_incoming(found, loop)
        b.cbranch(b.icmp_signed("<", following, args[1]), loop, done)
        b.position_at_end(done)
        return b.zext(e.call(f"vector.reduce.add.v{VECTOR}i32", I32, found), I64)

    return types.int64(keys, types.int64, types.int64), code


@intrinsic
def largest_magnitudes(typingctx: Any, patterns: Any, at: Any, rows: Any, stride: Any, out: Any, out_at: Any) -> Any:
    """``out[i]``: the largest magnitude of the elements ``at + i + r stride``, r below ``rows``, for LANES of i."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], I32), e.pointer(4, args[5], I32)
        parts = range(0, LANES, VECTOR)
        zero = e.constant(I32, 0, VECTOR)
        before = b.block
        loop, done = b.append_basic_block("largest"), b.append_basic_block("found")
        b.branch(loop)
        b.position_at_end(loop)
        row, place = b.phi(I64), b.phi(source.type)
        largest = [b.phi(zero.type) for _ in parts]
        better: list[Any] = []
        for k, best in zip(parts, largest, strict=True):
            _prefetch(e, place, k)
            magnitude = b.and_(e.load(place, I32, VECTOR, k), e.constant(I32, 0x7FFFFFFF, VECTOR))
            better.append(e.binary("smax", best, magnitude))
        following = b.add(row, ir.Constant(I64, 1))
        row.add_incoming(ir.Constant(I64, 0), before)
        row.add_incoming(following, loop)
        place.add_incoming(source, before)
        place.add_incoming(b.gep(place, [args[3]]), loop)
        for best, new in zip(largest, better, strict=True):
            best.add_incoming(zero, before)
            best.add_incoming(new, loop)
        b.cbranch(b.icmp_signed("<", following, args[2]), loop, done)
        b.position_at_end(done)
        for k, new in zip(parts, better, strict=True):
            e.store(new, target, I32, k)
        return context.get_dummy_value()

    return types.none(patterns, types.int64, types.int64, types.int64, out, types.int64), code


def _prefetch(e: Emitter, place: Any, offset: int) -> None:
    e.prefetch_next_tile(e.b.bitcast(place, F32.as_pointer()), F32, offset)


@intrinsic
def lowest_bit(typingctx: Any, word: Any) -> Any:
    """The number of the lowest bit that is set in a uint64, 64 if none is: int64."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return Emitter(context, builder, sig, args).call("cttz.i64", I64, args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), code


@intrinsic
def number_of_bits(typingctx: Any, word: Any) -> Any:
    """How many bits of a uint64 are set: int64."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return Emitter(context, builder, sig, args).call("ctpop.i64", I64, args[0])

    return types.int64(types.uint64), code
