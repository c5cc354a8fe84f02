"""Sizes, constants and offsets of the row formats: the one place where reference and fast kernels get them from.

The normative text is docs/wire-format.md; the names here are the ones it uses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

ROW_ALIGN: Final = 16
"""Every row is zero-padded to a multiple of this many bytes, so that a row may be read with 128-bit loads."""

UNIT: Final = 256
"""Elements that are packed together; a byte of a plane holds elements that lie ``unit bytes`` apart."""

GROUP: Final = 1024
"""Elements that share one bf16 maximum, to which the 8-bit log scales are relative."""

TILE: Final = 4096
"""Elements that a fast kernel holds in the first-level cache at a time; a multiple of UNIT and GROUP."""

NONFINITE_KEY: Final = 0xFF000000
"""A magnitude key (bits rotated left by one) at or above this comes from Inf or NaN."""

BF16_NAN: Final = 0x7FC0
BF16_MAX: Final = 0x7F7F
BF16_MIN_NORMAL: Final = 0x0080

F16_TOP: Final = 0x7800
"""2^15 in IEEE half precision: what the largest number of an fp16 block may be rounded up to."""
F16_BELOW_TOP: Final = 0x77FF

LOG_STEPS: Final = 8
"""Log scales per octave."""
LOG_LAST: Final = 125
LOG_ZERO: Final = 126
LOG_NONFINITE: Final = 127
LOG_SIGN: Final = 0x80

# Mantissa bits of 2**((i + 1/2)/8), i = 0..7, rounded to fp32: where the nearest log scale changes.
# Literals, since a platform's pow() may differ in the last bit and the wire may not.
LOG_THRESHOLDS: Final[npt.NDArray[np.uint32]] = np.array(
    [0x05AAC3, 0x11C3D3, 0x1EF532, 0x2D583F, 0x3D08A4, 0x4E248C, 0x60CCDF, 0x75257D], dtype=np.uint32
)
# Mantissa bits of the fp32 numbers above 2**(i/8), i = 0..7: where the next log scale that is not smaller changes.
LOG_UP: Final[npt.NDArray[np.uint32]] = np.array(
    [0x000001, 0x0B95C2, 0x1837F1, 0x25FED7, 0x3504F4, 0x45672B, 0x5744FD, 0x6AC0C7], dtype=np.uint32
)
# fp32 bits of 2**(-i/8), i = 0..7.
_LOG_FRACTIONS: Final[npt.NDArray[np.float32]] = np.array(
    [0x3F800000, 0x3F6AC0C7, 0x3F5744FD, 0x3F45672A, 0x3F3504F3, 0x3F25FED7, 0x3F1837F0, 0x3F0B95C2], dtype=np.uint32
).view(np.float32)


SEARCH_STEPS: Final[npt.NDArray[np.int64]] = np.arange(-1, 7)
"""The candidates of a search for a block's scale, in steps of 1/8 octave below the one of the extreme."""
SEARCH_NONE: Final = 1
"""The index of the candidate that is that one."""
# 2**(k/8) and 2**(-k/8) for these k, from the table, so that they are the same everywhere.
SEARCH_DOWN: Final[npt.NDArray[np.float32]] = np.array([2 * _LOG_FRACTIONS[7], *_LOG_FRACTIONS[:7]], np.float32)
SEARCH_UP: Final[npt.NDArray[np.float32]] = np.array([_LOG_FRACTIONS[1], 1, *(2 * _LOG_FRACTIONS[7:1:-1])], np.float32)
SEARCH_RANGE: Final = 1 << 12
"""A search has numbers of 16 bits, of which the smallest code is -SEARCH_RANGE and a step SEARCH_RANGE / 2**(bits-1)."""
SEARCH_UP_FIXED: Final[npt.NDArray[np.int32]] = np.rint(SEARCH_UP * np.float32(1 << 14)).astype(np.int32)
SEARCH_WEIGHTS: Final[npt.NDArray[np.float32]] = SEARCH_DOWN * SEARCH_DOWN
"""What brings squared errors in steps of a candidate to those of the extreme's."""


def widening(bits: int) -> np.float32:
    """``2**(bits-1) / (2**(bits-1) - 1)``, fp32: what makes room for rounding up."""
    half = 1 << (bits - 1)
    return np.float32(half) / np.float32(half - 1)


@lru_cache
def log_table(bits: int) -> npt.NDArray[np.float32]:
    """The 256 factors that turn a group maximum into a block's scale, by the scale's byte: (256,) fp32, exact."""
    steps = np.arange(LOG_LAST + 1)
    exponents = -(steps // LOG_STEPS) - (bits - 1)
    half = np.zeros(LOG_SIGN, dtype=np.float32)
    half[: LOG_LAST + 1] = np.ldexp(_LOG_FRACTIONS[steps % LOG_STEPS], exponents)
    half[LOG_NONFINITE] = np.nan
    return np.concatenate([half, -half])


def largest_scale(bits: int) -> int:
    """The bf16 bits of the largest scale whose ``2**(bits-1)``-fold is still finite in fp32."""
    return BF16_MAX - ((bits - 1) << 7)


def _floats(patterns: list[int]) -> npt.NDArray[np.float32]:
    return np.array(patterns, dtype=np.uint32).view(np.float32)


GAUSS_LEVELS: Final = {
    1: _floats([0x3F4C422A]),
    2: _floats([0x3EE7D2C9, 0x3FC1555D]),
    3: _floats([0x3E7AF9F8, 0x3F418990, 0x3FAC0538, 0x4009B97A]),
    4: _floats([0x3E0379FD, 0x3EC6AE44, 0x3F28215E, 0x3F713D39, 0x3FA0CC2F, 0x3FCF1C25, 0x40046AC7, 0x402EE2BF]),
}
"""The positive levels of the Lloyd-Max quantizer of 2**bits levels for the unit Gaussian, by bits."""
GAUSS_THRESHOLDS: Final = {
    1: _floats([]),
    2: _floats([0x3F7B4A0F]),
    3: _floats([0x3F002407, 0x3F866500, 0x3FDFBC17]),
    4: _floats([0x3E8435A1, 0x3F05BC40, 0x3F4CAF4B, 0x3F8CB566, 0x3FB7F42A, 0x3FEBF8DA, 0x4019A6C3]),
}
"""The middle between each two of them."""
GAUSS_LARGEST_SCALE: Final = BF16_MAX - (2 << 7)
"""The bf16 bits of the largest scale of which four times are finite in fp32: no level is above four."""


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def plane_bytes(n: int, width: int) -> int:
    """Bytes of the plane that holds ``width`` bits of each of ``n`` codes."""
    full, rest = divmod(n, UNIT)
    return full * (UNIT * width // 8) + -(-rest * width // 8)


@lru_cache
def plane_widths(bits: int) -> tuple[int, ...]:
    """The planes of a code, most significant first: the binary digits of ``bits`` (7 -> 4, 2, 1)."""
    return tuple(width for width in (16, 8, 4, 2, 1) if bits & width)


@lru_cache(4096)
def code_bytes(n: int, bits: int) -> int:
    """Bytes of ``n`` packed codes."""
    return sum(plane_bytes(n, width) for width in plane_widths(bits))


def int_scale_bytes(n: int, block: int, log_scale: bool) -> int:
    """Bytes of the scales of ``n`` elements: a bf16 a group and a byte a block, or a bf16 a block."""
    blocks = -(-n // block)
    return 2 * -(-n // GROUP) + blocks if log_scale else 2 * blocks


def hadamard_blocks(n: int, block: int) -> list[tuple[int, int]]:
    """(start, size) of the blocks that are rotated together: ``block`` elements, and the rest by its binary digits."""
    full = n // block * block
    blocks = [(start, block) for start in range(0, full, block)]
    size = block
    while full < n:
        size >>= 1
        if n & size:
            blocks.append((full, size))
            full += size
    return blocks


# fp32 bits of 2**(i/2), i = 0..12.
_ROOTS: Final[npt.NDArray[np.float32]] = np.array(
    [0x3F800000 + (i // 2 << 23) + (0x3504F3 if i % 2 else 0) for i in range(13)], dtype=np.uint32
).view(np.float32)


def hadamard_scale(size: int) -> np.float32:
    """The square root of a power of two up to 4096, fp32."""
    return _ROOTS[size.bit_length() - 1]
