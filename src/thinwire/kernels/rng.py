"""Counter-based noise: 32 bits by (key, number of the element), the same on every backend and with any number of threads.

    h = i ^ k0;  h ^= h >> 16;  h *= 0x7feb352d;  h ^= k1;  h ^= h >> 15;  h *= 0x846ca68b;  h ^= h >> 16

is the two-round integer hash of least bias found by Wellons' search ("lowbias32"), with a second key between the rounds, so
that two keys do not give one sequence in another order. The keys come from a seed by splitmix64 (Steele et al. 2014).
``i`` is the element's number in its row modulo 2^32.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
FIRST: Final = 0x7FEB352D
SECOND: Final = 0x846CA68B
SHIFTS: Final = (16, 15, 16)
_MASK: Final = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """One output of splitmix64 at ``state``: 64 bits."""
    z = (state + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def mixed(*parts: int) -> int:
    """One seed out of several numbers, as of rank, step and message; the order counts: 64 bits."""
    state = 0
    for part in parts:
        state = splitmix64(state ^ (part & _MASK))
    return state


def keys(seed: int, row: int = 0) -> tuple[int, int]:
    """The two 32-bit keys of a row."""
    key = mixed(seed, row)
    return key & 0xFFFFFFFF, key >> 32


def bits(numbers: U32, k0: int, k1: int) -> U32:
    """32 random bits of each element: ``numbers`` (any shape) uint32 -> the same shape."""
    h = numbers ^ np.uint32(k0)
    h ^= h >> np.uint32(SHIFTS[0])
    h *= np.uint32(FIRST)
    h ^= np.uint32(k1)
    h ^= h >> np.uint32(SHIFTS[1])
    h *= np.uint32(SECOND)
    return h ^ (h >> np.uint32(SHIFTS[2]))


def dither(numbers: U32, k0: int, k1: int) -> npt.NDArray[np.float32]:
    """Noise for stochastic rounding: the upper 16 bits as a number in (-1/2, 1/2), 2^-17 away from both ends, fp32.

    With 16 bits, ``v + dither`` is exact in fp32 for integers up to 2^7, so what lies on the grid stays where it is.
    """
    upper = (bits(numbers, k0, k1).view(np.int32) >> np.int32(16)).astype(np.float32)
    return (upper + np.float32(0.5)) * np.float32(2.0**-16)


def dithers(rows: int, n: int, seed: int) -> npt.NDArray[np.float32]:
    """The dither of every element under ``seed``: (rows, n) fp32, each row's own."""
    numbers = np.arange(n, dtype=np.uint64).astype(np.uint32)
    return np.stack([dither(numbers, *keys(seed, row)) for row in range(rows)])
