"""``none``, ``bf16`` and ``fp16``: the baselines that every quantizer is measured against.

Wire bytes of a row: 4n; 2n; 2n and 2 a block of 1,024.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

from thinwire.codec.base import F32, U8, Codec
from thinwire.kernels import ops
from thinwire.kernels.layout import GROUP
from thinwire.kernels.ops import Rows


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Raw(Codec):
    """fp32 as it is."""

    source: ClassVar[str] = "IEEE 754 binary32"

    @property
    def name(self) -> str:
        return "none"

    def _payload_bytes(self, n: int) -> int:
        return 4 * n

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops.raw_encode(rows, wire, error)

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops.raw_decode(wire, out, add)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class BFloat16(Codec):
    """The upper half of fp32, rounded to nearest even. A finite number stays finite."""

    source: ClassVar[str] = "Kalamkar et al. 2019, arXiv:1905.12322"

    @property
    def name(self) -> str:
        return "bf16"

    def _payload_bytes(self, n: int) -> int:
        return 2 * n

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops.bf16_encode(rows, wire, error)

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops.bf16_decode(wire, out, add)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Float16(Codec):
    """IEEE half precision of ``x / s``; s, a power of two a block of 1,024, brings the maximum into [2^14, 2^15).

    A plain cast turns 1e6 into Inf and 1e-8 into 0; with the block's exponent all of fp32's range fits.
    """

    source: ClassVar[str] = "IEEE 754 binary16 with a shared exponent"

    @property
    def name(self) -> str:
        return "fp16"

    def _payload_bytes(self, n: int) -> int:
        return 2 * n + 2 * -(-n // GROUP)

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops.f16_encode(rows, wire, GROUP, error)

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops.f16_decode(wire, out, GROUP, add)
