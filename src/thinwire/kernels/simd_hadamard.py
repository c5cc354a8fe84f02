"""Vector code of the Hadamard transform: butterflies within and between vectors. No bounds are checked."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels.simd import F32, I32, VECTOR, Emitter


def _within(e: Emitter, v: Any) -> Any:
    """The stages of steps 1 to 8: lane i and lane i ^ step become their sum and their difference."""
    b, step = e.b, 1
    while step < VECTOR:
        partner = b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, VECTOR), [i ^ step for i in range(VECTOR)]))
        signs = ir.Constant(ir.VectorType(I32, VECTOR), [0x80000000 if i & step else 0 for i in range(VECTOR)])
        own = b.bitcast(b.xor(b.bitcast(v, ir.VectorType(I32, VECTOR)), signs), v.type)
        v = b.fadd(partner, own)
        step *= 2
    return v


def _make_butterflies(count: int) -> Any:
    @intrinsic
    def butterflies(typingctx: Any, x: Any, at: Any) -> Any:
        """The unscaled Hadamard transform of ``count`` vectors of ``x``, in place."""

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e = Emitter(context, builder, sig, args)
            place = e.pointer(0, args[1], F32)
            vectors = [_within(e, e.load(place, F32, VECTOR, VECTOR * k)) for k in range(count)]
            step = 1
            while step < count:
                for k in (k for k in range(count) if not k & step):
                    a, b = vectors[k], vectors[k + step]
                    vectors[k], vectors[k + step] = builder.fadd(a, b), builder.fsub(a, b)
                step *= 2
            for k, v in enumerate(vectors):
                e.store(v, place, F32, VECTOR * k)
            return context.get_dummy_value()

        return types.none(x, types.int64), code

    return butterflies


@intrinsic
def butterfly_64(typingctx: Any, x: Any, at: Any, step: Any) -> Any:
    """Elements [at, at + 64) and those ``step`` further become their sums and differences, in place."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(context, builder, sig, args)
        low, high = e.pointer(0, args[1], F32), e.pointer(0, builder.add(args[1], args[2]), F32)
        for k in range(0, 64, VECTOR):
            a, b = e.load(low, F32, VECTOR, k), e.load(high, F32, VECTOR, k)
            e.store(builder.fadd(a, b), low, F32, k)
            e.store(builder.fsub(a, b), high, F32, k)
        return context.get_dummy_value()

    return types.none(x, types.int64, types.int64), code


butterflies_16, butterflies_64, butterflies_256 = (_make_butterflies(count) for count in (1, 4, 16))
