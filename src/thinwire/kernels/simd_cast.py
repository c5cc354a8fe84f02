"""Vector code of the ``fp16`` kernels, by the processor's own conversions. Offsets are in elements; nothing checks bounds."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels.simd import F32, I16, VECTOR, Emitter

LANES = 64
HALF = ir.VectorType(ir.HalfType(), VECTOR)
FLOATS = ir.VectorType(F32, VECTOR)


def converts_half() -> bool:
    """Whether the processor converts fp16; without it LLVM would call a function that Numba does not have."""
    return platform.machine() in ("aarch64", "arm64") or binding.get_host_cpu_features().get("f16c", False)


@intrinsic
def to_half(typingctx: Any, x: Any, at: Any, one: Any, two: Any, limit: Any, halves: Any, halves_at: Any) -> Any:
    """fp16 bits of ``x * one * two`` of LANES elements, their magnitudes at most ``limit``."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], F32), e.pointer(5, args[6], I16)
        one, two = e.splat(args[2], VECTOR), e.splat(args[3], VECTOR)
        limit = e.splat(b.trunc(args[4], I16), VECTOR)
        for k in range(0, LANES, VECTOR):
            e.prefetch_next_tile(source, k)
            scaled = b.fmul(b.fmul(e.load(source, F32, VECTOR, k), one), two)
            bits = b.bitcast(b.fptrunc(scaled, HALF), ir.VectorType(I16, VECTOR))
            magnitude = e.binary("umin", b.and_(bits, e.constant(I16, 0x7FFF, VECTOR)), limit)
            e.store(b.or_(magnitude, b.and_(bits, e.constant(I16, 0x8000, VECTOR))), target, I16, k)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.float32, types.float32, types.uint32, halves, types.int64), code


def _make_from_half(add: bool) -> Any:
    @intrinsic
    def from_half(typingctx: Any, halves: Any, halves_at: Any, scale: Any, out: Any, at: Any) -> Any:
        """``out = halves * scale`` of LANES elements, or ``out +=`` that."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(context, builder, sig, args), builder
            source, target = e.pointer(0, args[1], I16), e.pointer(3, args[4], F32)
            scale = e.splat(args[2], VECTOR)
            for k in range(0, LANES, VECTOR):
                value = b.fpext(b.bitcast(e.load(source, I16, VECTOR, k), HALF), FLOATS)
                value = b.fmul(value, scale)
                value = b.fadd(e.load(target, F32, VECTOR, k), value) if add else value
                e.store(value, target, F32, k)
            return context.get_dummy_value()

        return types.none(halves, types.int64, types.float32, out, types.int64), code

    return from_half


set_from_half, add_from_half = _make_from_half(add=False), _make_from_half(add=True)
