"""The definition of the randomized Hadamard transform: signs, butterflies, one scale. ``x`` is (r, n) float32."""

from __future__ import annotations

import numpy as np

from thinwire.kernels import layout, rng
from thinwire.kernels.reference import F32


def rotate(x: F32, out: F32, block: int, seed: int) -> None:
    """``out = clamp(H (D x / d) * sqrt(d))`` of every block of d elements; D is a diagonal of random signs."""
    _transform(_flipped(x, seed), out, block)


def unrotate(y: F32, out: F32, block: int, seed: int) -> None:
    """The inverse up to rounding: ``out = D clamp(H (y / d) * sqrt(d))``."""
    back = np.empty_like(out)
    _transform(y, back, block)
    out[...] = _flipped(back, seed)


def _flipped(x: F32, seed: int) -> F32:
    numbers = np.arange(x.shape[1], dtype=np.uint64).astype(np.uint32)
    signs = rng.bits(numbers, *rng.keys(seed)) & np.uint32(0x80000000)
    return (np.ascontiguousarray(x).view(np.uint32) ^ signs).view(np.float32)


@np.errstate(over="ignore", invalid="ignore")
def _transform(x: F32, out: F32, block: int) -> None:
    for start, size in layout.hadamard_blocks(x.shape[1], block):
        # Divided first, so that no sum of finite numbers overflows.
        y = x[:, start : start + size] * np.float32(1 / size)
        step = 1
        while step < size:
            pairs = y.reshape(x.shape[0], -1, 2, step)
            y = np.concatenate([pairs[:, :, :1] + pairs[:, :, 1:], pairs[:, :, :1] - pairs[:, :, 1:]], axis=2)
            step *= 2
        y = y.reshape(x.shape[0], size)
        scaled = y * layout.hadamard_scale(size)
        over = np.isfinite(y) & np.isinf(scaled)
        out[:, start : start + size] = np.where(over, np.copysign(np.finfo(np.float32).max, y), scaled)
