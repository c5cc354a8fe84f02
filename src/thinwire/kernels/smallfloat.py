"""Floating-point formats of a byte or less, and what kernels need to know of each."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

F32_MANTISSA: Final = 23


class SmallFloat(NamedTuple):
    """A sign, an exponent and ``mantissa`` bits, the sign highest; codes of the smallest exponent are subnormal."""

    bits: int
    mantissa: int
    smallest: int
    """Exponent of the smallest normal number, and of the subnormal ones."""
    top: int
    """Code of the largest finite number."""
    special: int
    """Codes of magnitude from here on are no numbers; beyond all codes where the format has none."""

    @property
    def largest(self) -> float:
        """The largest finite number."""
        exponent = (self.top >> self.mantissa) - 1 + self.smallest
        return float(np.ldexp(1 + (self.top & ((1 << self.mantissa) - 1)) / (1 << self.mantissa), exponent))

    @property
    def shape(self) -> tuple[np.uint32, ...]:
        """For vector code: mantissas' way up in fp32, fp32 bits of the smallest normal number, top, special, the sign's way."""
        numbers = (F32_MANTISSA - self.mantissa, (127 + self.smallest) << F32_MANTISSA, self.top, self.special, 32 - self.bits)
        return tuple(np.uint32(number) for number in numbers)


# OCP 8-bit floating point v1.0: e4m3 spends only the last magnitude on NaN; e5m2 has infinities and NaN as IEEE 754 would.
E4M3: Final = SmallFloat(bits=8, mantissa=3, smallest=-6, top=0x7E, special=0x7F)
E5M2: Final = SmallFloat(bits=8, mantissa=2, smallest=-14, top=0x7B, special=0x7C)
# OCP Microscaling v1.0: every code is a number.
E2M1: Final = SmallFloat(bits=4, mantissa=1, smallest=0, top=7, special=8)

MX_BLOCK: Final = 32
"""Elements that share a power of two."""
MX_NAN: Final = 0xFF
"""The E8M0 scale that is no number."""
MX_TOP: Final = 2
"""Exponent of the largest e2m1 number, 6."""


def largest_scale(small: SmallFloat) -> int:
    """The bf16 bits of the largest scale that leaves the largest number of ``small`` finite in fp32."""
    return int(np.float32(np.finfo(np.float32).max / small.largest).view(np.uint32)) >> 16


@lru_cache
def values(small: SmallFloat) -> npt.NDArray[np.float32]:
    """The number of every code: (2**bits,) fp32. Both zeros of e2m1 are +0, those of the others keep their sign."""
    code = np.arange(1 << (small.bits - 1))
    exponent = np.maximum(code >> small.mantissa, 1)
    whole = code - ((exponent - 1) << small.mantissa)
    half = np.ldexp(whole.astype(np.float32), exponent - 1 + small.smallest - small.mantissa)
    half[small.special :] = np.nan
    if small is E5M2:
        half[small.special] = np.inf
    negative = -half
    if small is E2M1:
        negative[0] = 0.0
    return np.concatenate([half, negative])
