"""Sizes and offsets of ``topk`` rows: the one place where reference and fast kernels get them from.

A row is one record a chunk: a bf16 scale, where the entries are, and their codes. Of a chunk of m elements (the last may be
short) ceil(k m / chunk) entries go. Plain integer arithmetic, since Numba compiles these functions too.
"""

from __future__ import annotations

SCALE_BYTES = 2


def entries(m: int, k: int, chunk: int) -> int:
    """Entries of a chunk of ``m`` elements."""
    return (k * m + chunk - 1) // chunk


def low_bits(m: int, count: int) -> int:
    """Bits of a position that are written as they are, floor(log2(m / count)); -1 where a bitmap of ``m`` bits is smaller."""
    if 4 * count >= m:
        return -1
    low = 1
    while count << (low + 1) <= m:
        low += 1
    return low


def map_bytes(m: int, count: int, low: int) -> int:
    """Bytes of the bitmap: one bit an element, or the upper bits of positions in unary."""
    return (m + 7) // 8 if low < 0 else (((m - 1) >> low) + count + 7) // 8


def field_bytes(count: int, width: int) -> int:
    """Bytes of ``count`` fields of ``width`` bits that follow one another without gaps."""
    return (count * max(width, 0) + 7) // 8


def record_bytes(m: int, k: int, chunk: int, bits: int) -> int:
    """Bytes of a chunk of ``m`` elements."""
    count = entries(m, k, chunk)
    low = low_bits(m, count)
    return SCALE_BYTES + map_bytes(m, count, low) + field_bytes(count, low) + field_bytes(count, bits)


def row_bytes(n: int, k: int, chunk: int, bits: int) -> int:
    """Bytes of a row of ``n`` elements, without padding."""
    full, rest = divmod(n, chunk)
    return full * record_bytes(chunk, k, chunk, bits) + (record_bytes(rest, k, chunk, bits) if rest else 0)
