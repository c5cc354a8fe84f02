"""Vector and scalar forms of the noise of rng.py for compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from thinwire.kernels import rng
from thinwire.kernels.jit import inline
from thinwire.kernels.simd import F32, I32, VECTOR, Emitter

_FIRST, _SECOND = np.uint32(rng.FIRST), np.uint32(rng.SECOND)


@inline
def random_bits(number: Any, k0: Any, k1: Any) -> Any:
    """See :func:`thinwire.kernels.rng.bits`; all are uint32."""
    h = np.uint32(number ^ k0)
    h = np.uint32((h ^ (h >> np.uint32(16))) * _FIRST)
    h ^= k1
    h = np.uint32((h ^ (h >> np.uint32(15))) * _SECOND)
    return np.uint32(h ^ (h >> np.uint32(16)))


@inline
def dither(number: Any, k0: Any, k1: Any) -> Any:
    """See :func:`thinwire.kernels.rng.dither`."""
    upper = np.int32(random_bits(number, k0, k1)) >> np.int32(16)
    return (np.float32(upper) + np.float32(0.5)) * np.float32(2.0**-16)


def numbers_from(e: Emitter, first: Any, offset: int) -> Any:
    """The vector ``first + offset + lane``; ``first`` is the number of the element at offset 0, int32."""
    lanes = ir.Constant(ir.VectorType(I32, VECTOR), list(range(offset, offset + VECTOR)))
    return e.b.add(e.splat(first, VECTOR), lanes)


def emit_bits(e: Emitter, numbers: Any, k0: Any, k1: Any) -> Any:
    """Random bits of VECTOR elements; ``k0`` and ``k1`` are vectors."""
    b = e.b
    h = b.xor(numbers, k0)
    h = b.mul(b.xor(h, b.lshr(h, e.constant(I32, rng.SHIFTS[0], VECTOR))), e.constant(I32, rng.FIRST, VECTOR))
    h = b.xor(h, k1)
    h = b.mul(b.xor(h, b.lshr(h, e.constant(I32, rng.SHIFTS[1], VECTOR))), e.constant(I32, rng.SECOND, VECTOR))
    return b.xor(h, b.lshr(h, e.constant(I32, rng.SHIFTS[2], VECTOR)))


def emit_drawn(e: Emitter, steps: Any, noise: Any, offset: Any) -> Any:
    """Codes ``clip(round(steps + noise), -offset, offset - 1) + offset`` of VECTOR elements, int32."""
    b = e.b
    top = b.sub(b.add(offset, offset), e.constant(I32, 1, VECTOR))
    value = b.add(e.nearest(b.fadd(steps, noise)), offset)
    return e.binary("smax", e.binary("smin", value, top), e.constant(I32, 0, VECTOR))


def emit_dither(e: Emitter, numbers: Any, k0: Any, k1: Any) -> Any:
    """Dither of VECTOR elements, fp32."""
    b = e.b
    upper = b.ashr(emit_bits(e, numbers, k0, k1), e.constant(I32, 16, VECTOR))
    value = b.sitofp(upper, ir.VectorType(F32, VECTOR))
    return b.fmul(b.fadd(value, e.constant(F32, 0.5, VECTOR)), e.constant(F32, 2.0**-16, VECTOR))
