"""Entropy-coded rows from outside: both backends read the same or refuse for the same reason, or a change is seen."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thinwire as tw
from samples import gaussian
from test_rows import check
from thinwire.errors import WireError
from thinwire.kernels import layout_rans, ops, ops_rans, reference

CODEC = tw.codec("entropy(int4)")
N = 1500
ROW = CODEC.encode(gaussian(1, N) ** 5)[0]
HEAD = 8 + CODEC.inner._code_section(N)[0]
assert ROW[HEAD + 4] == layout_rans.CODED
RNG = np.random.default_rng(5)


@pytest.mark.parametrize("name", ["entropy(int4)", "entropy(int8)", "entropy(minmax2)", "entropy(minmax7;block=64)"])
def test_rows_with_changed_bytes(name):
    codec = tw.codec(name)
    for n in (1, 40, 700, 3000):
        for scale in (1, 0):
            good = codec.encode(gaussian(1, n) * np.float32(scale))
            for _ in range(40):
                wire = good.copy()
                for at in RNG.integers(0, codec.message_bytes(good[0]), RNG.integers(1, 4)):
                    wire[0, at] = RNG.choice([0, 1, 2, 0xFF, RNG.integers(256)])
                check(codec, wire, n)


@given(data=st.binary(min_size=1, max_size=600), n=st.integers(1, 500), bits=st.integers(1, 8))
def test_any_bytes_as_a_chunk(data, n, bits):
    """Both backends give the same codes or the same fault."""
    stream = np.frombuffer(struct.pack("<I", len(data)) + data, dtype=np.uint8)
    found = []
    for backend in ops.BACKENDS:
        before = ops.set_backend(backend)
        packed = np.zeros(layout_rans.layout.code_bytes(n, bits), dtype=np.uint8)
        try:
            ops_rans.rans_decode(stream, ops_rans.chunk_places(stream, n), n, bits, packed)
            found.append(packed.tobytes())
        except WireError as error:
            found.append(str(error))
        finally:
            ops.set_backend(before)
    assert found[0] == found[1]


@given(st.data())
def test_any_table_and_words(data):
    """Behind a table that adds up, whatever the states and words are."""
    n = data.draw(st.integers(1, 400))
    codes = np.random.default_rng(n).integers(0, 5, n).astype(np.uint8)
    frequency = np.zeros(256, dtype=np.int64)
    frequency[:5] = 800, 900, 1000, 1100, 296
    from thinwire.kernels import reference_rans

    table = reference_rans.write_table(frequency)
    tail = data.draw(st.binary(min_size=128, max_size=128 + 2 * n))
    chunk = bytes([layout_rans.CODED]) + table.tobytes() + tail
    stream = np.frombuffer(struct.pack("<I", len(chunk)) + chunk, dtype=np.uint8)
    places = ops_rans.chunk_places(stream, n)
    for backend in ops.BACKENDS:
        before = ops.set_backend(backend)
        packed = reference.pack(codes[None], 4)[0]
        try:
            with pytest.raises(WireError, match="chunk 0"):
                ops_rans.rans_decode(stream, places, n, 4, packed)
        finally:
            ops.set_backend(before)


def test_every_byte_of_the_codes_matters():
    """A change is refused, or what is decoded differs: no byte of a row is ignored."""
    good = CODEC.decode(ROW[None], N)
    silent = 0
    for at in range(CODEC.message_bytes(ROW)):
        wire = ROW[None].copy()
        wire[0, at] ^= 0x55
        try:
            silent += np.array_equal(CODEC.decode(wire, N), good)
        except WireError:
            continue
    assert silent <= 16  # padding


@pytest.mark.parametrize(
    ("at", "patch", "words"),
    [
        (0, struct.pack("<Q", 0), "says it has 0 bytes"),
        (0, struct.pack("<Q", 2**64 - 16), f"says it has {2**64 - 16} bytes"),
        (0, struct.pack("<Q", ROW.size + 16), "up to"),
        (0, struct.pack("<Q", 16), "16 bytes; allowed for 1500 elements"),
        (0, struct.pack("<Q", 17), "multiples of 16"),
        (HEAD, struct.pack("<I", 2**32 - 1), "the sizes of its chunks say"),
        (HEAD, struct.pack("<I", 40), "its chunks end at"),
        (HEAD + 4, b"\x03", "mode is not known"),
        (HEAD + 4, b"\x01", "size does not fit"),
        (HEAD + 4, b"\x00", "size does not fit"),
        (HEAD + 4, b"\x02\x01", "do not add up"),
        (HEAD + 5, b"\xff\xff\xff", "do not add up"),
        (HEAD + 100, b"\x55\x55", "words do not end"),
    ],
)
def test_messages_say_what_is_wrong(at, patch, words):
    wire = ROW[None].copy()
    wire[0, at : at + len(patch)] = np.frombuffer(patch, dtype=np.uint8)
    for backend in ops.BACKENDS:
        before = ops.set_backend(backend)
        try:
            with pytest.raises(WireError, match=re.escape(words)):
                CODEC.decode(wire, N)
        finally:
            ops.set_backend(before)
