"""``topk``: of every chunk the k entries of largest magnitude; the others are zero.

    chosen: the k largest |x| of each `chunk` elements, the lower index first among equals
    s = extreme / -2^(b-1)      code = clip(round(x / s), -2^(b-1), 2^(b-1) - 1) + 2^(b-1)      x' = (code - 2^(b-1)) * s

Positions are coded as by Elias and Fano: sorted, of each the lower l = floor(log2(chunk / k)) bits as they are, and the upper
ones in unary, as one bitmap of k + (chunk - 1) / 2^l bits. That is a fixed size for a fixed k. The least that any fixed size
can do is log2(C choose k): this is 0.6 to 0.7 bits an entry above it, and what rounding to bytes costs (41 of 4,096: 8.59 bits
an entry against 7.98; 4 of 4,096: 12.00 against 10.85). From a quarter of the chunk on, a bitmap of one bit an element is
smaller. Wire bytes of a chunk: 2 for the bf16 scale, the positions, and k codes of b bits; a last chunk of m elements has
ceil(k m / chunk) entries.

4 bits a value are enough: of Student-t(3) numbers, 41 of 4,096 lose 0.637 of the energy in 8 bits a value (0.170 bits an
element), 0.643 in 4 (0.131), 0.662 in 3 (0.121) and 0.730 in 2 (0.111).

The sum over ranks has more than k entries a chunk, so ranks gather all rows instead of summing shards; and most of a tensor
is not sent at all, so feedback is on by default.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final, Literal, final

from thinwire.codec.base import F32, U8, Codec, check_bits, check_power
from thinwire.errors import ConfigError
from thinwire.kernels import ops_topk
from thinwire.kernels.layout_topk import row_bytes
from thinwire.kernels.ops import Rows

BITS: Final = (2, 3, 4, 5, 6, 7, 8)
CHUNKS: Final = (16, 1 << 14)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TopK(Codec):
    """``k`` of every ``chunk`` elements, their values in ``bits`` bits."""

    k: int
    chunk: int
    bits: int
    source: ClassVar[str] = "Aji and Heafield 2017, arXiv:1704.05021; positions: Elias 1974, Fano 1971"
    named: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_power(self.name, "chunk", self.chunk, *CHUNKS)
        check_bits(self.name, self.bits, BITS)
        if isinstance(self.k, bool) or not isinstance(self.k, int) or not 1 <= self.k <= self.chunk:
            raise ConfigError(f"{self.name}: k={self.k!r} is out of range; allowed: 1 to chunk={self.chunk}")

    @property
    def name(self) -> str:
        return "topk"

    @property
    def sums(self) -> Literal["two_shot", "all_gather"]:
        return "all_gather"

    @property
    def feedback_default(self) -> bool:
        return True

    def _payload_bytes(self, n: int) -> int:
        return row_bytes(n, self.k, self.chunk, self.bits)

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops_topk.topk_encode(rows, wire, self.k, self.chunk, self.bits, error)

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops_topk.topk_decode(wire, out, self.k, self.chunk, self.bits, add)
