"""The entropy coder: exact for any codes, within a hundredth of their entropy, the same on processors without its shuffles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import thinwire as tw
from thinwire.bench.entropy import entropy_columns
from thinwire.errors import ConfigError
from thinwire.kernels import layout, layout_rans, ops, ops_rans, reference, reference_rans


def streams(codes: np.ndarray, bits: int) -> list[np.ndarray]:
    """What each backend writes; each reads what it wrote, into memory that is not touched elsewhere."""
    n, packed = codes.size, reference.pack(codes[None], bits)[0]
    found = []
    for backend in ops.BACKENDS:
        before = ops.set_backend(backend)
        try:
            out = np.full(layout_rans.stream_capacity(n, bits) + 8, 0xA5, dtype=np.uint8)
            size = ops_rans.rans_encode(packed, n, bits, out[:-8])
            assert (out[-8:] == 0xA5).all()
            stream = out[:size].copy()
            back = np.zeros_like(packed)
            ops_rans.rans_decode(stream, ops_rans.chunk_places(stream, n), n, bits, back)
            np.testing.assert_array_equal(back, packed)
        finally:
            ops.set_backend(before)
        found.append(stream)
    np.testing.assert_array_equal(*found)
    return found


@given(st.data(), st.integers(1, 8))
def test_any_codes(data, bits):
    codes = data.draw(hnp.arrays(np.uint8, st.integers(1, 700), elements=st.integers(0, (1 << bits) - 1)))
    streams(codes, bits)


@given(n=st.integers(1, 3000), bits=st.integers(1, 8), rate=st.floats(0.01, 0.99), shift=st.integers(0, 255))
def test_any_distribution(n, bits, rate, shift):
    """Skewed codes, some of them far from the others."""
    codes = np.random.default_rng(n).geometric(rate, n) * (1 + shift % 3) + shift
    streams((codes % (1 << bits)).astype(np.uint8), bits)


@pytest.mark.parametrize("bits", [1, 4, 7, 8])
@pytest.mark.parametrize("n", [65_535, 65_536, 65_537, 131_072 + 33])
def test_chunks_and_their_ends(bits, n):
    codes = np.minimum(np.random.default_rng(bits).geometric(0.6, n) - 1, (1 << bits) - 1).astype(np.uint8)
    codes[: n // 2] = 0
    streams(codes, bits)


def test_sizes_of_extreme_chunks():
    n = layout_rans.CHUNK
    same = np.full(n, 9, dtype=np.uint8)
    assert streams(same, 8)[0].size == 4 + 2
    even = np.random.default_rng(0).integers(0, 256, n).astype(np.uint8)
    assert streams(even, 8)[0].size == layout_rans.stream_capacity(n, 8)
    rare = np.where(np.arange(n) == 7, np.uint8(255), np.uint8(0))
    assert streams(rare, 8)[0].size < 4 + 1 + 4 + 128 + 16
    few = np.random.default_rng(0).choice([3, 128, 255], n).astype(np.uint8)
    assert reference_rans.write_table(reference_rans.frequencies(few)).size < 16


GOLDEN = (
    "c10000000288788ff118aaa1184c4c4c594c4d42d0f0bbc4ab100149ca1f00f223f6061d5b540077c01f004c131401c80ef6aa9343d80034a62400b7"
    "c7020095e41d0028a8240028131401733ee4057b3bf6002d48ae03a4b5ec004ad01b004214ae03f6165300086e5406631b1801ec680dd5a435d6001e"
    "002500faa50200cf741d002c88f6a13e9bf600a1e819007a91d500fb33bc8c76a43154eed0b49667da2c98f33970cd1653af93ac8c88a1a216ae915b"
    "1c34edc96754b530a3d62cc6ff76f25013"
)


def test_bytes_of_a_coded_chunk():
    """Golden rows are too short to be coded: these codes need no random generator."""
    codes = ((np.arange(700) * 7919) % 1009 // 64 % 11 * ((np.arange(700) * 31) % 7 == 0)).astype(np.uint8)
    assert streams(codes, 4)[0].tobytes().hex() == GOLDEN


@given(hnp.arrays(np.int64, 256, elements=st.integers(0, 10_000)))
def test_frequencies_add_up(counts):
    codes = np.repeat(np.arange(256), counts // 97 + (counts > 9990)).astype(np.uint8)
    if np.unique(codes).size < 2:
        return
    frequency = reference_rans.frequencies(codes)
    assert frequency.sum() == layout_rans.TOTAL
    np.testing.assert_array_equal(frequency > 0, np.bincount(codes, minlength=256) > 0)
    table = reference_rans.write_table(frequency)
    assert table.size <= layout_rans.TABLE_BYTES
    found, size = reference_rans.read_table(table, 8)
    assert size == table.size
    np.testing.assert_array_equal(found, frequency)


@pytest.mark.parametrize(
    "inner", ["int8", "int4", "int3", "int2", "grid;step=0.26", "grid;step=1.08", "grid;step=2.4", "minmax4;block=64"]
)
def test_within_a_hundredth_of_the_entropy(inner):
    codec = tw.codec(f"entropy({inner})")
    x = np.random.default_rng(1).standard_normal((1, 1 << 19), dtype=np.float32)
    found = entropy_columns(codec, x, codec.encode(x))
    slack = 0.015 if inner == "grid;step=2.4" else 0.01
    assert found["code_entropy"] <= found["code_bits"] <= (1 + slack) * found["code_entropy"]


def test_the_tables_follow_the_layers():
    """Layers of other scale and shape in one row, of a per-tensor quantizer, cost no more than each alone."""
    generator = np.random.default_rng(2)
    layers = [generator.standard_normal(1 << 17) * scale for scale in (1, 1e-2, 1e-4)]
    codec = tw.codec("entropy(minmax8)")
    whole = np.concatenate(layers).astype(np.float32)[None]
    assert codec.measured_bits(codec.encode(whole), whole.size) < 0.62 * 8


def test_plans_go_by_what_gaussian_numbers_take():
    for name in ("entropy(int4)", "entropy(int8)", "entropy(grid)", "entropy(grid;step=2.4)", "entropy(hadamard(int3))"):
        codec, n = tw.codec(name), 1 << 18
        x = np.random.default_rng(3).standard_normal((2, n), dtype=np.float32)
        measured = codec.measured_bits(codec.encode(x), n)
        assert codec.expected_bits(n) == pytest.approx(measured, rel=0.03)
        assert measured < codec.bits_per_element(n)
        assert codec.expected_bits(0) == 0.0
        assert codec.expected_bits(3) <= codec.bits_per_element(3)
    fixed = tw.codec("int4")
    wire = fixed.encode(np.zeros((2, 100), dtype=np.float32))
    assert fixed.measured_bits(wire, 100) == fixed.expected_bits(100) == fixed.bits_per_element(100)
    assert fixed.message_bytes(wire[0]) == fixed.wire_bytes(100)


@pytest.mark.parametrize("inner", ["none", "bf16", "fp16", "minmax16", "entropy(int4)", "hadamard(entropy(int4))"])
def test_what_has_no_packed_codes_is_refused(inner):
    with pytest.raises(ConfigError, match="packed codes"):
        tw.codec(f"entropy({inner})")


def test_without_the_shuffles(tmp_path):
    """The plain loops give the bytes of the vector code's definition."""
    program = (
        "import numpy as np, thinwire as tw\n"
        "from thinwire.kernels import ops, simd\n"
        "simd.shuffles = lambda: False\n"
        "from thinwire.kernels import cpu_rans\n"
        "assert not cpu_rans._VECTORS\n"
        "x = np.random.default_rng(0).standard_normal((2, 70_000), dtype=np.float32)\n"
        "for name in ('entropy(int4)', 'entropy(grid)'):\n"
        "    codec = tw.codec(name)\n"
        "    wire = codec.encode(x); back = codec.decode(wire, 70_000)\n"
        "    ops.set_backend('reference')\n"
        "    assert (wire == codec.encode(x)).all()\n"
        "    assert np.array_equal(back, codec.decode(wire, 70_000))\n"
        "    ops.set_backend('numba')\n"
        "print('equal')\n"
    )
    folder = str(Path(layout.__file__).parents[2])
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": folder, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout == "equal\n", done.stderr
