"""Frames from outside are never trusted: anything but a whole, unaltered frame is a WireError."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thinwire as tw
from samples import IDS, VARIANTS, awkward
from thinwire.codec import frame

GOOD = frame.dumps(awkward(2, 100), tw.codec("int4"))


@pytest.mark.parametrize("codec", VARIANTS, ids=IDS)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (2, 1000)])
def test_roundtrip(codec, shape):
    x = awkward(*shape)
    data = frame.dumps(x, codec)
    made, n, wire = frame.unpack(data)
    assert (made, n, wire.shape) == (codec, shape[1], (shape[0], codec.wire_bytes(shape[1])))
    np.testing.assert_array_equal(frame.loads(data), codec.decode(codec.encode(x), shape[1]))
    np.testing.assert_array_equal(frame.loads(bytearray(data)), frame.loads(memoryview(data)))
    assert frame.pack(frame.unpack(data)) == data


def test_every_truncation_is_noticed():
    for size in range(len(GOOD)):
        with pytest.raises(tw.WireError):
            frame.loads(GOOD[:size])


def test_every_altered_byte_is_noticed():
    for at in range(len(GOOD)):
        for change in (0x01, 0x80, 0xFF):
            with pytest.raises(tw.WireError):
                frame.loads(GOOD[:at] + bytes([GOOD[at] ^ change]) + GOOD[at + 1 :])


def test_bytes_behind_the_frame_are_noticed():
    with pytest.raises(tw.WireError, match="its header says"):
        frame.loads(GOOD + b"\0")


@given(st.binary(max_size=300))
def test_any_bytes(data):
    with pytest.raises(tw.WireError):
        frame.loads(data)


@given(st.integers(0, 31), st.binary(min_size=1, max_size=12))
def test_hostile_headers_with_a_right_checksum(at, patch):
    """The checksum stops accidents, not authors: sizes are checked against the bytes that are really there."""
    hostile = bytearray(GOOD)
    hostile[at : at + len(patch)] = patch
    hostile[12:16] = bytes(4)
    hostile[12:16] = struct.pack("<I", zlib.crc32(hostile))
    try:
        decoded = frame.loads(hostile)
    except tw.WireError:
        return
    assert decoded.size * 4 <= 32 * len(hostile) * 8


def test_messages_say_what_is_wrong():
    for change, words in [
        ((0, b"XWIR"), "starts with"),
        ((4, b"\x09"), "version 9"),
        ((32, b"jnt4"), "jnt4"),
        ((40, b"9"), "names codec"),
        ((16, b"\xff"), "payload bytes"),
    ]:
        at, patch = change
        with pytest.raises(tw.WireError, match=words):
            frame.loads(GOOD[:at] + patch + GOOD[at + len(patch) :])
