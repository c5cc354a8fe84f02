"""``minmaxB``: the textbook affine quantizer.

    code = round((x - lo) / (hi - lo) * (2^b - 1))        x' = lo + code * step        step = (hi - lo) / (2^b - 1)

lo and hi are the smallest and largest of the block (of the whole row with ``block=None``) and go as fp32; the arithmetic
is fp64, rounding to nearest even. |x - x'| <= step/2, up to the rounding of x' to fp32; lo and hi, and so constant blocks,
come back exactly. Wire bytes of a row: 8 a block, and the packed codes.

``rounding="stochastic"`` adds u, uniform in (-1/2, 1/2) as in ``intB``, before it rounds: without bias for every number of
the block, since lo and hi lie on the grid, and |x - x'| < step.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final, Literal, final

from thinwire.codec.base import F32, U8, Codec, check_bits, check_block, check_rounding, drawn, quiet
from thinwire.kernels import ops
from thinwire.kernels.layout import code_bytes
from thinwire.kernels.ops import Rows

BITS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 16)
BLOCKS: Final = (8, 1 << 20)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MinMax(Codec):
    """Affine codes between the smallest and the largest; ``block=None`` takes them over the whole row."""

    bits: int
    block: int | None = None
    rounding: Literal["nearest", "stochastic"] = quiet("nearest")
    source: ClassVar[str] = "Jacob et al. 2018, arXiv:1712.05877, eq. 1"

    def __post_init__(self) -> None:
        check_bits("minmax", self.bits, BITS)
        check_rounding(self.name, self.rounding)
        if self.block is not None:
            check_block(self.name, self.block, *BLOCKS)

    @property
    def name(self) -> str:
        return f"minmax{self.bits}"

    def _block(self, n: int) -> int:
        return max(n, 1) if self.block is None else self.block

    def _payload_bytes(self, n: int) -> int:
        return 8 * -(-n // self._block(n)) + code_bytes(n, self.bits)

    def _code_section(self, n: int) -> tuple[int, int] | None:
        return 8 * -(-n // self._block(n)), self.bits

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops.minmax_encode(rows, wire, self.bits, self._block(rows.data.shape[1]), error, drawn(self.rounding, seed))

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops.minmax_decode(wire, out, self.bits, self._block(out.shape[1]), add)
