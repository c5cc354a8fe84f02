"""``intB``: blocks with one signed scale, all 2^b codes used.

    s = extreme / -2^(b-1)        code = clip(round(x / s), -2^(b-1), 2^(b-1) - 1) + 2^(b-1)        x' = (code - 2^(b-1)) * s

The extreme is the element of largest magnitude with its sign, so it always meets the code that has no positive twin: against
the usual +-(2^(b-1) - 1) levels the error falls 22 % at 4 bits and 70 % at 2. The scale goes as bf16, or as 8 bits
(sign, seven bits in steps of 1/8 octave) relative to the bf16 maximum of a group of 1,024: 2 % more error at 4 bits, half
the scale bytes. Wire bytes of a row: 2 a block (bf16) or 1 a block and 2 a group (log8), and the packed codes.

``search=True`` tries the scales s * 2^(-k/8), k = -1..6, of each block and takes the one of least squared error: at 32 elements a
block 8 % less error on Gaussian numbers at 4 bits, 12 % at 3, 15 % at 2, and more in longer blocks or heavier tails.

``rounding="stochastic"`` is round(x / s + u), u uniform in (-1/2, 1/2) from ``encode``'s seed and the element's number: without
bias, with at least twice the squared error. So that nothing is clipped, s = extreme / -(2^(b-1) - 1), rounded up (Gupta et al.,
arXiv:1502.02551; at 2 bits the levels of TernGrad, arXiv:1705.07878).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final, Literal, final

from thinwire.codec.base import F32, U8, Codec, check_bits, check_block, check_rounding, quiet
from thinwire.errors import ConfigError
from thinwire.kernels import ops
from thinwire.kernels.layout import GROUP, code_bytes, int_scale_bytes
from thinwire.kernels.ops import Rows

BITS: Final = (2, 3, 4, 5, 6, 7, 8)
SCALES: Final = ("bf16", "log8")
LARGEST_BLOCK: Final = {"bf16": 4096, "log8": GROUP}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Int(Codec):
    """Codes relative to the block's element of largest magnitude; ``scale`` is how that goes: "bf16" or "log8"."""

    bits: int
    block: int
    scale: Literal["bf16", "log8"]
    rounding: Literal["nearest", "stochastic"] = quiet("nearest")
    search: bool = quiet(False)
    source: ClassVar[str] = "signed extreme: docs/numerics.md; scales as QLoRA's double quantization, arXiv:2305.14314"

    def __post_init__(self) -> None:
        check_bits("int", self.bits, BITS)
        if self.scale not in SCALES:
            raise ConfigError(f"{self.name}: scale={self.scale!r} is not known; allowed: {', '.join(SCALES)}")
        check_rounding(self.name, self.rounding)
        if self.search not in (False, True) or (self.search and self.rounding != "nearest"):
            allowed = "False, True" if self.rounding == "nearest" else f"False with rounding={self.rounding}"
            raise ConfigError(f"{self.name}: search={self.search!r} is not allowed; allowed: {allowed}")
        check_block(f"{self.name} with scale={self.scale}", self.block, 8, LARGEST_BLOCK[self.scale])

    @property
    def name(self) -> str:
        return f"int{self.bits}"

    def _payload_bytes(self, n: int) -> int:
        return int_scale_bytes(n, self.block, self.scale == "log8") + code_bytes(n, self.bits)

    def _code_section(self, n: int) -> tuple[int, int] | None:
        return int_scale_bytes(n, self.block, self.scale == "log8"), self.bits

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        log_scale = self.scale == "log8"
        if self.rounding == "stochastic":
            ops.int_encode_stochastic(rows, wire, self.bits, self.block, log_scale, error, seed)
        elif self.search:
            ops.int_encode_search(rows, wire, self.bits, self.block, log_scale, error)
        else:
            ops.int_encode(rows, wire, self.bits, self.block, log_scale, error)

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops.int_decode(wire, out, self.bits, self.block, self.scale == "log8", add)
