"""The definition of the small floating-point formats in NumPy; conventions as in :mod:`thinwire.kernels.reference`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thinwire.kernels import layout, smallfloat
from thinwire.kernels.reference import F32, U8, U16, U32, bf16_values, blocks_of, deliver, lost, pack, spread, unpack
from thinwire.kernels.smallfloat import MX_BLOCK, MX_NAN, MX_TOP, SmallFloat


def to_small(y: F32, small: SmallFloat) -> U32:
    """Codes of finite numbers: to nearest, ties to the even code, magnitudes above the largest to the largest."""
    pattern = y.view(np.uint32)
    magnitude = pattern & np.uint32(0x7FFFFFFF)
    exponent = np.maximum((magnitude >> np.uint32(23)).astype(np.int32) - 127, small.smallest)
    # In units of the last place; the exponents below have used 2**mantissa codes each.
    units = np.rint(np.ldexp(magnitude.view(np.float32), small.mantissa - exponent)).astype(np.int32)
    code = np.minimum(units + ((exponent - small.smallest) << small.mantissa), small.top)
    return code.astype(np.uint32) | ((pattern >> np.uint32(31)) << np.uint32(small.bits - 1))


def _magnitudes(blocks: F32) -> U32:
    """The bits of the largest magnitude of each block."""
    return (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=2)


def _quantize(blocks: F32, scales: F32, small: SmallFloat) -> U32:
    """Codes of x / scale by way of the inverse, (r, blocks * block); of zeros where a scale is zero or NaN."""
    usable = np.isfinite(scales) & (scales != 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        inverse = np.where(usable, np.float32(1) / scales, np.float32(0))
        scaled = np.where(usable[..., None], blocks * inverse[..., None], np.float32(0))
    return to_small(scaled, small).reshape(blocks.shape[0], -1)


def _dequantize(codes: npt.NDArray[np.integer], scales: F32, block: int, small: SmallFloat) -> F32:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return smallfloat.values(small)[codes] * spread(scales, block, codes.shape[1])


# --- fp8: a bf16 scale a block ---------------------------------------------------------------------------------------


def _bf16_scales(largest: U32, small: SmallFloat) -> U16:
    """absmax / largest number, rounded up to bf16; 0 below the smallest normal bf16; NaN for a block that is not finite."""
    finite = largest < 0x7F800000
    exact = np.where(finite, largest, 0).astype(np.uint32).view(np.float32) / np.float32(small.largest)
    stored = np.minimum((exact.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16), smallfloat.largest_scale(small))
    stored = np.where(stored < layout.BF16_MIN_NORMAL, 0, stored)
    return np.where(finite, stored, layout.BF16_NAN).astype(np.uint16)


def fp8_encode(x: F32, wire: U8, block: int, small: SmallFloat, error: F32 | None) -> None:
    """A bf16 scale a block, then a byte an element: x / scale in the format ``small``."""
    n = x.shape[1]
    blocks = blocks_of(x, block)
    stored = _bf16_scales(_magnitudes(blocks), small)
    size = 2 * stored.shape[1]
    wire[:, :size] = stored.astype("<u2").view(np.uint8)
    wire[:, size : size + n] = _quantize(blocks, bf16_values(stored), small)[:, :n]
    if error is not None:
        values = np.empty_like(x)
        fp8_decode(wire, values, block, small, add=False)
        lost(x, values, error)


def fp8_decode(wire: U8, out: F32, block: int, small: SmallFloat, add: bool) -> None:
    """x = number * scale, in fp32."""
    n = out.shape[1]
    size = 2 * -(-n // block)
    scales = bf16_values(np.ascontiguousarray(wire[:, :size]).view("<u2").astype(np.uint16))
    deliver(_dequantize(wire[:, size : size + n], scales, block, small), out, add)


# --- mxfp4: a power of two for 32 elements ---------------------------------------------------------------------------


def e8m0_values(stored: U8) -> F32:
    """2**(byte - 127); the byte 0xFF is NaN, 0 the one subnormal number."""
    bits = np.where(stored == 0, 0x00400000, stored.astype(np.uint32) << np.uint32(23))
    return np.where(stored == MX_NAN, 0x7FC00000, bits).astype(np.uint32).view(np.float32)


def mxfp4_encode(x: F32, wire: U8, error: F32 | None) -> None:
    """An E8M0 byte a block, ``floor(log2(absmax)) - 2``, then e2m1 codes, saturated."""
    n = x.shape[1]
    small = smallfloat.E2M1
    blocks = blocks_of(x, MX_BLOCK)
    exponent = (_magnitudes(blocks) >> np.uint32(23)).astype(np.int32)
    stored = np.where(exponent < 0xFF, np.maximum(exponent - MX_TOP, 0), MX_NAN).astype(np.uint8)
    size = stored.shape[1]
    wire[:, :size] = stored
    codes = _quantize(blocks, e8m0_values(stored), small)[:, :n]
    wire[:, size : size + layout.code_bytes(n, small.bits)] = pack(codes, small.bits)
    if error is not None:
        values = np.empty_like(x)
        mxfp4_decode(wire, values, add=False)
        lost(x, values, error)


def mxfp4_decode(wire: U8, out: F32, add: bool) -> None:
    """x = number * 2**(byte - 127), in fp32."""
    n = out.shape[1]
    small = smallfloat.E2M1
    size = -(-n // MX_BLOCK)
    codes = unpack(wire[:, size : size + layout.code_bytes(n, small.bits)], n, small.bits)
    deliver(_dequantize(codes, e8m0_values(np.ascontiguousarray(wire[:, :size])), MX_BLOCK, small), out, add)
