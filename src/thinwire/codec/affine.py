"""``affineB``: integers with a zero point, as in integer-only inference.

    S = (hi - lo) / (2^b - 1)    Z = round(-lo / S)    code = clip(round(x / S) + Z, 0, 2^b - 1)    x' = S * (code - Z)

lo and hi are the smallest and largest of the block (of the whole row with ``block=None``) and of 0, so that zero has the
code Z and comes back exactly. S goes as fp32, rounded up; the arithmetic is fp64. |x - x'| <= S/2, up to the rounding of x'
to fp32, except for numbers that are less than S from the largest of fp32: less than S. Wire bytes of a row: 4 a block
(S), then 1 a block (Z), and the packed codes.

``rounding="stochastic"`` is round(x / S + u), u uniform in (-1/2, 1/2) as in ``intB``. So that neither end is clipped, which
would be a bias, Z is rounded up, and S is (hi - lo) / (2^b - 2) where zero lies inside: E[x'] = x, but for numbers less than S
from the largest of fp32.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final, Literal, final

from thinwire.codec.base import F32, U8, Codec, check_bits, check_block, check_rounding, drawn, quiet
from thinwire.codec.minmax import BLOCKS
from thinwire.kernels import ops_affine
from thinwire.kernels.layout import code_bytes
from thinwire.kernels.ops import Rows

BITS: Final = (2, 3, 4, 5, 6, 7, 8)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Affine(Codec):
    """Affine codes with an integer zero point; ``block=None`` takes one step and zero point for the whole row."""

    bits: int
    block: int | None = None
    rounding: Literal["nearest", "stochastic"] = quiet("nearest")
    source: ClassVar[str] = "Jacob et al. 2018, arXiv:1712.05877, section 2.1"

    def __post_init__(self) -> None:
        check_bits("affine", self.bits, BITS)
        check_rounding(self.name, self.rounding)
        if self.block is not None:
            check_block(self.name, self.block, *BLOCKS)

    @property
    def name(self) -> str:
        return f"affine{self.bits}"

    def _block(self, n: int) -> int:
        return max(n, 1) if self.block is None else self.block

    def _payload_bytes(self, n: int) -> int:
        return 5 * -(-n // self._block(n)) + code_bytes(n, self.bits)

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops_affine.affine_encode(rows, wire, self.bits, self._block(rows.data.shape[1]), error, drawn(self.rounding, seed))

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops_affine.affine_decode(wire, out, self.bits, self._block(out.shape[1]), add)
