"""The definition of every format in NumPy: slow, plain, and what the fast kernels are compared with bit by bit.

All functions work on rows: ``x`` is (r, n) float32, ``wire`` (r, wire_bytes) uint8 and zero on entry of an encoder,
``out`` and ``error`` (r, n) float32. docs/wire-format.md is the same in words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.kernels import layout, rng

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]


def bf16_bits(x: F32) -> U16:
    """The upper half of fp32, rounded to nearest even; finite stays finite, NaN becomes the quiet NaN."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    magnitude = bits & 0x7FFFFFFF
    sign = (bits >> 16) & 0x8000
    rounded = np.where(magnitude < 0x7F800000, np.minimum(rounded & 0x7FFF, layout.BF16_MAX) | sign, rounded)
    return np.where(magnitude > 0x7F800000, layout.BF16_NAN, rounded).astype(np.uint16)


def bf16_values(bits: U16) -> F32:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f16_bits(x: F32) -> U16:
    """IEEE half precision, rounded to nearest even."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).view(np.uint16)


def f16_values(bits: U16) -> F32:
    with np.errstate(invalid="ignore"):
        return bits.view(np.float16).astype(np.float32)


def blocks_of(x: npt.NDArray[Any], block: int) -> npt.NDArray[Any]:
    """(r, n) -> (r, blocks, block), zero-padded."""
    rows, n = x.shape
    count = -(-n // block)
    padded = np.zeros((rows, count * block), dtype=x.dtype)
    padded[:, :n] = x
    return padded.reshape(rows, count, block)


# --- packing -------------------------------------------------------------------------------------------------------


def pack(codes: npt.NDArray[np.integer], bits: int) -> U8:
    """(r, n) codes below ``2**bits`` -> (r, code_bytes): planes of 16, 8, 4, 2 and 1 bits, each packed by units."""
    planes: list[U8] = []
    shift = bits
    for width in layout.plane_widths(bits):
        shift -= width
        planes.append(_pack_plane((codes.astype(np.uint32) >> shift) & ((1 << width) - 1), width))
    return np.concatenate(planes, axis=1)


def _pack_plane(values: npt.NDArray[np.integer], width: int) -> U8:
    if width >= 8:
        return np.ascontiguousarray(values.astype(f"<u{width // 8}")).view(np.uint8)
    rows, n = values.shape
    out = np.zeros((rows, layout.plane_bytes(n, width)), dtype=np.uint8)
    for start in range(0, n, layout.UNIT):
        count = min(layout.UNIT, n - start)
        size = -(-count * width // 8)
        at = start * width // 8
        for slot, first in enumerate(range(0, count, size)):
            piece = values[:, start + first : start + min(first + size, count)]
            out[:, at : at + piece.shape[1]] |= (piece << (slot * width)).astype(np.uint8)
    return out


def unpack(packed: U8, n: int, bits: int) -> U32:
    """The inverse of :func:`pack`: (r, code_bytes) -> (r, n)."""
    codes = np.zeros((packed.shape[0], n), dtype=np.uint32)
    at, shift = 0, bits
    for width in layout.plane_widths(bits):
        shift -= width
        size = layout.plane_bytes(n, width)
        codes |= _unpack_plane(packed[:, at : at + size], n, width) << np.uint32(shift)
        at += size
    return codes


def _unpack_plane(plane: U8, n: int, width: int) -> U32:
    if width >= 8:
        return np.ascontiguousarray(plane).view(f"<u{width // 8}").astype(np.uint32)
    values = np.zeros((plane.shape[0], n), dtype=np.uint32)
    for start in range(0, n, layout.UNIT):
        count = min(layout.UNIT, n - start)
        size = -(-count * width // 8)
        at = start * width // 8
        for slot, first in enumerate(range(0, count, size)):
            stop = min(first + size, count)
            piece = plane[:, at : at + stop - first] >> (slot * width)
            values[:, start + first : start + stop] = piece & ((1 << width) - 1)
    return values


# --- shared by the decoders ----------------------------------------------------------------------------------------


def spread(values: npt.NDArray[Any], block: int, n: int) -> npt.NDArray[Any]:
    """(r, blocks) -> (r, n), each number to all of its block; no array is longer than that, however long a block is."""
    return values[:, np.arange(n) // block]


def deliver(values: F32, out: F32, add: bool) -> None:
    """Write ``values`` to ``out``, or add them; what is not finite is no reason to warn."""
    if add:
        with np.errstate(over="ignore", invalid="ignore"):
            out += values
    else:
        out[...] = values


def lost(x: F32, values: F32, error: F32 | None) -> None:
    if error is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            error[...] = x - values


# --- intB: signed extreme ------------------------------------------------------------------------------------------


def int_encode(x: F32, wire: U8, bits: int, block: int, log_scale: bool, error: F32 | None) -> None:
    """Blocks with one scale, ``s = extreme / -2**(bits-1)``: codes ``round(x/s) + 2**(bits-1)``, all of them used."""
    n = x.shape[1]
    blocks = blocks_of(x, block)
    keys = keys_of(blocks)
    write = write_log_scales if log_scale else write_bf16_scales
    scales, at = write(keys, wire, n, bits, block)
    write_codes(blocks, scales, wire, at, bits, n)
    if error is not None:
        values = np.empty_like(x)
        int_decode(wire, values, bits, block, log_scale, add=False)
        lost(x, values, error)


def keys_of(blocks: F32) -> U32:
    """(r, blocks, block) -> (r, blocks): the largest magnitude key, fp32 bits rotated left by one."""
    patterns = blocks.view(np.uint32)
    return ((patterns << np.uint32(1)) | (patterns >> np.uint32(31))).max(axis=2)


def write_codes(blocks: F32, scales: F32, wire: U8, at: int, bits: int, n: int, noise: F32 | None = None) -> None:
    """Codes ``clip(round(x * (1/s) + noise))`` from byte ``at`` on; those of zero where a scale is zero or NaN."""
    usable = np.isfinite(scales) & (scales != 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(usable, np.float32(1) / scales, np.float32(0))
        exact = blocks * inverse[..., None]
        if noise is not None:
            exact = exact + noise
        steps = np.where(usable[..., None], np.rint(exact), np.float32(0))
    half = 1 << (bits - 1)
    codes = np.clip(steps, -half, half - 1).astype(np.int32).reshape(blocks.shape[0], -1)[:, :n] + half
    wire[:, at : at + layout.code_bytes(n, bits)] = pack(codes, bits)


def bf16_scales(keys: U32, bits: int, up: bool = False) -> U16:
    """The bf16 scale of each magnitude key, rounded to nearest or ``up``; the extreme's code is negative."""
    magnitude = (keys >> np.uint32(1)).view(np.float32)
    finite = keys < layout.NONFINITE_KEY
    with np.errstate(invalid="ignore"):
        exact = magnitude * np.float32(2.0 ** (1 - bits))
        rounded = ((exact.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16) if up else bf16_bits(exact)
        stored = np.minimum(rounded, layout.largest_scale(bits))
    # A scale below the smallest normal number would have no finite inverse: such a block is sent as zeros.
    stored = np.where(stored < layout.BF16_MIN_NORMAL, 0, stored | np.where(keys & 1, 0, 0x8000))
    return np.where(finite, stored, layout.BF16_NAN).astype(np.uint16)


def write_bf16_scales(keys: U32, wire: U8, n: int, bits: int, block: int, up: bool = False) -> tuple[F32, int]:
    """The scale of each block, as bf16 at the front of the row, rounded to nearest or ``up``; and where the codes start."""
    stored = bf16_scales(keys, bits, up)
    size = layout.int_scale_bytes(n, block, log_scale=False)
    wire[:, :size] = stored.astype("<u2").view(np.uint8)
    return bf16_values(stored), size


def write_log_scales(keys: U32, wire: U8, n: int, bits: int, block: int, up: bool = False) -> tuple[F32, int]:
    """The same as log scales behind the maxima of the groups."""
    count = keys.shape[1]
    finite = keys < layout.NONFINITE_KEY
    magnitude = np.where(finite, keys >> np.uint32(1), 0).astype(np.uint32)
    per_group = layout.GROUP // block
    top = blocks_of(magnitude, per_group).max(axis=2)
    groups = np.minimum((top.astype(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16), layout.BF16_MAX)
    groups = np.where(groups < layout.BF16_MIN_NORMAL, 0, groups).astype("<u2")
    maximum = np.repeat(bf16_values(groups.astype(np.uint16)), per_group, axis=1)[:, :count]
    code = log_code(magnitude.view(np.float32), maximum, up) | np.where(keys & 1, 0, layout.LOG_SIGN)
    table = layout.log_table(bits)
    scales = maximum * table[code]
    zero = np.abs(scales) < np.float32(2.0**-126)
    code = np.where(zero, layout.LOG_ZERO, code)
    code = np.where(finite, code, layout.LOG_NONFINITE).astype(np.uint8)
    size = 2 * groups.shape[1]
    wire[:, :size] = groups.view(np.uint8)
    wire[:, size : size + count] = code
    return maximum * table[code], size + count


def log_code(magnitude: F32, maximum: F32, up: bool = False) -> npt.NDArray[np.int64]:
    """The nearest of ``maximum * 2**(-k/8)``, k = 0..125, or the next one ``up``, by comparing fp32 bits, without a logarithm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(maximum > 0, magnitude / maximum, np.float32(0)).astype(np.float32)
    pattern = ratio.view(np.uint32)
    exponent = (pattern >> np.uint32(23)).astype(np.int64) - 127
    mantissa = pattern & np.uint32(0x7FFFFF)
    steps = (mantissa[..., None] >= (layout.LOG_UP if up else layout.LOG_THRESHOLDS)).sum(axis=-1)
    return np.clip(-layout.LOG_STEPS * exponent - steps, 0, layout.LOG_LAST)


def int_decode(wire: U8, out: F32, bits: int, block: int, log_scale: bool, add: bool) -> None:
    """``x = (code - 2**(bits-1)) * s``, in fp32."""
    n = out.shape[1]
    blocks = -(-n // block)
    size = layout.int_scale_bytes(n, block, log_scale)
    if log_scale:
        groups = 2 * -(-n // layout.GROUP)
        maximum = bf16_values(np.ascontiguousarray(wire[:, :groups]).view("<u2").astype(np.uint16))
        maximum = spread(maximum, layout.GROUP // block, blocks)
        with np.errstate(over="ignore", invalid="ignore"):
            scales = maximum * layout.log_table(bits)[wire[:, groups:size]]
    else:
        scales = bf16_values(np.ascontiguousarray(wire[:, :size]).view("<u2").astype(np.uint16))
    codes = unpack(wire[:, size : size + layout.code_bytes(n, bits)], n, bits)
    steps = codes.astype(np.int32) - (1 << (bits - 1))
    with np.errstate(over="ignore", invalid="ignore"):
        values = steps.astype(np.float32) * spread(scales, block, n)
    deliver(values, out, add)


# --- minmaxB: affine -----------------------------------------------------------------------------------------------


def ranges(blocks: F32, inside: npt.NDArray[np.bool_]) -> F32:
    """Smallest and largest of each block's elements that are ``inside`` the row: (r, blocks, 2); NaN if one is not finite."""
    with np.errstate(invalid="ignore"):
        lo = np.where(inside, blocks, np.float32(np.inf)).min(axis=2)
        hi = np.where(inside, blocks, np.float32(-np.inf)).max(axis=2)
    finite = np.all(np.isfinite(blocks) | ~inside, axis=2, keepdims=True)
    bounds = np.where(finite, np.stack([lo, hi], axis=2), np.float32(np.nan)).astype("<f4")
    return bounds + np.float32(0)  # -0.0 becomes 0.0: which of the two a minimum picks is not defined


def minmax_encode(x: F32, wire: U8, bits: int, block: int, error: F32 | None, seed: int | None = None) -> None:
    """``code = round((x - lo) / (hi - lo) * (2**bits - 1))`` in fp64; ``lo`` and ``hi`` go as fp32. With a ``seed``, dither is
    added before rounding; it takes no code out of its range, since both ends of the range lie on the grid."""
    rows, n = x.shape
    blocks = blocks_of(x, block)
    inside = (np.arange(blocks.shape[1] * block) < n).reshape(1, -1, block)
    bounds = ranges(blocks, inside)
    finite = np.isfinite(bounds[..., 0])
    size = 8 * blocks.shape[1]
    wire[:, :size] = bounds.reshape(rows, -1).view(np.uint8)
    low = bounds[..., 0].astype(np.float64)
    span = bounds[..., 1].astype(np.float64) - low
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(span > 0, np.float64((1 << bits) - 1) / span, 0.0)
        exact = (blocks.astype(np.float64) - low[..., None]) * factor[..., None]
        if seed is not None:
            exact += rng.dithers(rows, blocks.shape[1] * block, seed).reshape(blocks.shape)
        steps = np.rint(exact)
    codes = np.where(finite[..., None] & inside, steps, 0.0).astype(np.uint32).reshape(rows, -1)[:, :n]
    wire[:, size : size + layout.code_bytes(n, bits)] = pack(codes, bits)
    if error is not None:
        values = np.empty_like(x)
        minmax_decode(wire, values, bits, block, add=False)
        lost(x, values, error)


def minmax_decode(wire: U8, out: F32, bits: int, block: int, add: bool) -> None:
    """``x = lo + code * (hi - lo) / (2**bits - 1)`` in fp64, rounded once to fp32."""
    rows, n = out.shape
    size = 8 * -(-n // block)
    stored = np.ascontiguousarray(wire[:, :size]).view("<f4").reshape(rows, -1, 2)
    codes = unpack(wire[:, size : size + layout.code_bytes(n, bits)], n, bits)
    with np.errstate(over="ignore", invalid="ignore"):
        bounds = stored.astype(np.float64)
        step = (bounds[..., 1] - bounds[..., 0]) / np.float64((1 << bits) - 1)
    deliver(on_grid(codes, bounds[..., 0], step, block), out, add)


def on_grid(codes: U32, low: F64, step: F64, block: int) -> F32:
    """``low + code * step`` in fp64, rounded once to fp32; codes (r, n), a ``low`` and a ``step`` a block."""
    n = codes.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        return (spread(low, block, n) + codes.astype(np.float64) * spread(step, block, n)).astype(np.float32)


# --- casts ---------------------------------------------------------------------------------------------------------


def bf16_encode(x: F32, wire: U8, error: F32 | None) -> None:
    stored = bf16_bits(x).astype("<u2")
    wire[:, : 2 * x.shape[1]] = stored.view(np.uint8)
    lost(x, bf16_values(stored.astype(np.uint16)), error)


def bf16_decode(wire: U8, out: F32, add: bool) -> None:
    stored = np.ascontiguousarray(wire[:, : 2 * out.shape[1]]).view("<u2")
    deliver(bf16_values(stored.astype(np.uint16)), out, add)


def f16_encode(x: F32, wire: U8, block: int, error: F32 | None) -> None:
    """Half precision of ``x / s``, where ``s`` is the power of two that brings the block's maximum into [2^14, 2^15)."""
    rows, n = x.shape
    blocks = blocks_of(x, block)
    top = (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=2)
    finite = top < 0x7F800000
    exponent = np.clip((top >> np.uint32(23)).astype(np.int64) - 127 - 14, -126, 127)
    scale_bits = np.where(finite, (exponent + 127) << 7, layout.BF16_NAN).astype("<u2")
    size = 2 * blocks.shape[1]
    wire[:, :size] = scale_bits.view(np.uint8)
    scales = np.where(finite, np.ldexp(np.float32(1), exponent), np.float32(1)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        scaled = np.where(finite[..., None], blocks / scales[..., None], np.float32(0)).astype(np.float32)
    # Rounded up, the largest numbers of fp32 would come back as Inf.
    limit = np.where(exponent == 127 - 14, layout.F16_BELOW_TOP, layout.F16_TOP)[..., None]
    halves = f16_bits(scaled)
    halves = np.minimum(halves & 0x7FFF, limit) | (halves & 0x8000)
    stored = halves.reshape(rows, -1)[:, :n].astype("<u2")
    wire[:, size : size + 2 * n] = stored.view(np.uint8)
    if error is not None:
        values = np.empty_like(x)
        f16_decode(wire, values, block, add=False)
        lost(x, values, error)


def f16_decode(wire: U8, out: F32, block: int, add: bool) -> None:
    n = out.shape[1]
    size = 2 * -(-n // block)
    scales = bf16_values(np.ascontiguousarray(wire[:, :size]).view("<u2").astype(np.uint16))
    stored = np.ascontiguousarray(wire[:, size : size + 2 * n]).view("<u2").astype(np.uint16)
    with np.errstate(over="ignore", invalid="ignore"):
        values = f16_values(stored) * spread(scales, block, n)
    deliver(values, out, add)
