"""``topk`` by hand, its order among equals, its size, and bytes that no writer would write."""

from __future__ import annotations

from math import comb, log2

import numpy as np
import pytest

import thinwire as tw
from thinwire.kernels import layout_topk, ops

both = pytest.mark.parametrize("backend", ops.BACKENDS)


@pytest.fixture(autouse=True)
def _restored():
    before = ops.set_backend("numba")
    yield
    ops.set_backend(before)


@both
def test_a_row_by_hand(backend):
    ops.set_backend(backend)
    x = np.zeros((1, 20), dtype=np.float32)
    x[0, [3, 7, 17, 19]] = [1.0, -2.0, 0.5, -0.25]
    codec = tw.codec("topk", k=2, chunk=16, bits=4)
    wire = codec.encode(x)[0]
    # l = floor(log2(16 / 2)) = 3, so 2 + floor(15 / 8) = 3 bits of map; positions 3 and 7 have upper bits of 0: ones at 0 and 1.
    # The extreme is -2, so s = -2 / -8 = 0.25 = 0x3E80, and codes 1 / 0.25 + 8 = 12, -2 / 0.25 + 8 = 0.
    assert bytes(wire[:5]) == bytes([0x80, 0x3E, 0b011, 3 | 7 << 3, 12 | 0 << 4])
    # 4 elements: 1 entry, and 4 * 1 >= 4, so a map of one bit an element; s = 0.5 / -8 = -0.0625 = 0xBD80, code 0.
    assert bytes(wire[5:9]) == bytes([0x80, 0xBD, 0b0010, 0])
    assert not wire[9:].any()
    decoded = codec.decode(wire[None], 20)[0]
    assert {i: v for i, v in enumerate(decoded) if v} == {3: 1.0, 7: -2.0, 17: 0.5}


@both
def test_of_equals_the_first_are_chosen(backend):
    ops.set_backend(backend)
    generator = np.random.default_rng(0)
    for k, m in ((1, 100), (7, 4096), (41, 4096), (700, 4096), (64, 64)):
        codec = tw.codec("topk", k=k, chunk=4096, bits=8)
        x = generator.choice(np.array([-2, -1, 0, 1, 2], dtype=np.float32), m)
        x[m // 2 :] = 2 if k % 2 else 0
        count = layout_topk.entries(m, k, 4096)
        chosen = np.argsort(-np.abs(x), kind="stable")[:count]
        expected = np.zeros(m, dtype=np.float32)
        expected[chosen] = x[chosen]
        np.testing.assert_allclose(codec.decode(codec.encode(x[None]), m)[0], expected, rtol=0.01)


@pytest.mark.parametrize("k", [4, 8, 32, 41, 64, 100, 256, 500, 1000])
def test_positions_are_near_their_entropy(k):
    low = layout_topk.low_bits(4096, k)
    bits = 8 * (layout_topk.map_bytes(4096, k, low) + layout_topk.field_bytes(k, low))
    least = log2(comb(4096, k))
    assert least <= bits <= least + 0.8 * k + 14


@pytest.mark.parametrize("chunk", [16, 64, 4096])
def test_every_size_has_room_for_its_positions(chunk):
    for k in {1, 2, 3, chunk // 5, chunk // 4, chunk // 2, chunk}:
        codec = tw.codec("topk", k=k, chunk=chunk, bits=2)
        for n in (1, 2, 3, chunk - 1, chunk, chunk + 1, chunk + chunk // 3):
            for x in (np.arange(1, n + 1), np.arange(n, 0, -1)):
                row = x.astype(np.float32)[None]
                back = codec.decode(codec.encode(row), n)
                # A code of two bits is 0 for what is far below the extreme.
                assert np.count_nonzero(back) <= sum(layout_topk.entries(min(chunk, n - a), k, chunk) for a in range(0, n, chunk))
                assert (back[0, int(row[0].argmax())] > 0).all()


@both
def test_bytes_that_no_writer_writes(backend):
    ops.set_backend(backend)
    codec = tw.codec("topk", k=2, chunk=16, bits=4)
    wire = np.zeros((1, codec.wire_bytes(16)), dtype=np.uint8)

    def decoded(*record: int) -> dict[int, float]:
        wire[0, : len(record)] = record
        return {i: float(v) for i, v in enumerate(codec.decode(wire, 16)[0]) if v}

    assert decoded(0x80, 0x3F, 0b011, 5 | 5 << 3, 0x99) == {5: 2.0}  # the same position twice
    assert decoded(0x80, 0x3F, 0b011, 5 | 2 << 3, 0x99) == {2: 1.0, 5: 1.0}  # in another order
    assert decoded(0x80, 0x3F, 0b000, 5 | 2 << 3, 0x99) == {}  # no entry
    assert decoded(0x80, 0x3F, 0b10000001, 5 | 2 << 3, 0x99) == {5: 1.0}  # a position of 6 * 8 + 2
    assert decoded(0x80, 0x3F, 0xFF, 5 | 2 << 3, 0x99) == {5: 1.0, 2: 1.0}  # more than two
    wire[0, :2] = 0x80, 0x7F  # an infinite scale
    assert np.isnan(codec.decode(wire, 16)).all()


@both
def test_adding_touches_the_entries_only(backend):
    ops.set_backend(backend)
    x = np.random.default_rng(1).standard_normal((1, 9000), dtype=np.float32)
    codec = tw.codec("topk")
    plain = codec.decode(codec.encode(x), 9000)
    out = np.full((1, 9000), -0.0, dtype=np.float32)
    codec.decode(codec.encode(x), 9000, out=out, add=True)
    assert np.signbit(out[plain == 0]).all()
    assert np.count_nonzero(plain) <= 41 + 41 + 9


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"k": 0}, ["k=0", "1 to chunk=4096"]),
        ({"k": 4097}, ["k=4097"]),
        ({"k": True}, ["k=True"]),
        ({"k": 2.0}, ["k=2.0"]),
        ({"chunk": 100}, ["chunk=100", "powers of two"]),
        ({"chunk": 32768}, ["chunk=32768", "16384"]),
        ({"bits": 1}, ["bits=1", "2, 3"]),
        ({"block": 64}, ["'block'", "chunk"]),
    ],
)
def test_fields_out_of_range_are_named(fields, words):
    with pytest.raises(tw.ConfigError) as error:
        tw.codec("topk", **fields)
    assert all(word in str(error.value) for word in [*words, "allowed"])
