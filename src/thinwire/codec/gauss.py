"""``gaussB`` and ``sign1``: the best 2^b levels for a Gaussian, on the root mean square of a block.

    x' = sign(x) level(i) s        i = the level nearest to |x| / r        r = sqrt(mean x^2)

The levels are those of Lloyd and Max for N(0, 1), symmetric and without zero: +-0.453, +-1.510 at 2 bits; at 1 bit, the sign.
The stored scale s (bf16) follows from r and the codes q = level(i) by ``fit``:

    "rms"       s = r
    "least"     s = <x, q> / <q, q>, of least squared error; then codes and s once more with s for r. At 1 bit s is mean |x|.
    "unbiased"  s = <x, x> / <x, q>, so that <x, x'> = <x, x>: the mean of x' over random rotations is then x (EDEN). It is for
                ``hadamard(gaussB)``, where many ranks are averaged.

Wire bytes of a row: 2 a block, and the packed codes. Zeros of a block that is not all zero come back as +-level(0) s. Numbers
beyond the last level are clipped, so heavy tails within a block cost more than with ``intB``: see docs/numerics.md.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final, Literal, final

from thinwire.codec.base import F32, U8, Codec, check_bits, check_block
from thinwire.errors import ConfigError
from thinwire.kernels import ops_gauss, reference_gauss
from thinwire.kernels.layout import code_bytes
from thinwire.kernels.ops import Rows

BITS: Final = (1, 2, 3, 4)
_FITS: Final = {"rms": reference_gauss.RMS, "least": reference_gauss.LEAST, "unbiased": reference_gauss.UNBIASED}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Gauss(Codec):
    """Codes of a Lloyd-Max codebook; ``fit`` says how the scale of a block is found."""

    bits: int
    block: int
    fit: Literal["rms", "least", "unbiased"]
    source: ClassVar[str] = (
        "Max 1960, doi:10.1109/TIT.1960.1057548; signs: Seide et al. 2014; scale: Vargaftik et al., arXiv:2108.08842"
    )

    def __post_init__(self) -> None:
        check_bits("gauss", self.bits, BITS)
        check_block(self.name, self.block, 8, 4096)
        if self.fit not in _FITS:
            raise ConfigError(f"{self.name}: fit={self.fit!r} is not known; allowed: {', '.join(_FITS)}")

    @property
    def name(self) -> str:
        return "sign1" if self.bits == 1 else f"gauss{self.bits}"

    def _code_section(self, n: int) -> tuple[int, int] | None:
        return 2 * -(-n // self.block), self.bits

    def _payload_bytes(self, n: int) -> int:
        return 2 * -(-n // self.block) + code_bytes(n, self.bits)

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops_gauss.gauss_encode(rows, wire, self.bits, self.block, _FITS[self.fit], error)

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops_gauss.gauss_decode(wire, out, self.bits, self.block, add)
