"""``mxfp4``: the 4-bit floats of OCP Microscaling, 32 to a power of two.

    e = floor(log2(absmax)) - 2        code = e2m1(x / 2^e)        x' = number of code * 2^e

The numbers are 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with a sign; x / 2^e is below 8 and what is above 6 becomes 6. Rounding is to
nearest even. A power of two costs no multiplication in hardware, and about twice the error of a finer scale. Wire bytes
of a row: 1 a block of 32 (E8M0), and the packed codes.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

from thinwire.codec.base import F32, U8, Codec
from thinwire.kernels import ops_float
from thinwire.kernels.layout import code_bytes
from thinwire.kernels.ops import Rows
from thinwire.kernels.smallfloat import MX_BLOCK


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MxFp4(Codec):
    """e2m1 codes with an E8M0 scale for each 32 elements."""

    block: ClassVar[int] = MX_BLOCK
    source: ClassVar[str] = "OCP Microscaling Formats (MX) v1.0; Rouhani et al. 2023, arXiv:2310.10537"

    @property
    def name(self) -> str:
        return "mxfp4"

    def _payload_bytes(self, n: int) -> int:
        return -(-n // MX_BLOCK) + code_bytes(n, 4)

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops_float.mxfp4_encode(rows, wire, error)

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops_float.mxfp4_decode(wire, out, add)
