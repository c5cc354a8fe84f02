"""Hostile frames: valid ones, and what a careless network or a clever sender makes of them. The same seed, the same frames.

Most of what is random falls at the checksum, so every mutation but the plainest can repair it: the checks behind it, and the
decoders, are where a mistake would hurt.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from samples import VARIANTS, awkward, gaussian
from thinwire.codec import Codec, frame

HEADER: Final = struct.Struct("<4sBBHIIQQ")
CHECKSUM_AT: Final = 12
# Where the header keeps its numbers: offset, struct code, bits.
FIELDS: Final = {
    "version": (4, "<B", 8),
    "spec size": (5, "<B", 8),
    "zero": (6, "<H", 16),
    "rows": (8, "<I", 32),
    "checksum": (12, "<I", 32),
    "elements": (16, "<Q", 64),
    "payload": (24, "<Q", 64),
}
SHAPES: Final = [(1, 1), (2, 33), (1, 300), (3, 0), (0, 5), (1, 1100)]
# Little endian halves and words that decoders may trip over: NaN, Inf, signalling NaN, the largest and smallest numbers.
PATTERNS: Final = [
    b"\xff",
    b"\x00",
    b"\x80\x7f",
    b"\x80\xff",
    b"\xc0\x7f",
    b"\x7f\x7f",
    b"\x01\x00",
    b"\x00\x7c",
    b"\x01\x7c",
    b"\x00\x00\x80\x7f",
    b"\x01\x00\x80\x7f",
    b"\xff\xff\x7f\x7f\xff\xff\x7f\xff",
    b"\x7e",
    b"\x7f",
]
# Pieces of specs: names, fields, and what parsers stumble over.
WORDS: Final = [
    *sorted({piece for codec in VARIANTS for piece in codec.spec().replace("=", ";=;").split(";")}),
    *(codec.spec() for codec in VARIANTS),
    *("int1", "int9", "minmax1", "minmax0", "intB", "INT8", "codec", "bits", "bits=8", "name", "name=8", "fields=1", "self=0"),
    *("source=x", "__class__=1", "block=0", "block=-8", "block=8.0", "block=+8", "block=1_024", "block=0x20", "block=08"),
    *("block=" + "9" * 200, "block=18446744073709551616", "scale=none", "block=none", "scale=0", "scale=bf16;scale=bf16"),
    *(
        "=",
        ";",
        ";;",
        "=;=",
        " ",
        "\n",
        "\0",
        "\0" * 16,
        "\x7f",
        "é",
        "\u0661\u0662\u0668",
        "\ud7ff",
        "\U0001f4a3",
        "%s%n",
        "../",
    ),
]


def seal(data: bytearray) -> bytearray:
    """Write the checksum that makes ``data`` an unaltered frame; too short to have one, it stays as it is."""
    if len(data) >= CHECKSUM_AT + 4:
        data[CHECKSUM_AT : CHECKSUM_AT + 4] = bytes(4)
        struct.pack_into("<I", data, CHECKSUM_AT, zlib.crc32(data))
    return data


def build(spec: bytes, rows: int, n: int, payload: bytes, size: int | None = None) -> bytearray:
    """A sealed frame of any header; ``size`` is what it says of its payload, the truth if None."""
    spec = spec[:255]
    header = HEADER.pack(b"TWIR", 1, len(spec), 0, rows, 0, n, len(payload) if size is None else size)
    return seal(bytearray(header + spec.ljust(-(-len(spec) // 16) * 16, b"\0") + payload))


def valid_frames(codecs: Sequence[Codec] = VARIANTS) -> list[bytes]:
    """Small frames of every codec."""
    return [frame.dumps(make(*shape), codec) for codec in codecs for shape in SHAPES for make in (gaussian, awkward)]


def payload_at(data: bytes | bytearray) -> int:
    """Where the payload starts, if the header says so within the data."""
    return min(len(data), HEADER.size + -(-data[5] // 16) * 16) if len(data) > 5 else len(data)


def extreme(chance: random.Random, bits: int, now: int) -> int:
    """A number that a check may miss: the limits, powers of two and their neighbours, or the one that is there, off by one."""
    top = (1 << bits) - 1
    power = 1 << chance.randrange(bits)
    kinds = (0, 1, top, top - 1, now + 1, now - 1, power, power - 1, power + 1, top ^ now, now * 2, chance.getrandbits(bits))
    return chance.choice(kinds) & top


class Mutator:
    """An endless row of messages: ``message()`` is one, and its sender may have repaired the checksum."""

    def __init__(self, seed: int, frames: Sequence[bytes] | None = None) -> None:
        self.chance = random.Random(seed)
        self.frames = valid_frames() if frames is None else list(frames)
        self.noise = np.random.default_rng(seed).bytes(1 << 16)
        self.kinds: list[Callable[[bytearray], bytearray]] = [
            self.flip,
            self.truncate,
            self.extend,
            self.splice,
            self.field,
            self.empty_rows,
            self.respec,
            self.repayload,
            self.remake,
        ]

    def message(self) -> bytes:
        """The next message."""
        data = bytearray(self.chance.choice(self.frames))
        for _ in range(self.chance.choice((1, 1, 1, 2, 3))):
            data = self.chance.choice(self.kinds)(data)
        return bytes(seal(data) if self.chance.random() < 0.8 else data)

    def mutate(self, data: bytes) -> bytes:
        """One mutation of a message that is given, sealed half of the time."""
        changed = self.chance.choice(self.kinds)(bytearray(data))
        return bytes(seal(changed) if self.chance.random() < 0.5 else changed)

    def bytes_like(self, size: int) -> bytes:
        """A payload: noise, or one pattern all over, or noise behind a pattern where the scales are."""
        at = self.chance.randrange(len(self.noise))
        noise = (self.noise[at:] + self.noise)[:size]
        noise += bytes(size - len(noise))
        pattern = self.chance.choice(PATTERNS)
        full = (pattern * (size // len(pattern) + 1))[:size]
        kind = self.chance.randrange(4)
        if kind == 0:
            return noise
        if kind == 1:
            return full
        cut = self.chance.randrange(size + 1)
        return full[:cut] + noise[cut:] if kind == 2 else noise[:cut] + full[cut:]

    def flip(self, data: bytearray) -> bytearray:
        """Up to four bits, rather of the header."""
        for _ in range(self.chance.randrange(1, 5)):
            if data:
                end = min(64, len(data)) if self.chance.random() < 0.5 else len(data)
                data[self.chance.randrange(end)] ^= 1 << self.chance.randrange(8)
        return data

    def truncate(self, data: bytearray) -> bytearray:
        """A piece off the end, often small."""
        drop = self.chance.choice((1, 2, 15, 16, 17, self.chance.randrange(len(data) + 1)))
        return data[: max(0, len(data) - drop)]

    def extend(self, data: bytearray) -> bytearray:
        """Bytes behind the end, or in the middle."""
        more = self.bytes_like(self.chance.choice((1, 2, 15, 16, 17, 100)))
        at = len(data) if self.chance.random() < 0.7 else self.chance.randrange(len(data) + 1)
        return data[:at] + more + data[at:]

    def splice(self, data: bytearray) -> bytearray:
        """The front of one and the back of another; half of the time header and payload."""
        other = self.chance.choice(self.frames)
        if self.chance.random() < 0.5:
            return data[: payload_at(data)] + other[payload_at(other) :]
        return data[: self.chance.randrange(len(data) + 1)] + other[self.chance.randrange(len(other)) :]

    def field(self, data: bytearray) -> bytearray:
        """An extreme number in a field of the header."""
        at, code, bits = FIELDS[self.chance.choice(list(FIELDS))]
        if len(data) >= HEADER.size:
            (now,) = struct.unpack_from(code, data, at)
            struct.pack_into(code, data, at, extreme(self.chance, bits, now))
        return data

    def empty_rows(self, data: bytearray) -> bytearray:
        """No payload, and numbers that multiply to nothing: what is huge then is only in the header."""
        rows, n = extreme(self.chance, 32, 0), extreme(self.chance, 64, 0)
        rows, n = (0, n) if self.chance.random() < 0.5 else (rows, 0)
        spec = self.chance.choice(VARIANTS).spec().encode()
        return build(spec, rows, n, b"", None if self.chance.random() < 0.8 else extreme(self.chance, 64, 0))

    def respec(self, data: bytearray) -> bytearray:
        """Another spec before the same payload: another codec's, one with a piece replaced, or words in a row."""
        if len(data) < HEADER.size:
            return data
        words = bytes(data[HEADER.size : HEADER.size + data[5]]).decode("latin-1").split(";")
        kind = self.chance.randrange(4)
        if kind == 0:
            text = self.chance.choice(VARIANTS).spec()
        elif kind == 1:
            text = ";".join(self.chance.choice(WORDS) for _ in range(self.chance.randrange(1, 6)))
        else:
            words[self.chance.randrange(len(words))] = self.chance.choice(WORDS)
            text = ";".join([*words, self.chance.choice(WORDS)] if kind == 2 else words)
        _, _, _, _, rows, _, n, size = HEADER.unpack_from(data)
        return build(text.encode("utf-8"), rows, n, bytes(data[payload_at(data) :]), size)

    def repayload(self, data: bytearray) -> bytearray:
        """Other numbers behind the same header."""
        at = payload_at(data)
        data[at:] = self.bytes_like(len(data) - at)
        return data

    def remake(self, data: bytearray) -> bytearray:
        """A frame that is right in all but its numbers, of any codec and of few elements."""
        codec = self.chance.choice(VARIANTS)
        rows, n = self.chance.randrange(4), self.chance.choice((0, 1, 2, 31, 33, 127, 255, 257, self.chance.randrange(1200)))
        return build(codec.spec().encode(), rows, n, self.bytes_like(rows * codec.wire_bytes(n)))
