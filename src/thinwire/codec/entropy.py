"""``entropy(inner)``: the codes of another codec in as many bits as they carry, exactly.

rANS (range asymmetric numeral systems) codes a symbol of frequency f out of 2^12 in log2(2^12 / f) bits, up to a rounding that is
spread over a chunk of 65,536 codes; every chunk has a table of its own, so that the layers of a model need not look alike. What
``inner`` loses, this loses, no more: decoding gives the same bits. A quantizer with small uniform steps under it (``grid``) is
within 0.25 bit of Shannon's limit at any rate. How far codes shrink depends on the numbers: a row states its size, and
``wire_bytes`` is the most it can be. Wire bytes of a row: 8, the inner row without its codes, 4 a chunk, and the chunks: each a
mode byte and either its packed codes, or one code, or a table (20 to 250 bytes), 32 states of 4 bytes, and words of 2.
"""

from __future__ import annotations

import dataclasses
import struct
from functools import lru_cache
from typing import ClassVar, Final, final

import numpy as np

from thinwire.codec.base import F32, U8, Codec, Wrapper
from thinwire.errors import ConfigError, WireError
from thinwire.kernels.layout import ROW_ALIGN, code_bytes, round_up
from thinwire.kernels.layout_rans import MOST_BITS, chunks, stream_capacity
from thinwire.kernels.ops import Rows
from thinwire.kernels.ops_rans import chunk_places, rans_decode, rans_encode

_SIZE: Final = struct.Struct("<Q")
_SAMPLE: Final = 1 << 16
_SUMMANDS: Final = 12
_LEAST_CHUNK: Final = 2


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Entropy(Wrapper):
    """The rows of ``inner`` with their packed codes entropy-coded."""

    label: ClassVar[str] = "entropy"
    source: ClassVar[str] = "Duda 2013, arXiv:1311.2540; interleaved as Giesen 2014, arXiv:1402.3392"

    def __post_init__(self) -> None:
        section = self.inner._code_section(1) if isinstance(self.inner, Codec) else None
        if section is None or section[1] > MOST_BITS:
            raise ConfigError(
                f"entropy: inner={self.inner!r} is not allowed; allowed: codecs with packed codes of up to {MOST_BITS} bits, as "
                "intB, minmaxB and grid, and are not entropy-coded already"
            )

    def _code_section(self, n: int) -> tuple[int, int] | None:
        return None

    @property
    def variable(self) -> bool:
        return True

    def section(self, n: int) -> tuple[int, int]:
        """Where the packed codes start in a row of ``inner``, and their bits."""
        section = self.inner._code_section(n)
        assert section is not None
        return section

    def _payload_bytes(self, n: int) -> int:
        head, bits = self.section(n)
        return _SIZE.size + head + stream_capacity(n, bits) if n else 0

    def least_bytes(self, n: int) -> int:
        """Bytes of the shortest row of ``n``."""
        shortest = _SIZE.size + self.section(n)[0] + (4 + _LEAST_CHUNK) * chunks(n)
        return round_up(shortest, ROW_ALIGN) if n else 0

    def stated_bytes(self, head: bytes | memoryview) -> int:
        if len(head) < ROW_ALIGN:
            raise WireError(f"entropy-coded row has {len(head)} bytes; allowed: {ROW_ALIGN} or more")
        (size,) = _SIZE.unpack_from(head)
        if size < ROW_ALIGN or size % ROW_ALIGN:
            raise WireError(f"entropy-coded row says it has {size} bytes; allowed: multiples of {ROW_ALIGN}")
        return size

    def expected_bits(self, n: int) -> float:
        if not n:
            return 0.0
        codes = 8 * (_sample_bytes(self) - self._besides_codes(_SAMPLE)) / _SAMPLE
        return min(self.bits_per_element(n), codes + 8 * self._besides_codes(n) / n)

    def _besides_codes(self, n: int) -> int:
        return self._payload_bytes(n) - code_bytes(n, self.section(n)[1])

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        r, n = rows.data.shape
        head, bits = self.section(n)
        plain = np.zeros((r, self.inner.wire_bytes(n)), dtype=np.uint8)
        self.inner._encode(rows, plain, error, seed)
        start = _SIZE.size + head
        for source, target in zip(plain, wire, strict=True):
            target[_SIZE.size : start] = source[:head]
            end = start + rans_encode(source[head : head + code_bytes(n, bits)], n, bits, target[start:])
            target[end:] = 0
            _SIZE.pack_into(target, 0, round_up(end, ROW_ALIGN))

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        n = out.shape[1]
        head, bits = self.section(n)
        start = _SIZE.size + head
        plain: U8 | None = None
        for i, row in enumerate(wire):
            size = self._checked_bytes(row, n)
            data = row[start:size]
            places = chunk_places(data, n)
            if round_up(start + int(places[-1]), ROW_ALIGN) != size:
                raise WireError(f"entropy-coded row says it has {size} bytes; its chunks end at {start + int(places[-1])}")
            if plain is None:
                # Only now, since what a row's size allows is known: a short row cannot ask for much memory.
                plain = np.zeros((1, self.inner.wire_bytes(n)), dtype=np.uint8)
            plain[0, :head] = row[_SIZE.size : start]
            rans_decode(data, places, n, bits, plain[0, head:])
            self.inner._decode(plain, out[i : i + 1], add)

    def _checked_bytes(self, row: U8, n: int) -> int:
        size = self.message_bytes(row)
        if size < self.least_bytes(n):
            raise WireError(
                f"entropy-coded row says it has {size} bytes; allowed for {n} elements: {self.least_bytes(n)} or more"
            )
        return size


@lru_cache
def _sample_bytes(codec: Entropy) -> int:
    """Bytes of a row of nearly Gaussian numbers: sums of twelve from integer arithmetic, the same on all ranks."""
    mixed = np.arange(_SUMMANDS * _SAMPLE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = ((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(44)
    total = mixed.astype(np.int64).reshape(_SUMMANDS, _SAMPLE).sum(axis=0)
    rows = (total - _SUMMANDS * (1 << 19)).astype(np.float32)[None]
    return codec.message_bytes(np.asarray(codec.encode(rows))[0])
