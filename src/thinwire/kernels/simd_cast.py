"""Vector code between fp32 and the 16-bit formats, and of the error. Offsets are in elements; nothing checks bounds.

fp16 goes by the processor's own conversions, bf16 by integer arithmetic.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels.layout import BF16_MAX, BF16_NAN
from thinwire.kernels.simd import F32, I16, I32, VECTOR, Emitter, host_features

LANES = 64
HALF = ir.VectorType(ir.HalfType(), VECTOR)
FLOATS = ir.VectorType(F32, VECTOR)
SHORTS, WORDS = ir.VectorType(I16, VECTOR), ir.VectorType(I32, VECTOR)


def converts_half() -> bool:
    """Whether Numba's target converts fp16; without it LLVM would call a function that Numba does not have."""
    return platform.machine() in ("aarch64", "arm64") or "+f16c" in host_features()


@intrinsic
def to_half(typingctx: Any, x: Any, at: Any, one: Any, two: Any, limit: Any, halves: Any, halves_at: Any) -> Any:
    """fp16 bits of ``x * one * two`` of LANES elements, their magnitudes at most ``limit``."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], F32), e.pointer(5, args[6], I16)
        one, two = e.splat(args[2], VECTOR), e.splat(args[3], VECTOR)
        limit = e.splat(b.trunc(args[4], I16), VECTOR)
        for k in range(0, LANES, VECTOR):
            e.prefetch_next_tile(source, F32, k)
            e.prefetch_next_tile(target, I16, k, write=True)
            scaled = b.fmul(b.fmul(e.load(source, F32, VECTOR, k), one), two)
            bits = b.bitcast(b.fptrunc(scaled, HALF), SHORTS)
            magnitude = e.binary("umin", b.and_(bits, e.constant(I16, 0x7FFF, VECTOR)), limit)
            e.store(b.or_(magnitude, b.and_(bits, e.constant(I16, 0x8000, VECTOR))), target, I16, k)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.float32, types.float32, types.uint32, halves, types.int64), code


def _round_to_bf16(e: Emitter, patterns: Any) -> Any:
    """fp32 bits -> bf16 bits in the low halves: to nearest even, finite stays finite, one NaN."""
    b = e.b

    def const(value: int) -> Any:
        return e.constant(I32, value, VECTOR)

    magnitude = b.and_(patterns, const(0x7FFFFFFF))
    odd = b.and_(b.lshr(magnitude, const(16)), const(1))
    code = b.lshr(b.add(magnitude, b.add(odd, const(0x7FFF))), const(16))
    finite = b.icmp_unsigned("<", magnitude, const(0x7F800000))
    code = b.select(finite, e.binary("umin", code, const(BF16_MAX)), const(0x7F80))
    code = b.or_(code, b.and_(b.lshr(patterns, const(16)), const(0x8000)))
    return b.select(b.icmp_unsigned(">", magnitude, const(0x7F800000)), const(BF16_NAN), code)


@intrinsic
def to_bf16(typingctx: Any, patterns: Any, at: Any, stored: Any, stored_at: Any) -> Any:
    """bf16 bits of LANES elements, given as fp32 bits."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        source, target = e.pointer(0, args[1], I32), e.pointer(2, args[3], I16)
        for k in range(0, LANES, VECTOR):
            e.prefetch_next_tile(source, I32, k)
            e.prefetch_next_tile(target, I16, k, write=True)
            rounded = _round_to_bf16(e, e.load(source, I32, VECTOR, k))
            e.store(builder.trunc(rounded, SHORTS), target, I16, k)
        return context.get_dummy_value()

    return types.none(patterns, types.int64, stored, types.int64), code


@intrinsic
def subtract(typingctx: Any, x: Any, at: Any, values: Any, out: Any, out_at: Any) -> Any:
    """``out = x - values`` of LANES elements; ``x`` and ``values`` at ``at``."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        left, right, target = e.pointer(0, args[1], F32), e.pointer(2, args[1], F32), e.pointer(3, args[4], F32)
        for k in range(0, LANES, VECTOR):
            e.prefetch_next_tile(target, F32, k, write=True)
            e.store(builder.fsub(e.load(left, F32, VECTOR, k), e.load(right, F32, VECTOR, k)), target, F32, k)
        return context.get_dummy_value()

    return types.none(x, types.int64, values, out, types.int64), code


def _widen_lanes(e: Emitter, source: Any, target: Any, widen: Callable[[Any], Any], add: bool) -> None:
    """``target = widen(source)`` of LANES elements of 16 bits, or ``target +=`` that."""
    for k in range(0, LANES, VECTOR):
        e.prefetch_next_tile(source, I16, k)
        e.prefetch_next_tile(target, F32, k, write=True)
        value = widen(e.load(source, I16, VECTOR, k))
        value = e.b.fadd(e.load(target, F32, VECTOR, k), value) if add else value
        e.store(value, target, F32, k)


def _make_from_half(add: bool) -> Any:
    @intrinsic
    def from_half(typingctx: Any, halves: Any, halves_at: Any, scale: Any, out: Any, at: Any) -> Any:
        """``out = halves * scale`` of LANES elements, or ``out +=`` that."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(context, builder, sig, args), builder
            source, target = e.pointer(0, args[1], I16), e.pointer(3, args[4], F32)
            scale = e.splat(args[2], VECTOR)
            _widen_lanes(e, source, target, lambda bits: b.fmul(b.fpext(b.bitcast(bits, HALF), FLOATS), scale), add)
            return context.get_dummy_value()

        return types.none(halves, types.int64, types.float32, out, types.int64), code

    return from_half


def _make_from_bf16(add: bool) -> Any:
    @intrinsic
    def from_bf16(typingctx: Any, stored: Any, stored_at: Any, out: Any, at: Any) -> Any:
        """The fp32 numbers of LANES elements to ``out``, or added to it."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(context, builder, sig, args), builder
            source, target = e.pointer(0, args[1], I16), e.pointer(2, args[3], F32)
            up = e.constant(I32, 16, VECTOR)
            _widen_lanes(e, source, target, lambda bits: b.bitcast(b.shl(b.zext(bits, WORDS), up), FLOATS), add)
            return context.get_dummy_value()

        return types.none(stored, types.int64, out, types.int64), code

    return from_bf16


set_from_half, add_from_half = _make_from_half(add=False), _make_from_half(add=True)
set_from_bf16, add_from_bf16 = _make_from_bf16(add=False), _make_from_bf16(add=True)
