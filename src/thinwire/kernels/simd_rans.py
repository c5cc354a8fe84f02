"""Vector code of the entropy coder: a round of 32 symbols, one a lane. Needs AVX2 for its shuffles by a table.

Table entries are loaded one by one: gathers are faster on some processors and many times slower on others.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.kernels.layout_rans import LANES, LEAST, SCALE_BITS, TOTAL, WORD_BITS
from thinwire.kernels.simd import F64, I8, I16, I32, I64, Emitter

WIDE = 8
_STATES, _MASK = ir.VectorType(I32, WIDE), TOTAL - 1
_START = ir.Constant(I64, 0)


def _const(e: Emitter, value: int) -> Any:
    return e.constant(I32, value, WIDE)


def _entries(e: Emitter, table: Any, indices: list[Any]) -> Any:
    found = ir.Constant(_STATES, ir.Undefined)
    for lane, index in enumerate(indices):
        found = e.b.insert_element(found, e.b.load(e.b.gep(table, [e.b.zext(index, I64)])), ir.Constant(I32, lane))
    return found


def _shuffle(e: Emitter, argument: int, mask: Any, values: Any) -> Any:
    """Lanes of ``values`` as the row ``mask`` of a table of lane numbers says."""
    row = e.load(e.pointer(argument, e.b.shl(mask, ir.Constant(I64, 3)), I8), I8, WIDE)
    return e.call("x86.avx2.permd", _STATES, values, e.b.zext(row, _STATES))


@intrinsic
def decode_round(
    typingctx: Any, words: Any, at: Any, states: Any, table: Any, expand: Any, codes: Any, codes_at: Any
) -> Any:  # fmt: skip
    """Code and next state of every lane; returns the place of the next word. Reads up to LANES + WIDE words from ``at`` on.

    ``table`` has, for each slot, the code, from bit 8 the frequency, and from bit 20 how far the slot is in its code.
    """

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        state, target = e.pointer(2, _START, I32), e.pointer(5, args[6], I8)
        entries, at = e.pointer(3, _START, I32), args[1]
        for k in range(0, LANES, WIDE):
            low = [b.load(b.gep(state, [ir.Constant(I64, k + lane)])) for lane in range(WIDE)]
            found = _entries(e, entries, [b.and_(one, ir.Constant(I32, _MASK)) for one in low])
            e.store(b.trunc(found, ir.VectorType(I8, WIDE)), target, I8, k)
            frequency = b.and_(b.lshr(found, _const(e, 8)), _const(e, _MASK))
            x = b.mul(frequency, b.lshr(e.load(state, I32, WIDE, k), _const(e, SCALE_BITS)))
            x = b.add(x, b.lshr(found, _const(e, 8 + SCALE_BITS)))
            small = b.icmp_unsigned("<", x, _const(e, LEAST))
            mask = b.zext(b.bitcast(small, I8), I64)
            word = _shuffle(e, 4, mask, b.zext(e.load(e.pointer(0, at, I16), I16, WIDE), _STATES))
            x = b.select(small, b.or_(b.shl(x, _const(e, WORD_BITS)), word), x)
            e.store(x, state, I32, k)
            at = b.add(at, e.call("ctpop.i64", I64, mask))
        return at

    return types.int64(words, types.int64, states, table, expand, codes, types.int64), code


@intrinsic
def encode_round(
    typingctx: Any, codes: Any, codes_at: Any, table: Any, states: Any, compress: Any, words: Any, at: Any
) -> Any:  # fmt: skip
    """The next state of every lane; their words go before ``at``, and the place of the first is returned.

    ``table`` has, for each code, the frequency, and from bit 12 the first slot. Up to WIDE words before that place are written.
    """

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(context, builder, sig, args), builder
        source, state = e.pointer(0, args[1], I8), e.pointer(3, _START, I32)
        entries, at = e.pointer(2, _START, I32), args[6]
        for k in reversed(range(0, LANES, WIDE)):
            found = _entries(e, entries, [b.load(b.gep(source, [ir.Constant(I64, k + lane)])) for lane in range(WIDE)])
            frequency = b.and_(found, _const(e, _MASK))
            x = e.load(state, I32, WIDE, k)
            full = b.icmp_unsigned(">=", x, b.shl(frequency, _const(e, 32 - SCALE_BITS)))
            mask = b.zext(b.bitcast(full, I8), I64)
            word = b.trunc(_shuffle(e, 4, mask, x), ir.VectorType(I16, WIDE))
            e.store(word, e.pointer(5, at, I16), I16, -WIDE)
            at = b.sub(at, e.call("ctpop.i64", I64, mask))
            x = b.select(full, b.lshr(x, _const(e, WORD_BITS)), x)
            x = b.add(b.add(x, b.lshr(found, _const(e, SCALE_BITS))), _rest(e, x, frequency))
            e.store(x, state, I32, k)
        return at

    return types.int64(codes, types.int64, table, states, compress, words, types.int64), code


def _rest(e: Emitter, x: Any, frequency: Any) -> Any:
    """``floor(x / frequency) * (TOTAL - frequency)``, so that with ``x`` it is the quotient's share and the remainder.

    The quotient in fp64, rounded to nearest, never reaches the next integer: both numbers are integers below 2**32.
    """
    doubles = ir.VectorType(F64, WIDE)
    quotient = e.b.fptosi(e.b.fdiv(e.b.uitofp(x, doubles), e.b.sitofp(frequency, doubles)), _STATES)
    return e.b.mul(quotient, e.b.sub(_const(e, TOTAL), frequency))
