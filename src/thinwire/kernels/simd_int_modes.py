"""Vector code of stochastic rounding and of the search for a scale in ``intB``. No bounds are checked."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels import layout
from thinwire.kernels.simd import F32, I8, I16, I32, I64, VECTOR, Emitter, shuffles
from thinwire.kernels.simd_rng import emit_dither, emit_drawn, numbers_from

CANDIDATES = len(layout.SEARCH_STEPS)


@intrinsic
def dither_32(
    typingctx: Any, x: Any, at: Any, inverse: Any, half: Any, codes: Any, number: Any, k0: Any, k1: Any
) -> Any:  # fmt: skip
    """``codes = clip(round(x * inverse + dither), -half, half - 1) + half`` of 32 elements; ``number`` is the first one's."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, target = e.pointer(0, args[1], F32), e.pointer(4, args[1], I8)
        factor, offset, low, high = (e.splat(args[k], VECTOR) for k in (2, 3, 6, 7))
        for k in range(0, 32, VECTOR):
            e.prefetch_next_tile(source, F32, k)
            noise = emit_dither(e, numbers_from(e, args[5], k), low, high)
            value = emit_drawn(e, b.fmul(e.load(source, F32, VECTOR, k), factor), noise, offset)
            e.store(b.trunc(value, ir.VectorType(I8, VECTOR)), target, I8, k)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.float32, types.int32, codes, types.uint32, types.uint32, types.uint32), code


class _Search:
    """What both searches share. 16 elements are one vector of numbers with a fixed point, see the reference's ``_squares``."""

    def __init__(self, e: Emitter, inverse: Any, unit: Any) -> None:
        self.e, b = e, e.b
        self.factor, self.up = e.splat(inverse, VECTOR), e.splat(b.uitofp(b.shl(unit, ir.Constant(I32, 1)), F32), VECTOR)
        short = b.trunc(unit, I16)
        self.round, self.mask = (e.splat(one, VECTOR) for one in (b.lshr(short, ir.Constant(I16, 1)), b.neg(short)))
        self.high = e.splat(b.sub(ir.Constant(I16, layout.SEARCH_RANGE), short), VECTOR)
        self.low = e.constant(I16, -layout.SEARCH_RANGE, VECTOR)

    def add(self, source: Any, totals: list[Any]) -> list[Any]:
        """``totals``, a vector of 8 int32 each, and the squares of 32 elements."""
        values = [self._fixed(source, k) for k in (0, VECTOR)]
        return [self._added(values, int(up), total) for up, total in zip(layout.SEARCH_UP_FIXED, totals, strict=True)]

    def _fixed(self, source: Any, at: int) -> Any:
        e, b = self.e, self.e.b
        steps = b.fmul(b.fmul(e.load(source, F32, VECTOR, at), self.factor), self.up)
        return b.trunc(e.nearest_bits(steps), ir.VectorType(I16, VECTOR))

    def _added(self, values: list[Any], up: int, total: Any) -> Any:
        e, b = self.e, self.e.b
        for value in values:
            steps = _scaled(e, value, e.constant(I16, up, VECTOR))
            nearest = b.and_(b.add(steps, self.round), self.mask)
            nearest = e.binary("smin", e.binary("smax", nearest, self.low), self.high)
            total = b.add(total, _squares(e, b.sub(steps, nearest)))
        return total

    def best(self, totals: list[Any]) -> Any:
        """The first candidate of least error: int64."""
        e, b = self.e, self.e.b
        lanes = ir.VectorType(I32, CANDIDATES)
        level = totals
        while len(level) > 1:
            level = [_neighbours(e, p, q) for p, q in zip(level[::2], level[1::2], strict=True)]
        weights = ir.Constant(ir.VectorType(F32, CANDIDATES), [float(value) for value in layout.SEARCH_WEIGHTS])
        # Squares compare as their bits do.
        patterns = b.bitcast(b.fmul(b.sitofp(level[0], weights.type), weights), lanes)
        equal = b.icmp_unsigned("==", patterns, e.splat(e.reduce("umin", [patterns]), CANDIDATES))
        mask = b.bitcast(equal, ir.IntType(CANDIDATES))
        return b.zext(e.call("cttz.i8", mask.type, mask, ir.Constant(ir.IntType(1), 0)), I64)


def _neighbours(e: Emitter, p: Any, q: Any) -> Any:
    """Sums of lanes 0 and 1, 2 and 3 ... of both vectors, one after the other."""
    lanes = ir.VectorType(I32, p.type.count)
    even, odd = (ir.Constant(lanes, list(range(first, 2 * p.type.count, 2))) for first in (0, 1))
    return e.b.add(e.b.shuffle_vector(p, q, even), e.b.shuffle_vector(p, q, odd))


def _scaled(e: Emitter, value: Any, factor: Any) -> Any:
    """``(value * factor + 2**14) >> 15``, int16."""
    if shuffles():
        return e.call("x86.avx2.pmul.hr.sw", value.type, value, factor)
    b, wide = e.b, ir.VectorType(I32, VECTOR)
    product = b.add(b.mul(b.sext(value, wide), b.sext(factor, wide)), e.constant(I32, 1 << 14, VECTOR))
    return b.trunc(b.ashr(product, e.constant(I32, 15, VECTOR)), value.type)


def _squares(e: Emitter, value: Any) -> Any:
    """Squares of 16 numbers of 16 bits, summed in pairs: 8 int32."""
    half = ir.VectorType(I32, VECTOR // 2)
    if shuffles():
        return e.call("x86.avx2.pmadd.wd", half, value, value)
    wide = e.b.sext(value, ir.VectorType(I32, VECTOR))
    square = e.b.mul(wide, wide)
    even, odd = (ir.Constant(half, list(range(first, VECTOR, 2))) for first in (0, 1))
    return e.b.add(e.b.shuffle_vector(square, square, even), e.b.shuffle_vector(square, square, odd))


@intrinsic
def best_of_32(typingctx: Any, x: Any, at: Any, inverse: Any, unit: Any) -> Any:
    """The best candidate of a block of 32 elements."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        search = _Search(e, args[2], args[3])
        nothing = [e.constant(I32, 0, VECTOR // 2)] * CANDIDATES
        return search.best(search.add(e.pointer(0, args[1], F32), nothing))

    return types.int64(x, types.int64, types.float32, types.int32), code


@intrinsic
def add_squares_32(typingctx: Any, x: Any, at: Any, inverse: Any, unit: Any, totals: Any) -> Any:
    """Add each candidate's squared errors of 32 elements to its 8 lanes of ``totals`` (CANDIDATES * 8 int32)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, lanes = Emitter(context, builder, sig, args), VECTOR // 2
        target = e.pointer(4, ir.Constant(I64, 0), I32)
        before = [e.load(target, I32, lanes, lanes * k) for k in range(CANDIDATES)]
        for k, total in enumerate(_Search(e, args[2], args[3]).add(e.pointer(0, args[1], F32), before)):
            e.store(total, target, I32, lanes * k)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.float32, types.int32, totals), code
