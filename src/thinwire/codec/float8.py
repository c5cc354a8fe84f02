"""``fp8_e4m3`` and ``fp8_e5m2``: 8-bit floating point with one scale a block.

    s = absmax / largest        code = fp8(x / s)        x' = number of code * s        largest = 448 (e4m3), 57344 (e5m2)

e4m3 has 4 exponent and 3 mantissa bits, e5m2 has 5 and 2; both have subnormal numbers, and rounding is to nearest even.
s goes as bf16, rounded up, so that the largest magnitude is never above the format's largest number. No code for NaN or
infinity is written. Wire bytes of a row: 2 a block, and 1 an element.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final, Literal, final

from thinwire.codec.base import F32, U8, Codec, check_block
from thinwire.errors import ConfigError
from thinwire.kernels import ops_float
from thinwire.kernels.layout import TILE
from thinwire.kernels.ops import Rows
from thinwire.kernels.smallfloat import E4M3, E5M2, SmallFloat

FORMATS: Final[dict[str, SmallFloat]] = {"e4m3": E4M3, "e5m2": E5M2}
BLOCKS: Final = (8, TILE)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Float8(Codec):
    """8-bit floats relative to the block's largest magnitude; ``format`` is "e4m3" or "e5m2"."""

    format: Literal["e4m3", "e5m2"]
    block: int = 128
    source: ClassVar[str] = "Micikevicius et al. 2022, arXiv:2209.05433 (OCP FP8)"
    named: ClassVar[tuple[str, ...]] = ("format",)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"fp8: format={self.format!r} is not known; allowed: {', '.join(FORMATS)}")
        check_block(self.name, self.block, *BLOCKS)

    @property
    def name(self) -> str:
        return f"fp8_{self.format}"

    def _payload_bytes(self, n: int) -> int:
        return 2 * -(-n // self.block) + n

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops_float.fp8_encode(rows, wire, self.block, FORMATS[self.format], error)

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops_float.fp8_decode(wire, out, self.block, FORMATS[self.format], add)
