"""The entropy coder in Numba: the bytes of reference_rans.py, with the vector code of simd_rans.py where it can run."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels.cpu_tile import pack_tile, plane_size, unpack_tile
from thinwire.kernels.jit import BYTES, INT, READ_BYTES, inline, kernel, types
from thinwire.kernels.layout_rans import (
    BAD_END,
    BAD_MODE,
    BAD_SIZE,
    BAD_TABLE,
    CHUNK,
    CODED,
    COMPRESS,
    CONSTANT,
    EXPAND,
    GOOD,
    LANES,
    LEAST,
    RAW,
    SCALE_BITS,
    TABLE_BYTES,
    TOTAL,
)
from thinwire.kernels.simd import shuffles
from thinwire.kernels.simd_rans import WIDE, decode_round, encode_round

_VECTORS = shuffles()
_STATE_BYTES = 4 * LANES
_SPARE = LANES + WIDE
"""Words that a round may touch beyond those that are there."""
_SHIFT, _LEAST, _WORD, _SLOT = np.uint32(SCALE_BITS), np.uint32(LEAST), np.uint32(16), np.uint32(TOTAL - 1)
_FULL = np.uint32(32 - SCALE_BITS)
_PLACES = types.int64[::1]


@inline
def _packed_bytes(count: int, bits: int) -> int:
    size = 0
    for width in (8, 4, 2, 1):
        size += plane_size(count, width) if bits & width else 0
    return size


@inline
def _count(codes: Any, counts: Any) -> None:
    """How often each code occurs; four counters in turn, since equal neighbours would wait for each other."""
    parts = np.zeros((4, 256), np.uint32)
    done = 0
    while done + 4 <= codes.size:
        for k in range(4):
            parts[k, codes[done + k]] += np.uint32(1)
        done += 4
    for i in range(done, codes.size):
        parts[0, codes[i]] += np.uint32(1)
    for s in range(256):
        counts[s] = np.int64(parts[0, s]) + np.int64(parts[1, s]) + np.int64(parts[2, s]) + np.int64(parts[3, s])


@inline
def _frequencies(counts: Any, size: int, table: Any, frequency: Any) -> int:
    """Entries for ``encode_round`` and frequencies that sum to TOTAL; returns how many codes occur."""
    used = 0
    for s in range(256):
        used += 1 if counts[s] else 0
    seen, known, end = 0, 0, 0
    for s in range(256):
        before = end
        if counts[s]:
            seen += counts[s]
            known += 1
            end = known + seen * (TOTAL - used) // size
        frequency[s] = end - before
        table[s] = np.uint32((end - before) | before << SCALE_BITS)
    return used


@inline
def _write_digits(value: int, digits: Any, at: int) -> int:
    while value > 7:
        digits[at] = np.uint8(8 | value & 7)
        value >>= 3
        at += 1
    digits[at] = np.uint8(value)
    return at + 1


@inline
def _write_table(frequency: Any, digits: Any, data: Any) -> int:
    """The table's bytes to the front of ``data``; returns how many."""
    at, code, left = 0, 0, TOTAL
    while left:
        value = frequency[code]
        at = _write_digits(value, digits, at)
        run = code
        if value == 0:
            while frequency[run + 1] == 0:
                run += 1
            at = _write_digits(run - code, digits, at)
        left -= value
        code = run + 1
    digits[at] = np.uint8(0)
    size = (at + 1) // 2
    for i in range(size):
        data[i] = digits[2 * i] | digits[2 * i + 1] << np.uint8(4)
    return size


@inline
def _encode_states(codes: Any, table: Any, states: Any, words: Any) -> int:
    """States by lane, and words to the end of ``words``; returns the place of the first."""
    for lane in range(LANES):
        states[lane] = _LEAST
    at = words.size
    stop = codes.size
    while stop:
        start = (stop - 1) // LANES * LANES
        if _VECTORS and stop - start == LANES:
            at = encode_round(codes, start, table, states, COMPRESS, words, at)
        else:
            for lane in range(stop - start - 1, -1, -1):
                entry = table[codes[start + lane]]
                x, f = states[lane], entry & _SLOT
                words[at - 1] = np.uint16(x)
                full = x >= f << _FULL
                at -= np.int64(full)
                x = x >> _WORD if full else x
                states[lane] = x + (entry >> _SHIFT) + (x // f) * (np.uint32(TOTAL) - f)
        stop = start
    return at


@inline
def _copy(source: Any, target: Any) -> None:
    for i in range(source.size):
        target[i] = source[i]


@inline
def _encode_chunk(codes: Any, bits: int, out: Any, counts: Any, frequency: Any, table: Any, states: Any, words: Any) -> int:
    """The chunk to the front of ``out``; returns its bytes."""
    _count(codes, counts)
    if _frequencies(counts, codes.size, table, frequency) == 1:
        out[0], out[1] = np.uint8(CONSTANT), codes[0]
        return 2
    digits, head = np.empty(2 * TABLE_BYTES + 1, np.uint8), np.empty(TABLE_BYTES + 1, np.uint8)
    size = _write_table(frequency, digits, head)
    at = _encode_states(codes, table, states, words)
    body = words[at:].view(np.uint8)
    raw = _packed_bytes(codes.size, bits)
    if size + _STATE_BYTES + body.size >= raw:
        out[0] = np.uint8(RAW)
        if bits == 8:
            _copy(codes, out[1:])
        else:
            pack_tile(codes, codes.size, bits, out[1 : 1 + raw], 0, codes.size)
        return 1 + raw
    out[0] = np.uint8(CODED)
    _copy(head[:size], out[1 : 1 + size])
    _copy(states.view(np.uint8), out[1 + size : 1 + size + _STATE_BYTES])
    _copy(body, out[1 + size + _STATE_BYTES :])
    return 1 + size + _STATE_BYTES + body.size


@kernel(READ_BYTES, INT, INT, INT, INT, INT, BYTES, types.uint32[::1])
def rans_encode(packed: Any, n: int, bits: int, start: int, stop: int, slot: int, out: Any, sizes: Any) -> None:
    """Chunks of the packed codes [start, stop), each to its place at a multiple of ``slot``; their bytes to ``sizes``."""
    buffer, words = np.empty(CHUNK, np.uint8), np.empty(CHUNK + _SPARE, np.uint16)
    counts, frequency = np.empty(256, np.int64), np.empty(256, np.int64)
    table, states = np.empty(256, np.uint32), np.empty(LANES, np.uint32)
    for at in range(start, stop, CHUNK):
        end, k = min(at + CHUNK, stop), at // CHUNK
        codes = packed[at:end] if bits == 8 else buffer[: end - at]
        if bits != 8:
            unpack_tile(buffer, end - at, bits, packed, at, n)
        sizes[k] = np.uint32(_encode_chunk(codes, bits, out[k * slot :], counts, frequency, table, states, words))


@inline
def _read_number(data: Any, at: int) -> Any:
    """A number and the digit after it; -1 for one that has no end."""
    value = 0
    for k in range(4):
        if at >= 2 * data.size:
            return -1, at
        digit = np.int64(data[at // 2]) >> (4 * (at % 2)) & 15
        at += 1
        value |= (digit & 7) << (3 * k)
        if digit < 8:
            return value, at
    return -1, at


@inline
def _read_table(data: Any, bits: int, table: Any) -> int:
    """Entries for ``decode_round``; returns the table's bytes, or 0 for one that no encoder writes."""
    at, code, total = 0, 0, 0
    while total < TOTAL:
        value, at = _read_number(data, at)
        run = 0
        if value == 0:
            run, at = _read_number(data, at)
        if value < 0 or run < 0 or code + run >= 1 << bits or total + value > TOTAL:
            return 0
        entry = np.uint32(code) | np.uint32(value) << np.uint32(8)
        for k in range(value):
            table[total + k] = entry | np.uint32(k) << np.uint32(8 + SCALE_BITS)
        total += value
        code += 1 + run
    return (at + 1) // 2


@inline
def _decode_states(states: Any, words: Any, count: int, table: Any, codes: Any) -> int:
    """Fill ``codes`` from ``count`` words, behind which _SPARE more may be read; returns the fault, or GOOD."""
    at = 0
    for start in range(0, codes.size, LANES):
        if _VECTORS and start + LANES <= codes.size:
            at = decode_round(words, at, states, table, EXPAND, codes, start)
        else:
            for lane in range(min(LANES, codes.size - start)):
                x = states[lane]
                entry = table[x & _SLOT]
                codes[start + lane] = np.uint8(entry)
                x = (entry >> np.uint32(8) & _SLOT) * (x >> _SHIFT) + (entry >> np.uint32(8 + SCALE_BITS))
                small = x < _LEAST
                x = x << _WORD | np.uint32(words[at]) if small else x
                at += np.int64(small)
                states[lane] = x
        if at > count:
            return BAD_END
    for lane in range(LANES):
        if states[lane] != _LEAST:
            return BAD_END
    return GOOD if at == count else BAD_END


@inline
def _decode_coded(body: Any, bits: int, codes: Any, table: Any, states: Any, words: Any) -> int:
    size = _read_table(body[: min(body.size, TABLE_BYTES)], bits, table)
    if size == 0:
        return BAD_TABLE
    left = body.size - size - _STATE_BYTES
    if left < 0 or left & 1 or left // 2 > codes.size:
        return BAD_SIZE
    _copy(body[size : size + _STATE_BYTES], states.view(np.uint8))
    _copy(body[size + _STATE_BYTES :], words.view(np.uint8))
    return _decode_states(states, words, left // 2, table, codes)


@inline
def _decode_chunk(data: Any, bits: int, codes: Any, table: Any, states: Any, words: Any) -> int:
    """Fill ``codes``; returns the fault, or GOOD."""
    if data.size < 2:
        return BAD_SIZE
    mode, body = data[0], data[1:]
    if mode == RAW:
        if body.size != _packed_bytes(codes.size, bits):
            return BAD_SIZE
        if bits == 8:
            _copy(body, codes)
        else:
            unpack_tile(codes, codes.size, bits, body, 0, codes.size)
        return GOOD
    if mode == CONSTANT:
        if body.size != 1:
            return BAD_SIZE
        codes[:] = body[0]
        return BAD_MODE if np.int64(body[0]) >> bits else GOOD
    if mode != CODED:
        return BAD_MODE
    return _decode_coded(body, bits, codes, table, states, words)


@kernel(READ_BYTES, _PLACES, INT, INT, INT, INT, BYTES, BYTES)
def rans_decode(data: Any, places: Any, n: int, bits: int, start: int, stop: int, packed: Any, faults: Any) -> None:
    """The packed codes [start, stop) from the chunks at ``data[places[k]:places[k + 1]]``; each chunk's fault to ``faults``."""
    buffer, words = np.empty(CHUNK, np.uint8), np.empty(CHUNK + _SPARE, np.uint16)
    table, states = np.empty(TOTAL, np.uint32), np.empty(LANES, np.uint32)
    for at in range(start, stop, CHUNK):
        end, k = min(at + CHUNK, stop), at // CHUNK
        codes = packed[at:end] if bits == 8 else buffer[: end - at]
        faults[k] = np.uint8(_decode_chunk(data[places[k] : places[k + 1]], bits, codes, table, states, words))
        if bits != 8:
            pack_tile(buffer, end - at, bits, packed, at, n)
