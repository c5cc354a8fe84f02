"""The definition of the entropy coder in NumPy: rANS with 32 states that take turns, in chunks with a table each.

A state x codes symbol s of frequency f and first slot b (of 2**12) as

    x -> floor(x / f) * 2**12 + b + x mod f        after its low 16 bits went to the words, if x >= f * 2**20

and a decoder undoes it from the last to the first, so the encoder goes backwards. docs/wire-format.md is the same in words.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thinwire.errors import WireError
from thinwire.kernels import layout, reference
from thinwire.kernels.layout_rans import (
    BAD_END,
    BAD_MODE,
    BAD_SIZE,
    BAD_TABLE,
    CHUNK,
    CODED,
    CONSTANT,
    FAULTS,
    GOOD,
    LANES,
    LEAST,
    RAW,
    SCALE_BITS,
    TABLE_BYTES,
    TOTAL,
    WORD_BITS,
)

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


def damaged(chunk: int, fault: int) -> WireError:
    return WireError(f"chunk {chunk} of an entropy-coded row is damaged: {FAULTS[fault]}")


def frequencies(codes: U8) -> I64:
    """(256,) frequencies that sum to TOTAL: 1 for a code that occurs, and the rest by rounded cumulative counts."""
    counts = np.bincount(codes, minlength=256).astype(np.int64)
    used = counts > 0
    ends = np.cumsum(used) + np.cumsum(counts) * (TOTAL - int(used.sum())) // codes.size
    return np.diff(ends, prepend=0)


def write_table(frequency: I64) -> U8:
    """Digits of four bits, the lower first: frequencies from code 0 on until they sum to TOTAL; zeros as 0 and how many more."""
    digits: list[int] = []
    at = left = 0
    while left < TOTAL:
        value = int(frequency[at])
        _digits(value, digits)
        run = at
        while not value and not frequency[run + 1]:
            run += 1
        if not value:
            _digits(run - at, digits)
        left += value
        at = run + 1
    digits += [0] * (len(digits) % 2)
    return np.array(digits[::2], dtype=np.uint8) | np.array(digits[1::2], dtype=np.uint8) << np.uint8(4)


def _digits(value: int, digits: list[int]) -> None:
    """Three bits at a time, the lowest first; 8 says that more follow."""
    while value > 7:
        digits.append(8 | value & 7)
        value >>= 3
    digits.append(value)


def read_table(data: U8, bits: int) -> tuple[I64, int] | None:
    """The inverse of :func:`write_table` and its bytes, or None for a table that no encoder writes."""
    data = data[:TABLE_BYTES]
    digits = np.stack([data & 15, data >> 4], axis=1).ravel().tolist()
    at = code = total = 0
    frequency = np.zeros(256, dtype=np.int64)

    def number() -> int:
        nonlocal at
        value = 0
        for shift in (0, 3, 6, 9):
            if at >= len(digits):
                return -1
            digit = digits[at]
            at += 1
            value |= (digit & 7) << shift
            if digit < 8:
                return value
        return -1

    while total < TOTAL:
        value = number()
        run = 0 if value else number()
        if value < 0 or run < 0 or code + run >= 1 << bits:
            return None
        frequency[code] = value
        total += value
        code += 1 + run
    return (frequency, (at + 1) // 2) if total == TOTAL else None


def encode(codes: U8, bits: int) -> U8:
    """(n,) codes below ``2**bits`` -> the sizes of the chunks as u32, then the chunks."""
    parts = [_encode_chunk(codes[at : at + CHUNK], bits) for at in range(0, codes.size, CHUNK)]
    sizes = np.array([part.size for part in parts], dtype="<u4")
    return np.concatenate([sizes.view(np.uint8), *parts])


def _encode_chunk(codes: U8, bits: int) -> U8:
    frequency = frequencies(codes)
    if frequency.max() == TOTAL:
        return np.array([CONSTANT, codes[0]], dtype=np.uint8)
    states, words = _encode_states(codes, frequency)
    raw = reference.pack(codes[None], bits)[0]
    coded = np.concatenate([write_table(frequency), states.astype("<u4").view(np.uint8), words.astype("<u2").view(np.uint8)])
    mode, body = (CODED, coded) if coded.size < raw.size else (RAW, raw)
    return np.concatenate([np.array([mode], dtype=np.uint8), body])


def _encode_states(codes: U8, frequency: I64) -> tuple[I64, I64]:
    """Final states by lane, and words in the order in which a decoder wants them."""
    first = np.cumsum(frequency) - frequency
    states = np.full(LANES, LEAST, dtype=np.int64)
    words: list[I64] = []
    for start in range((codes.size - 1) // LANES * LANES, -1, -LANES):
        symbols = codes[start : start + LANES]
        x, f = states[: symbols.size], frequency[symbols]
        full = x >= f << (32 - SCALE_BITS)
        words.append(x[full] & (LEAST - 1))
        x = np.where(full, x >> WORD_BITS, x)
        states[: symbols.size] = (x // f << SCALE_BITS) + first[symbols] + x % f
    return states, np.concatenate(words[::-1])


def decode(data: U8, places: I64, n: int, bits: int) -> U8:
    """The chunks at ``data[places[k]:places[k + 1]]`` -> (n,) codes. Raises WireError for a chunk that no encoder writes."""
    codes = np.empty(n, dtype=np.uint8)
    for k, at in enumerate(range(0, n, CHUNK)):
        part = codes[at : at + CHUNK]
        fault = _decode_chunk(data[places[k] : places[k + 1]], part, bits)
        if fault:
            raise damaged(k, fault)
    return codes


def _decode_chunk(data: U8, codes: U8, bits: int) -> int:
    """Fill ``codes``; returns the fault, or GOOD."""
    if data.size < 2:
        return BAD_SIZE
    mode, body = data[0], data[1:]
    if mode == RAW:
        if body.size != layout.code_bytes(codes.size, bits):
            return BAD_SIZE
        codes[:] = reference.unpack(body[None], codes.size, bits)[0]
        return GOOD
    if mode == CONSTANT:
        if body.size != 1:
            return BAD_SIZE
        codes[:] = body[0]
        return BAD_MODE if int(body[0]) >> bits else GOOD
    if mode != CODED:
        return BAD_MODE
    table = read_table(body, bits)
    if table is None:
        return BAD_TABLE
    frequency, size = table
    count, odd = divmod(body.size - size - 4 * LANES, 2)
    if odd or not 0 <= count <= codes.size:
        return BAD_SIZE
    states = np.ascontiguousarray(body[size : size + 4 * LANES]).view("<u4").astype(np.int64)
    words = np.ascontiguousarray(body[size + 4 * LANES :]).view("<u2").astype(np.int64)
    return _decode_states(states, words, frequency, codes)


def _decode_states(states: I64, words: I64, frequency: I64, codes: U8) -> int:
    symbol = np.repeat(np.arange(256), frequency)
    first = np.cumsum(frequency) - frequency
    padded = np.concatenate([words, np.zeros(LANES, dtype=np.int64)])
    at = 0
    for start in range(0, codes.size, LANES):
        x = states[: min(LANES, codes.size - start)]
        slot = x & (TOTAL - 1)
        s = symbol[slot]
        codes[start : start + LANES] = s
        x = frequency[s] * (x >> SCALE_BITS) + slot - first[s]
        small = x < LEAST
        after = at + int(small.sum())
        if after > words.size:
            return BAD_END
        x[small] = x[small] << WORD_BITS | padded[at:after]
        states[: x.size] = x
        at = after
    return GOOD if at == words.size and (states == LEAST).all() else BAD_END
