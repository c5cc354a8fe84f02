"""Numba kernels of ``topk``; the definition is :func:`thinwire.kernels.reference_topk.topk_encode`.

The entries of a chunk are found without sorting it: of G > k groups of its elements the k-th largest of their maxima is a lower
bound of the k-th largest magnitude, which few elements more than k exceed; among those, it is found bit by bit.
"""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels import layout_topk
from thinwire.kernels.cpu_int import bf16_scales
from thinwire.kernels.cpu_tile import load_tile
from thinwire.kernels.jit import BOOL, BYTES, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import BF16_NAN
from thinwire.kernels.layout_topk import SCALE_BYTES
from thinwire.kernels.simd_topk import LANES, count_from, largest_magnitudes, lowest_bit, mask_above, number_of_bits

_TINY = np.float32(2.0**-126)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITE = np.int32(0x7F800000)
_COARSE = 14
"""Bits of a bound that are left out: what it lets through besides is a thousandth."""

_entries = inline(layout_topk.entries)
_low_bits = inline(layout_topk.low_bits)
_map_bytes = inline(layout_topk.map_bytes)
_field_bytes = inline(layout_topk.field_bytes)


@inline
def _record_bytes(m: int, k: int, chunk: int, bits: int) -> int:
    count = _entries(m, k, chunk)
    low = _low_bits(m, count)
    return SCALE_BYTES + _map_bytes(m, count, low) + _field_bytes(count, low) + _field_bytes(count, bits)


@inline
def _kth_largest(keys: Any, size: int, count: int, least: Any, most: Any, lowest: int) -> Any:
    """The ``count``-th largest of the first ``size`` keys, its bits below ``lowest`` left out; pads ``keys`` with zeros.

    It is known to be at least ``least`` and at most ``most``.
    """
    padded = (size + LANES - 1) // LANES * LANES
    keys[size:padded] = np.int32(0)
    bit = 0
    while (least ^ most) >> bit:
        bit += 1
    found = np.int64(most) >> bit << bit
    while bit > lowest:
        bit -= 1
        larger = found | (np.int64(1) << bit)
        if count_from(keys, padded, larger) >= count:
            found = larger
    return found


@inline
def _maxima(patterns: Any, groups: int, maxima: Any) -> None:
    """The largest magnitude of each group; the elements of a group lie ``groups`` apart."""
    m = patterns.size
    rows = m // groups
    done = 0
    while done + LANES <= groups:
        largest_magnitudes(patterns, done, rows, groups, maxima, done)
        done += LANES
    for i in range(done, groups):
        best = np.int32(0)
        for j in range(i, rows * groups, groups):
            best = max(best, np.int32(patterns[j] & _MAGNITUDE))
        maxima[i] = best
    for j in range(rows * groups, m):
        maxima[j - rows * groups] = max(maxima[j - rows * groups], np.int32(patterns[j] & _MAGNITUDE))


@inline
def _places_above(patterns: Any, limit: int, places: Any) -> int:
    """The positions of magnitudes above ``limit``, in order; returns how many there are."""
    m, count = patterns.size, 0
    for at in range(0, m - LANES + 1, LANES):
        word = mask_above(patterns, at, limit)
        # Two without asking whether there are any: a branch that is hard to predict costs more.
        following = count + number_of_bits(word)
        places[count] = at + lowest_bit(word)
        word &= word - np.uint64(1)
        places[count + 1] = at + lowest_bit(word)
        count += 2
        while count < following:
            word &= word - np.uint64(1)
            places[count] = at + lowest_bit(word)
            count += 1
        count = following
    for i in range(m - m % LANES, m):
        places[count] = i
        count += np.int64(np.int64(patterns[i] & _MAGNITUDE) > limit)
    return count


@inline
def _choose(patterns: Any, count: int, keys: Any, places: Any) -> bool:
    """The positions of the ``count`` entries to ``places``, in order; False if an element is not finite."""
    m = patterns.size
    groups = LANES
    while 2 * groups < 3 * count:
        groups *= 2
    groups = min(groups, m)
    _maxima(patterns, groups, keys)
    largest = np.int32(0)
    for i in range(groups):
        largest = max(largest, keys[i])
    if largest >= _INFINITE:
        return False
    # Groups of one element are the elements: their bound is exact at once.
    limit = _kth_largest(keys, groups, count, 0, largest, _COARSE if groups < m else 0)
    found = _places_above(patterns, limit, places)
    if found > count:
        for i in range(found):
            keys[i] = np.int32(patterns[places[i]] & _MAGNITUDE)
        limit = _kth_largest(keys, found, count, limit, largest, 0)
    elif found < count:
        # At least ``count`` elements reach the bound, so the rest equal it.
        found = m
        for i in range(m):
            places[i] = i
    if found > count:
        _keep(patterns, limit, count, places, found)
    return True


@inline
def _keep(patterns: Any, limit: int, count: int, places: Any, size: int) -> None:
    """Of the first ``size`` places those above ``limit`` and, to make ``count`` of them, the first that equal it."""
    equal = count
    for i in range(size):
        equal -= np.int64(np.int64(patterns[places[i]] & _MAGNITUDE) > limit)
    kept = 0
    for i in range(size):
        place = places[i]
        magnitude = np.int64(patterns[place] & _MAGNITUDE)
        places[kept] = place
        level = np.int64(magnitude == limit) & np.int64(equal > 0)
        kept += np.int64(magnitude > limit) | level
        equal -= level


@inline
def _extreme(patterns: Any, places: Any, count: int) -> Any:
    """The largest key (fp32 bits rotated left by one: the sign goes last) of the entries."""
    best = np.uint32(0)
    for i in range(count):
        pattern = patterns[places[i]]
        best = max(best, np.uint32((pattern << np.uint32(1)) | (pattern >> np.uint32(31))))
    return best


@inline
def _pack(fields: Any, count: int, width: int, out: Any) -> None:
    """The lower ``width`` bits of ``count`` fields without gaps."""
    word, filled, at = np.uint64(0), 0, 0
    mask = np.uint64((1 << width) - 1)
    for i in range(count):
        word |= (np.uint64(fields[i]) & mask) << np.uint64(filled)
        filled += width
        if filled >= 32:
            for j in range(4):
                out[at + j] = np.uint8(word >> np.uint64(8 * j))
            word >>= np.uint64(32)
            filled -= 32
            at += 4
    while filled > 0:
        out[at] = np.uint8(word)
        word >>= np.uint64(8)
        filled -= 8
        at += 1


@inline
def _unpack(packed: Any, count: int, width: int, fields: Any) -> None:
    """The inverse of :func:`_pack`."""
    mask = np.uint32((1 << width) - 1)
    # A field of up to 14 bits is within the four bytes from its first on, where there are as many.
    whole = min(count, max(0, (8 * (packed.size - 4)) // width + 1)) if packed.size >= 4 else 0
    for i in range(whole):
        at = (i * width) >> 3
        word = np.uint32(packed[at]) | (np.uint32(packed[at + 1]) << np.uint32(8))
        word |= (np.uint32(packed[at + 2]) << np.uint32(16)) | (np.uint32(packed[at + 3]) << np.uint32(24))
        fields[i] = np.int32((word >> np.uint32((i * width) & 7)) & mask)
    for i in range(whole, count):
        word = np.uint32(0)
        for j in range((i * width) >> 3, packed.size):
            word |= np.uint32(packed[j]) << np.uint32(8 * (j - ((i * width) >> 3)))
        fields[i] = np.int32((word >> np.uint32((i * width) & 7)) & mask)


@inline
def _write_places(places: Any, count: int, low: int, marks: Any, lower: Any) -> None:
    marks[:] = np.uint8(0)
    for i in range(count):
        bit = places[i] if low < 0 else (places[i] >> low) + i
        marks[bit >> 3] |= np.uint8(1 << (bit & 7))
    if low > 0:
        _pack(places, count, low, lower)


@inline
def _read_places(marks: Any, lower: Any, count: int, low: int, places: Any) -> int:
    """Positions, which may lie beyond the chunk if the bytes are not a writer's; returns how many, at most ``count``."""
    if low > 0:
        _unpack(lower, count, low, places)
    found, size = 0, marks.size
    for at in range(0, size, 8):
        word = np.uint64(0)
        for j in range(min(8, size - at)):
            word |= np.uint64(marks[at + j]) << np.uint64(8 * j)
        while word != np.uint64(0) and found < count:
            bit = 8 * at + lowest_bit(word)
            places[found] = bit if low < 0 else ((bit - found) << low) | places[found]
            found += 1
            word &= word - np.uint64(1)
    return found


@inline
def _quantize(patterns: Any, places: Any, count: int, scale: Any, bits: int, codes: Any, values: Any) -> None:
    """Codes of the entries, and what a reader will make of them."""
    half = np.int32(1 << (bits - 1))
    usable = abs(scale) >= _TINY
    inverse = np.float32(1) / scale if usable else np.float32(0)
    tile = patterns.view(np.float32)
    for i in range(count):
        step = np.int32(np.rint(tile[places[i]] * inverse)) if usable else np.int32(0)
        step = np.int32(min(max(step, -half), half - np.int32(1)))
        codes[i] = step + half
        values[i] = np.float32(0) + np.float32(step) * scale


@inline
def _lose(tile: Any, error: Any, places: Any, values: Any, count: int) -> None:
    """What the wire lost: everything but the entries, and what rounding took of those. ``error`` may be ``tile``."""
    error[:] = tile
    for i in range(count):
        error[places[i]] -= values[i]


@inline
def _record(at: int, m: int, k: int, chunk: int, bits: int) -> Any:
    """Of the chunk of ``m`` elements at ``at``: entries, lower bits of a position, where its parts begin, and its end."""
    count = _entries(m, k, chunk)
    low = _low_bits(m, count)
    first = at // chunk * _record_bytes(chunk, k, chunk, bits)
    marks_at = first + SCALE_BYTES
    lower_at = marks_at + _map_bytes(m, count, low)
    codes_at = lower_at + _field_bytes(count, low)
    return count, low, first, marks_at, lower_at, codes_at, codes_at + _field_bytes(count, bits)


@kernel(READ_BYTES, INT, BYTES, INT, INT, INT, INT, INT, FLOATS)
def topk_encode(x: Any, kind: int, wire: Any, start: int, stop: int, k: int, chunk: int, bits: int, error: Any) -> None:
    """Encode elements [start, stop) of a row; ``start`` is a multiple of the chunk. ``error`` may be empty."""
    scratch = np.empty(chunk, np.uint32)
    keys, places, codes = np.empty(chunk + LANES, np.int32), np.empty(chunk + 2, np.int32), np.empty(chunk, np.int32)
    values = np.empty(chunk, np.float32)
    key, stored, scales = np.empty(1, np.uint32), np.empty(1, np.uint16), np.empty(1, np.float32)
    for at in range(start, stop, chunk):
        m = min(chunk, stop - at)
        tile = load_tile(x, kind, at, at + m, scratch)
        patterns = tile.view(np.uint32)
        count, low, first, marks_at, lower_at, codes_at, end = _record(at, m, k, chunk, bits)
        if not _choose(patterns, count, keys, places):
            wire[first] = np.uint8(BF16_NAN & 0xFF)
            wire[first + 1] = np.uint8(BF16_NAN >> 8)
            wire[marks_at:end] = np.uint8(0)
            if error.size:
                error[at : at + m] = np.float32(np.nan)
            continue
        key[0] = _extreme(patterns, places, count)
        bf16_scales(key, bits, stored, scales, False)
        wire[first] = np.uint8(stored[0] & np.uint16(0xFF))
        wire[first + 1] = np.uint8(stored[0] >> np.uint16(8))
        _write_places(places, count, low, wire[marks_at:lower_at], wire[lower_at:codes_at])
        _quantize(patterns, places, count, scales[0], bits, codes, values)
        _pack(codes, count, bits, wire[codes_at:end])
        if error.size:
            _lose(tile, error[at : at + m], places, values, count)


@kernel(READ_BYTES, FLOATS, INT, INT, INT, INT, INT, BOOL)
def topk_decode(wire: Any, out: Any, start: int, stop: int, k: int, chunk: int, bits: int, add: bool) -> None:
    """Decode elements [start, stop) of a row, or add them to ``out``, which is touched at the entries only."""
    half = np.int32(1 << (bits - 1))
    # For the entries of the longest chunk that is there: a header's fields alone allocate nothing.
    most = _entries(min(chunk, stop - start), k, chunk)
    places, codes = np.empty(most, np.int32), np.empty(most, np.int32)
    pattern = np.empty(1, np.uint32)
    for at in range(start, stop, chunk):
        m = min(chunk, stop - at)
        target = out[at : at + m]
        count, low, first, marks_at, lower_at, codes_at, end = _record(at, m, k, chunk, bits)
        pattern[0] = (np.uint32(wire[first]) << np.uint32(16)) | (np.uint32(wire[first + 1]) << np.uint32(24))
        if pattern[0] & np.uint32(0x7F800000) == np.uint32(0x7F800000):
            target[:] = np.float32(np.nan)
            continue
        if not add:
            target[:] = np.float32(0)
        scale = pattern.view(np.float32)[0]
        found = _read_places(wire[marks_at:lower_at], wire[lower_at:codes_at], count, low, places)
        _unpack(wire[codes_at:end], count, bits, codes)
        for i in range(found):
            if places[i] < m:
                target[places[i]] += np.float32(codes[i] - half) * scale
