"""The definition of ``intB`` with stochastic rounding and with a search for the scale; bytes decode as all of ``intB``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thinwire.kernels import layout, rng
from thinwire.kernels.reference import (
    F32,
    U8,
    U32,
    bf16_bits,
    bf16_values,
    blocks_of,
    int_decode,
    keys_of,
    lost,
    write_bf16_scales,
    write_codes,
    write_log_scales,
)

Choice = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]


def int_encode_stochastic(x: F32, wire: U8, bits: int, block: int, log_scale: bool, error: F32 | None, seed: int) -> None:
    """``code = round(x/s + dither)`` without bias: the scale is rounded up and makes the extreme 2**(bits-1) - 1 steps."""
    rows, n = x.shape
    blocks = blocks_of(x, block)
    keys = widened(keys_of(blocks), bits)
    write = write_log_scales if log_scale else write_bf16_scales
    scales, at = write(keys, wire, n, bits, block, up=True)
    noise = rng.dithers(rows, blocks.shape[1] * block, seed)
    write_codes(blocks, scales, wire, at, bits, n, noise.reshape(blocks.shape))
    _report(x, wire, bits, block, log_scale, error)


def widened(keys: U32, bits: int) -> U32:
    """Keys of extremes larger by 2**(bits-1) / (2**(bits-1) - 1): their steps then leave out the code without a twin."""
    with np.errstate(over="ignore", invalid="ignore"):
        wide = (keys >> np.uint32(1)).view(np.float32) * layout.widening(bits)
    wide = np.minimum(wide.view(np.uint32), np.uint32(0x7F7FFFFF))
    return np.where(keys < layout.NONFINITE_KEY, (wide << np.uint32(1)) | (keys & np.uint32(1)), keys).astype(np.uint32)


def int_encode_search(x: F32, wire: U8, bits: int, block: int, log_scale: bool, error: F32 | None) -> None:
    """Of the scales ``s * 2**(-k/8)``, k = -1..6, the one of least squared error; s is the one of the extreme."""
    n = x.shape[1]
    blocks = blocks_of(x, block)
    write = write_log_scales if log_scale else write_bf16_scales
    scales, at = write(keys_of(blocks), wire, n, bits, block)
    best = _best(blocks, scales, 1 << (bits - 1))
    if log_scale:
        head = 2 * -(-n // layout.GROUP)
        stored, maximum = wire[:, head:at], bf16_values(np.ascontiguousarray(wire[:, :head]).view("<u2").astype(np.uint16))
        maximum = np.repeat(maximum, layout.GROUP // block, axis=1)[:, : scales.shape[1]]
        scales = _shifted_log(stored, maximum, best, bits)
    else:
        scales = _shifted_bf16(wire[:, :at], scales, best, bits)
    write_codes(blocks, scales, wire, at, bits, n)
    _report(x, wire, bits, block, log_scale, error)


def _best(blocks: F32, scales: F32, half: int) -> Choice:
    """The index of each block's best candidate; the first of equals; the one of step 0 without a usable scale."""
    usable = np.isfinite(scales) & (scales != 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = blocks * np.where(usable, np.float32(1) / scales, np.float32(0))[..., None]
        fixed = np.rint(steps * np.float32(2 * layout.SEARCH_RANGE // half))
    fixed = np.where(usable[..., None], fixed, 0).astype(np.int32)
    errors = np.stack([_squares(fixed, i, half) for i in range(len(layout.SEARCH_STEPS))])
    return np.where(usable, errors.argmin(axis=0), layout.SEARCH_NONE)


def _squares(fixed: I32, candidate: int, half: int) -> F32:
    """Weighted squared error of a candidate, from numbers in half units; a unit is half / SEARCH_RANGE of a step.

    Integers of 16 bits are twice as many to a vector as fp32, and their sums do not depend on the order.
    """
    unit = layout.SEARCH_RANGE // half
    steps = (fixed * layout.SEARCH_UP_FIXED[candidate] + (1 << 14)) >> 15
    nearest = np.clip((steps + unit // 2) & -unit, -layout.SEARCH_RANGE, layout.SEARCH_RANGE - unit)
    total = np.square(steps - nearest).sum(axis=-1, dtype=np.int64)
    return total.astype(np.float32) * layout.SEARCH_WEIGHTS[candidate]


def _shifted_log(stored: U8, maximum: F32, best: Choice, bits: int) -> F32:
    """Move the log codes by the chosen steps, where they stay codes of a scale that is normal."""
    table = layout.log_table(bits)
    magnitude = (stored & 0x7F).astype(np.int64)
    moved = np.clip(magnitude + layout.SEARCH_STEPS[best], 0, layout.LOG_LAST)
    code = np.where(magnitude <= layout.LOG_LAST, moved, magnitude) | (stored & layout.LOG_SIGN)
    with np.errstate(invalid="ignore"):
        small = np.abs(maximum * table[code]) < np.float32(2.0**-126)
    code = np.where(small, stored, code)
    stored[...] = code
    return maximum * table[code]


def _shifted_bf16(head: U8, scales: F32, best: Choice, bits: int) -> F32:
    """Replace bf16 scales by the chosen ones, where those are normal and not larger than allowed."""
    with np.errstate(invalid="ignore"):
        moved = bf16_bits((scales * layout.SEARCH_DOWN[best]).astype(np.float32))
    before = np.ascontiguousarray(head).view("<u2").astype(np.uint16)
    good = ((moved & 0x7FFF) >= layout.BF16_MIN_NORMAL) & ((moved & 0x7FFF) <= layout.largest_scale(bits))
    chosen = np.where(good, moved, before).astype("<u2")
    head[...] = chosen.view(np.uint8)
    return bf16_values(chosen.astype(np.uint16))


def _report(x: F32, wire: U8, bits: int, block: int, log_scale: bool, error: F32 | None) -> None:
    if error is not None:
        values = np.empty_like(x)
        int_decode(wire, values, bits, block, log_scale, add=False)
        lost(x, values, error)
