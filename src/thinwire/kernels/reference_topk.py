"""The definition of ``topk`` rows in NumPy; see :mod:`thinwire.kernels.reference` for the conventions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.kernels import layout, layout_topk, reference
from thinwire.kernels.reference import F32, U8, U32

I64 = npt.NDArray[np.int64]


def topk_encode(x: F32, wire: U8, k: int, chunk: int, bits: int, error: F32 | None) -> None:
    """Of each chunk the entries of largest magnitude, the lower index first among equals, with one scale as in ``intB``."""
    for row, target in zip(x, wire, strict=True):
        at = 0
        for start in range(0, x.shape[1], chunk):
            record = _encode_chunk(row[start : start + chunk], k, chunk, bits)
            target[at : at + record.size] = record
            at += record.size
    if error is not None:
        values = np.empty_like(x)
        topk_decode(wire, values, k, chunk, bits, add=False)
        reference.lost(x, values, error)


def _encode_chunk(x: F32, k: int, chunk: int, bits: int) -> U8:
    m = x.size
    patterns = np.ascontiguousarray(x).view(np.uint32)
    magnitudes = (patterns & np.uint32(0x7FFFFFFF)).astype(np.int64)
    record = np.zeros(layout_topk.record_bytes(m, k, chunk, bits), dtype=np.uint8)
    if magnitudes.max() >= 0x7F800000:
        record[:2] = _bytes_of(layout.BF16_NAN)
        return record
    count = layout_topk.entries(m, k, chunk)
    places = np.sort(np.argsort(-magnitudes, kind="stable")[:count])
    chosen = patterns[places]
    keys = ((chosen << np.uint32(1)) | (chosen >> np.uint32(31))).max().reshape(1, 1)
    scale = reference.bf16_scales(keys, bits)
    codes = _codes(chosen.view(np.float32), reference.bf16_values(scale)[0, 0], bits)
    record[:2] = _bytes_of(int(scale[0, 0]))
    record[2:] = np.concatenate([*_write_places(places, m), _pack(codes, bits)])
    return record


def _bytes_of(scale: int) -> U8:
    return np.array([scale], dtype="<u2").view(np.uint8)


def _codes(x: F32, scale: np.float32, bits: int) -> I64:
    half = 1 << (bits - 1)
    if scale == 0:
        return np.full(x.size, half, dtype=np.int64)
    return np.clip(np.rint(x * (np.float32(1) / scale)), -half, half - 1).astype(np.int64) + half


def _write_places(places: I64, m: int) -> tuple[U8, U8]:
    """Elias-Fano: the upper bits as a bitmap, entry i at bit (upper + i), and the lower bits; or one bit an element."""
    low = layout_topk.low_bits(m, places.size)
    marks = np.zeros(8 * layout_topk.map_bytes(m, places.size, low), dtype=np.uint8)
    if low < 0:
        marks[places] = 1
        return np.packbits(marks, bitorder="little"), np.empty(0, dtype=np.uint8)
    marks[(places >> low) + np.arange(places.size)] = 1
    return np.packbits(marks, bitorder="little"), _pack(places & ((1 << low) - 1), low)


def _pack(fields: I64, width: int) -> U8:
    """Fields of ``width`` bits without gaps, the least significant bit first."""
    return np.packbits(((fields[:, None] >> np.arange(width)) & 1).astype(np.uint8).ravel(), bitorder="little")


def _unpack(packed: U8, count: int, width: int) -> I64:
    found = np.unpackbits(packed, bitorder="little")[: count * width].astype(np.int64)
    return (found.reshape(count, width) << np.arange(width)).sum(axis=1)


def topk_decode(wire: U8, out: F32, k: int, chunk: int, bits: int, add: bool) -> None:
    """``x = (code - 2**(bits-1)) * s`` at the entries and 0 elsewhere; a scale that is not finite makes its chunk NaN."""
    if not add:
        out[...] = 0
    for row, target in zip(wire, out, strict=True):
        at = 0
        for start in range(0, out.shape[1], chunk):
            piece = target[start : start + chunk]
            size = layout_topk.record_bytes(piece.size, k, chunk, bits)
            _add_chunk(row[at : at + size], piece, k, chunk, bits)
            at += size


def _add_chunk(record: U8, out: F32, k: int, chunk: int, bits: int) -> None:
    m, count = out.size, layout_topk.entries(out.size, k, chunk)
    scale = reference.bf16_values(np.ascontiguousarray(record[:2]).view("<u2").astype(np.uint16))[0]
    if not np.isfinite(scale):
        out += np.float32(np.nan)
        return
    places, entries = _read_places(record[2:], m, count)
    codes = _unpack(record[record.size - layout_topk.field_bytes(count, bits) :], count, bits)[entries]
    with np.errstate(over="ignore", invalid="ignore"):
        values: npt.NDArray[Any] = (codes - (1 << (bits - 1))).astype(np.float32) * scale
        np.add.at(out, places, values)


def _read_places(record: U8, m: int, count: int) -> tuple[I64, U32]:
    """Positions below ``m``, and which entries they belong to; those that a writer would not write are left out."""
    low = layout_topk.low_bits(m, count)
    size = layout_topk.map_bytes(m, count, low)
    marks = np.flatnonzero(np.unpackbits(record[:size], bitorder="little"))[:count]
    entries = np.arange(marks.size)
    places = marks
    if low >= 0:
        lower = _unpack(record[size : size + layout_topk.field_bytes(count, low)], count, low)
        places = ((marks - entries) << low) | lower[: marks.size]
    inside = places < m
    return places[inside], entries[inside].astype(np.uint32)
