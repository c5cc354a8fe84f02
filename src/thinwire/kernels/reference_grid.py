"""The definition of ``grid`` in NumPy: uniform steps relative to a block's root mean square. Conventions as in reference.py."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from thinwire.kernels import layout, rng
from thinwire.kernels.reference import F32, U8, bf16_bits, bf16_values, blocks_of, deliver, lost, spread

LANES: Final = 16
"""Partial sums of squares: element i of a block goes to sum i mod LANES."""
MIDDLE: Final = 128


def grid_encode(
    x: F32, wire: U8, block: int, step: float, shrink: float, error: F32 | None, seed: int | None = None
) -> None:  # fmt: skip
    """``s = step * rms``; codes ``clip(round(x / s), -128, 127) + 128``, with a ``seed`` of ``unshrunk(x / s) + dither``."""
    rows, n = x.shape
    blocks = blocks_of(x, block)
    scales = _scales(blocks, n, step)
    size = 2 * blocks.shape[1]
    stored = scales.astype("<u2")
    wire[:, :size] = stored.view(np.uint8)
    scale = bf16_values(scales)
    usable = np.isfinite(scale) & (scale != 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(usable, np.float32(1) / scale, np.float32(0))
        exact = blocks * inverse[..., None]
        if seed is not None:
            exact = unshrunk(exact, shrink) + rng.dithers(rows, blocks.shape[1] * block, seed).reshape(blocks.shape)
        steps = np.where(usable[..., None], np.rint(exact), np.float32(0))
    codes = np.clip(steps, -MIDDLE, MIDDLE - 1).astype(np.int32) + MIDDLE
    wire[:, size : size + n] = codes.reshape(rows, -1)[:, :n]
    if error is not None:
        values = np.empty_like(x)
        grid_decode(wire, values, block, shrink, add=False)
        lost(x, values, error)


def unshrunk(exact: F32, shrink: float) -> F32:
    """Steps on the scale where levels, which are ``k - shrink * sign(k)``, are whole numbers: linear between each two of them."""
    magnitude = np.abs(exact)
    first = np.float32(1) / (np.float32(1) - np.float32(shrink))
    return np.copysign(np.minimum(magnitude * first, magnitude + np.float32(shrink)), exact)


def _scales(blocks: F32, n: int, step: float) -> npt.NDArray[np.uint16]:
    """(r, blocks) bf16 scales. Squares are taken of numbers in (-4, 4), so that none overflows."""
    rows, count, block = blocks.shape
    top = (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=2)
    finite = top < 0x7F800000
    exponent = np.clip(127 - (top >> np.uint32(23)).astype(np.int64), -126, 127)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.where(finite[..., None], blocks * np.ldexp(np.float32(1), exponent)[..., None], np.float32(0))
        squares = (scaled * scaled).reshape(rows, count, -1, LANES)
        sums = np.zeros((rows, count, LANES), dtype=np.float32)
        for k in range(squares.shape[2]):
            sums += squares[:, :, k]
        while sums.shape[2] > 1:
            half = sums.shape[2] // 2
            sums = sums[..., :half] + sums[..., half:]
        sizes = np.minimum(n - block * np.arange(count), block).astype(np.float32)
        size = np.float32(step) * np.sqrt(sums[..., 0] / sizes) * np.ldexp(np.float32(1), -exponent)
        stored = np.minimum(bf16_bits(size), layout.largest_scale(8))
    stored = np.where(stored < layout.BF16_MIN_NORMAL, 0, stored)
    return np.where(finite, stored, layout.BF16_NAN).astype(np.uint16)


def grid_decode(wire: U8, out: F32, block: int, shrink: float, add: bool) -> None:
    """``x = (k - shrink * sign(k)) * s`` with ``k = code - 128``, in fp32."""
    n = out.shape[1]
    size = 2 * -(-n // block)
    scales = bf16_values(np.ascontiguousarray(wire[:, :size]).view("<u2").astype(np.uint16))
    k = wire[:, size : size + n].astype(np.int32) - MIDDLE
    levels = k.astype(np.float32) - np.sign(k).astype(np.float32) * np.float32(shrink)
    with np.errstate(over="ignore", invalid="ignore"):
        values = levels * spread(scales, block, n)
    deliver(values.astype(np.float32, copy=False), out, add)
