"""Numba kernels of the randomized Hadamard transform; the definition is kernels/reference_hadamard.py."""
# Compiled by Numba: intrinsics have a typing context as their first parameter, which callers do not pass.
# pyright: reportCallIssue=false, reportReturnType=false

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.kernels.cpu_tile import load_tile
from thinwire.kernels.jit import BOOL, FLOATS, INT, READ_BYTES, inline, kernel
from thinwire.kernels.layout import TILE
from thinwire.kernels.simd_hadamard import butterflies_16, butterflies_64, butterflies_256, butterfly_64
from thinwire.kernels.simd_rng import random_bits

_LARGEST = np.float32(3.4028234663852886e38)
_SIGN = np.uint32(0x80000000)


@inline
def _transform(y: Any, at: int, size: int) -> None:
    """The unscaled transform of ``size`` elements from ``at`` on, in place."""
    if size >= 256:
        for k in range(at, at + size, 256):
            butterflies_256(y, k)
        step = 256
    elif size >= 64:
        for k in range(at, at + size, 64):
            butterflies_64(y, k)
        step = 64
    elif size >= 16:
        for k in range(at, at + size, 16):
            butterflies_16(y, k)
        step = 16
    else:
        step = 1
    while step < size:
        for first in range(at, at + size, 2 * step):
            if step >= 64:
                for k in range(first, first + step, 64):
                    butterfly_64(y, k, step)
            else:
                for k in range(first, first + step):
                    a, b = y[k], y[k + step]
                    y[k], y[k + step] = a + b, a - b
        step *= 2


@inline
def _flip(x: Any, first: int, k0: Any, k1: Any, factor: Any, out: Any) -> None:
    """``out = D x * factor``; ``first`` is the number of the first element."""
    patterns, wide = x.view(np.uint32), out.view(np.uint32)
    number = np.uint32(first)
    for i in range(x.size):
        wide[i] = patterns[i] ^ (random_bits(number + np.uint32(i), k0, k1) & _SIGN)
    for i in range(x.size):
        out[i] = out[i] * factor


@inline
def _finish(y: Any, factor: Any) -> None:
    for i in range(y.size):
        value = y[i] * factor
        # Not min and max: a NaN must stay one, and so must what an infinity has become.
        if value > _LARGEST and y[i] <= _LARGEST:
            value = _LARGEST
        if value < -_LARGEST and y[i] >= -_LARGEST:
            value = -_LARGEST
        y[i] = value


@inline
def _block_size(at: int, n: int, block: int) -> int:
    """The size of the block that starts at ``at``: the rest of a row is cut by its binary digits."""
    size = block
    while size > n - at:
        size >>= 1
    return size


@inline
def _rotate_tile(values: Any, at: int, n: int, block: int, roots: Any) -> None:
    """Transform the blocks of a tile that starts at element ``at`` of a row of ``n``, in place."""
    done = 0
    while done < values.size:
        size = _block_size(at + done, n, block)
        part = values[done : done + size]
        inverse = np.float32(1) / np.float32(size)
        for i in range(size):
            part[i] = part[i] * inverse
        _transform(values, done, size)
        _finish(part, roots[size])
        done += size


@kernel(READ_BYTES, INT, FLOATS, INT, INT, INT, INT, INT, FLOATS)
def rotate(x: Any, kind: int, out: Any, start: int, stop: int, block: int, k0: int, k1: int, roots: Any) -> None:
    """Rotate elements [start, stop) of a row of ``out.size``; ``start`` is a multiple of the tile."""
    scratch = np.empty(TILE, np.uint32)
    low, high = np.uint32(k0), np.uint32(k1)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        target = out[at:end]
        _flip(load_tile(x, kind, at, end, scratch), at, low, high, np.float32(1), target)
        _rotate_tile(target, at, out.size, block, roots)


@kernel(FLOATS, FLOATS, INT, INT, INT, INT, INT, FLOATS, BOOL)
def unrotate(y: Any, out: Any, start: int, stop: int, block: int, k0: int, k1: int, roots: Any, add: bool) -> None:
    """The inverse; ``y`` is overwritten. ``add`` adds to ``out``."""
    low, high = np.uint32(k0), np.uint32(k1)
    scratch = np.empty(TILE, np.float32)
    for at in range(start, stop, TILE):
        end = min(at + TILE, stop)
        source = y[at:end]
        _rotate_tile(source, at, out.size, block, roots)
        if add:
            values = scratch[: end - at]
            _flip(source, at, low, high, np.float32(1), values)
            target = out[at:end]
            for i in range(end - at):
                target[i] += values[i]
        else:
            _flip(source, at, low, high, np.float32(1), out[at:end])
