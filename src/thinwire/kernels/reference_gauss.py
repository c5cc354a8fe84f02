"""The definition of ``gaussB`` and ``sign1``: levels of a fixed codebook on a block's root mean square."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from thinwire.kernels import layout
from thinwire.kernels.reference import F32, U8, bf16_bits, bf16_values, blocks_of, deliver, lost, pack, spread, unpack

RMS: Final = 0
LEAST: Final = 1
UNBIASED: Final = 2
"""How the stored scale follows from the root mean square and the codes."""


def gauss_encode(x: F32, wire: U8, bits: int, block: int, fit: int, error: F32 | None) -> None:
    """``code = nearest level of |x| / rms`` with the sign on top; the scale as bf16."""
    n = x.shape[1]
    blocks = blocks_of(x, block)
    counts = np.minimum(n - np.arange(blocks.shape[1]) * block, block).astype(np.float32)
    top = (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=2)
    finite = top < 0x7F800000
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponent = np.clip((top >> np.uint32(23)).astype(np.int64) - 127, -126, 126)
        scaled: F32 = blocks * np.ldexp(np.float32(1), -exponent)[..., None]
        rms = np.sqrt(lane_sums(scaled * scaled) / counts)
        inverse = np.where(rms > 0, np.float32(1) / rms, np.float32(0)).astype(np.float32)
        index, stretch = _fitted(np.abs(scaled).astype(np.float32), inverse, bits, fit, counts, n)
        stored = bf16_bits((rms * stretch) * np.ldexp(np.float32(1), exponent))
    stored = np.where((stored < layout.BF16_MIN_NORMAL) | ~(rms > 0), 0, np.minimum(stored, layout.GAUSS_LARGEST_SCALE))
    stored = np.where(finite, stored, layout.BF16_NAN).astype("<u2")
    signs = (blocks.view(np.uint32) >> np.uint32(31)) << np.uint32(bits - 1)
    usable = finite & (stored > 0)
    codes = np.where(usable[..., None], index | signs, 0).astype(np.uint32).reshape(x.shape[0], -1)[:, :n]
    size = 2 * stored.shape[1]
    wire[:, :size] = stored.view(np.uint8)
    wire[:, size : size + layout.code_bytes(n, bits)] = pack(codes, bits)
    if error is not None:
        values = np.empty_like(x)
        gauss_decode(wire, values, bits, block, add=False)
        lost(x, values, error)


def lane_sums(values: F32) -> F32:
    """(r, blocks, block) -> (r, blocks): elements i, i + 16, … in 16 sums, then neighbours until one is left, in fp32."""
    lanes = blocks_of(np.ascontiguousarray(values).reshape(-1, values.shape[2]), 16)
    total = np.zeros((lanes.shape[0], 16), dtype=np.float32)
    for k in range(lanes.shape[1]):
        total = total + lanes[:, k]
    while total.shape[1] > 1:
        total = total[:, ::2] + total[:, 1::2]
    return total.reshape(values.shape[:2])


def _fitted(
    scaled: F32, inverse: F32, bits: int, fit: int, counts: F32, n: int
) -> tuple[npt.NDArray[np.int64], F32]:  # fmt: skip
    """Indices of the levels, and what the root mean square is multiplied by for the stored scale."""
    inside = np.arange(scaled.shape[1] * scaled.shape[2]).reshape(scaled.shape[1:]) < n
    index, products, squares = _coded(scaled * inverse[..., None], bits, inside)
    if fit == RMS:
        return index, np.ones_like(products)
    if fit == UNBIASED:
        return index, (counts / products).astype(np.float32)
    first = products / squares
    index, products, squares = _coded(scaled * (inverse * (np.float32(1) / first)).astype(np.float32)[..., None], bits, inside)
    return index, (first * (products / squares)).astype(np.float32)


def _coded(ratio: F32, bits: int, inside: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], F32, F32]:
    """The index of each level, the sum of level times number, and that of squared levels."""
    index = (ratio[..., None] >= layout.GAUSS_THRESHOLDS[bits]).sum(axis=-1)
    level = np.where(inside, layout.GAUSS_LEVELS[bits][index], np.float32(0)).astype(np.float32)
    return index, lane_sums(level * ratio), lane_sums(level * level)


def gauss_decode(wire: U8, out: F32, bits: int, block: int, add: bool) -> None:
    """``x' = level(code) * s`` in fp32."""
    n = out.shape[1]
    size = 2 * -(-n // block)
    scales = bf16_values(np.ascontiguousarray(wire[:, :size]).view("<u2").astype(np.uint16))
    codes = unpack(wire[:, size : size + layout.code_bytes(n, bits)], n, bits)
    half = 1 << (bits - 1)
    levels = np.concatenate([layout.GAUSS_LEVELS[bits], -layout.GAUSS_LEVELS[bits]])
    assert levels.size == 2 * half
    with np.errstate(over="ignore", invalid="ignore"):
        values = levels[codes] * spread(scales, block, n)
    deliver(values, out, add)
