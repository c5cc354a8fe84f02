"""The definition of ``affineB`` in NumPy; conventions as in :mod:`thinwire.kernels.reference`."""

from __future__ import annotations

import numpy as np

from thinwire.kernels import layout, rng
from thinwire.kernels.reference import F32, F64, U8, blocks_of, deliver, lost, on_grid, pack, ranges, unpack

F32_MAX = np.float64(np.finfo(np.float32).max)


def steps_and_zeros(bounds: F32, bits: int, stochastic: bool) -> tuple[F32, U8]:
    """Step and zero point of blocks by their smallest and largest, (..., 2); NaN and 0 where these are NaN.

    Rounding the step up keeps both ends within half a step of a code. With an end at zero the other end is the last code,
    and that must not overflow. If ``stochastic``, no end may lie beyond the codes: where zero is inside, one step is spared
    for the zero point, which is rounded up.
    """
    levels = np.float64((1 << bits) - 1)
    lo, hi = np.minimum(bounds[..., 0].astype(np.float64), 0), np.maximum(bounds[..., 1].astype(np.float64), 0)
    exact = (hi - lo) / np.where((lo != 0) & (hi != 0), levels - stochastic, levels)
    with np.errstate(under="ignore"):
        step = exact.astype(np.float32)
        step = np.where(step < exact, np.nextafter(step, np.float32(np.inf)), step)
    too_large = (step.astype(np.float64) * levels > F32_MAX) & ((lo == 0) | (hi == 0))
    step = np.where(too_large, np.nextafter(step, np.float32(0)), step)
    place = np.where(step > 0, -lo * _inverse(step), 0.0)
    zero = np.clip(np.ceil(place) if stochastic else np.rint(place), 0.0, levels)
    return step.astype("<f4"), zero.astype(np.uint8)


def _inverse(step: F32) -> F64:
    """1 / step in fp64, and 0 for a step that is zero or NaN."""
    usable = step > 0
    return np.where(usable, 1.0 / np.where(usable, step, 1.0).astype(np.float64), 0.0)


def affine_encode(x: F32, wire: U8, bits: int, block: int, error: F32 | None, seed: int | None = None) -> None:
    """``code = clip(round(x / step) + zero)``, with a ``seed`` of ``x / step + dither``; steps as fp32, zero points as bytes."""
    rows, n = x.shape
    blocks = blocks_of(x, block)
    count = blocks.shape[1]
    inside = (np.arange(count * block) < n).reshape(1, -1, block)
    step, zero = steps_and_zeros(ranges(blocks, inside), bits, seed is not None)
    wire[:, : 4 * count] = step.view(np.uint8)
    wire[:, 4 * count : 5 * count] = zero
    # What would overflow when it is read: the clip of numbers that are less than a step from the largest of fp32.
    inverse = _inverse(step)
    far = np.minimum(np.floor(F32_MAX * inverse), (1 << bits) - 1)
    offset = zero.astype(np.float64)
    lowest, highest = np.maximum(-offset, -far), np.minimum((1 << bits) - 1 - offset, far)
    with np.errstate(invalid="ignore"):
        scaled = np.where(step[..., None] > 0, blocks.astype(np.float64) * inverse[..., None], 0.0)
    if seed is not None:
        scaled += rng.dithers(rows, count * block, seed).reshape(blocks.shape)
    steps = np.clip(np.rint(scaled), lowest[..., None], highest[..., None])
    codes = (steps + offset[..., None]).astype(np.uint32).reshape(rows, -1)[:, :n]
    wire[:, 5 * count : 5 * count + layout.code_bytes(n, bits)] = pack(codes, bits)
    if error is not None:
        values = np.empty_like(x)
        affine_decode(wire, values, bits, block, add=False)
        lost(x, values, error)


def affine_decode(wire: U8, out: F32, bits: int, block: int, add: bool) -> None:
    """``x = step * (code - zero)``, exact in fp64, rounded once to fp32."""
    n = out.shape[1]
    count = -(-n // block)
    stored = np.ascontiguousarray(wire[:, : 4 * count]).view("<f4")
    codes = unpack(wire[:, 5 * count : 5 * count + layout.code_bytes(n, bits)], n, bits)
    with np.errstate(invalid="ignore"):
        step = stored.astype(np.float64)
        low = -wire[:, 4 * count : 5 * count].astype(np.float64) * step
    deliver(on_grid(codes, low, step, block), out, add)
