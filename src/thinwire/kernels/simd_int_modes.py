"""Vector code of stochastic rounding and of the search for a scale in ``intB``. No bounds are checked."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels import layout
from thinwire.kernels.simd import F32, I8, I32, I64, VECTOR, Emitter
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


def _clamped(e: Emitter, value: Any, low: Any, high: Any) -> Any:
    value = e.b.select(e.b.fcmp_ordered("<", value, low), low, value)
    return e.b.select(e.b.fcmp_ordered(">", value, high), high, value)


class _Search:
    """What both searches share: the limits of a code, and the sums of 32 elements' squared errors by candidate."""

    def __init__(self, e: Emitter, inverse: Any, half: Any) -> None:
        self.e, self.factor = e, e.splat(inverse, VECTOR)
        self.high = e.b.fsub(e.splat(half, VECTOR), e.constant(F32, 1.0, VECTOR))
        self.low = e.b.fsub(e.constant(F32, -1.0, VECTOR), self.high)

    def add(self, source: Any, totals: list[Any]) -> list[Any]:
        e, b = self.e, self.e.b
        magic = e.constant(F32, 1.5 * 2.0**23, VECTOR)
        exact = [b.fmul(e.load(source, F32, VECTOR, k), self.factor) for k in (0, VECTOR)]
        sums: list[Any] = []
        for up, total in zip(layout.SEARCH_UP, totals, strict=True):
            for value in exact:
                steps = b.fmul(value, e.constant(F32, float(up), VECTOR))
                nearest = b.fsub(b.fadd(_clamped(e, steps, self.low, self.high), magic), magic)
                off = b.fsub(steps, nearest)
                total = b.fadd(total, b.fmul(off, off))
            sums.append(total)
        return sums

    def best(self, totals: list[Any]) -> Any:
        """The first candidate of least error: int64."""
        e, b = self.e, self.e.b
        down = [e.constant(F32, float(value), VECTOR) for value in layout.SEARCH_WEIGHTS]
        level = [b.fmul(total, weight) for total, weight in zip(totals, down, strict=True)]
        lanes = ir.VectorType(I32, VECTOR)
        even = ir.Constant(lanes, list(range(0, 2 * VECTOR, 2)))
        odd = ir.Constant(lanes, list(range(1, 2 * VECTOR, 2)))
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [b.fadd(b.shuffle_vector(p, q, even), b.shuffle_vector(p, q, odd)) for p, q in pairs]
        one = b.fadd(b.shuffle_vector(level[0], level[0], even), b.shuffle_vector(level[0], level[0], odd))
        # Squares compare as their bits do. The second half of the vector repeats the first.
        patterns = b.bitcast(one, lanes)
        equal = b.icmp_unsigned("==", patterns, e.splat(e.reduce("umin", [patterns]), VECTOR))
        mask = b.bitcast(equal, ir.IntType(VECTOR))
        return b.zext(e.call("cttz.i16", mask.type, mask, ir.Constant(ir.IntType(1), 0)), I64)


@intrinsic
def best_of_32(typingctx: Any, x: Any, at: Any, inverse: Any, half: Any) -> Any:
    """The best candidate of a block of 32 elements."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        search = _Search(e, args[2], args[3])
        return search.best(search.add(e.pointer(0, args[1], F32), [e.constant(F32, 0.0, VECTOR)] * CANDIDATES))

    return types.int64(x, types.int64, types.float32, types.float32), code


@intrinsic
def add_squares_32(typingctx: Any, x: Any, at: Any, inverse: Any, half: Any, totals: Any) -> Any:
    """Add each candidate's squared errors of 32 elements to its 16 lanes of ``totals`` (CANDIDATES * 16)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        target = e.pointer(4, ir.Constant(I64, 0), F32)
        before = [e.load(target, F32, VECTOR, VECTOR * k) for k in range(CANDIDATES)]
        for k, total in enumerate(_Search(e, args[2], args[3]).add(e.pointer(0, args[1], F32), before)):
            e.store(total, target, F32, VECTOR * k)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.float32, types.float32, totals), code


@intrinsic
def best_of_totals(typingctx: Any, totals: Any) -> Any:
    """The best candidate by the sums of :func:`add_squares_32`."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        source, unused = e.pointer(0, ir.Constant(I64, 0), F32), ir.Constant(F32, 1.0)
        return _Search(e, unused, unused).best([e.load(source, F32, VECTOR, VECTOR * k) for k in range(CANDIDATES)])

    return types.int64(totals), code
