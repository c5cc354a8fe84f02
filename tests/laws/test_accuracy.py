"""How well each format represents numbers: the targets of docs/numerics.md, and the textbook's bound."""

from __future__ import annotations

import numpy as np
import pytest

import thinwire as tw
from samples import nmse

N = 1 << 22
GAUSSIAN_TARGETS = {
    "int8": 4.3e-5,
    "int7": 1.75e-4,
    "int6": 5.9e-4,
    "int5": 2.4e-3,
    "int4": 0.0076,
    "int3": 0.032,
    "int2": 0.14,
    "int4;search=true": 0.00695,
    "int3;search=true": 0.0272,
    "int2;search=true": 0.1125,
    "int2;search=true;block=64": 0.127,
    "int4;rounding=stochastic": 0.0215,
    "int8;rounding=stochastic": 8.6e-5,
}


@pytest.fixture(scope="module", params=[1, 2])
def seed(request):
    return request.param


@pytest.mark.parametrize("name", GAUSSIAN_TARGETS)
def test_gaussian(name, seed):
    x = np.random.default_rng(seed).standard_normal((1, N), dtype=np.float32)
    codec = tw.codec(name)
    assert nmse(x, codec.decode(codec.encode(x), N)) <= GAUSSIAN_TARGETS[name]


def test_student_t(seed):
    x = np.random.default_rng(seed).standard_t(3, (1, N)).astype(np.float32)
    codec = tw.codec("int8")
    assert nmse(x, codec.decode(codec.encode(x), N)) <= 2e-4


@pytest.mark.parametrize(("name", "bits"), [("int8", 8.2), ("int4", 4.3), ("int3", 3.3), ("int2", 2.3)])
def test_bits(name, bits):
    assert tw.codec(name).bits_per_element(100_000) <= bits


@pytest.mark.parametrize(("step", "bits", "limit"), [(0.259, 4, 0.0056), (1.08, 2, 0.0901), (2.42, 1, 0.349)])
def test_uniform_steps_reach_the_entropy_coded_limit(step, bits, limit, seed):
    """Error of the entropy-coded uniform quantizer at 4, 2 and 1 bits, with scales, tables and headers in 0.05 bit more."""
    codec = tw.codec(f"entropy(grid;step={step})")
    x = np.random.default_rng(seed).standard_normal((1, N), dtype=np.float32)
    wire = codec.encode(x)
    assert codec.measured_bits(wire, N) <= bits + 0.05
    assert nmse(x, codec.decode(wire, N)) <= limit


@pytest.mark.parametrize("draw", ["laplace", "student"])
def test_heavy_tails_take_fewer_bits_at_no_more_error(draw, seed):
    generator = np.random.default_rng(seed)
    x = generator.laplace(size=(1, N // 4)) if draw == "laplace" else generator.standard_t(3, (1, N // 4))
    x = x.astype(np.float32)
    codec = tw.codec("entropy(grid;step=1.08)")
    wire = codec.encode(x)
    assert codec.measured_bits(wire, N // 4) <= 1.96
    assert nmse(x, codec.decode(wire, N // 4)) <= 0.0901


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8, 16])
@pytest.mark.parametrize("block", [None, 64, 4096, 1 << 17])
def test_affine_is_within_half_a_step(bits, block):
    generator = np.random.default_rng(bits)
    x = (generator.standard_normal((2, 100_000)) * 3 + 5).astype(np.float32)
    codec = tw.codec(f"minmax{bits}", block=block)
    decoded = codec.decode(codec.encode(x), x.shape[1])
    width = block or x.shape[1]
    for start in range(0, x.shape[1], width):
        part, back = x[:, start : start + width].astype(np.float64), decoded[:, start : start + width]
        low, high = part.min(axis=1, keepdims=True), part.max(axis=1, keepdims=True)
        step = (high - low) / (2**bits - 1)
        # x' is rounded to fp32 once: half a unit in its last place is all that may be added to the bound.
        assert (np.abs(part - back) <= step / 2 + np.spacing(np.abs(back)) / 2).all()
        np.testing.assert_array_equal(back.min(axis=1), low[:, 0])
        np.testing.assert_array_equal(back.max(axis=1), high[:, 0])


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_affine_codes_are_the_textbook_s(bits):
    x = np.random.default_rng(3).uniform(-1, 1, (1, 5000)).astype(np.float32)
    codec = tw.codec(f"minmax{bits}")
    exact = x.astype(np.float64)
    step = (exact.max() - exact.min()) / (2**bits - 1)
    expected = (np.round((exact - exact.min()) / step) * step + exact.min()).astype(np.float32)
    np.testing.assert_array_equal(codec.decode(codec.encode(x), 5000), expected)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.25, 0.1, 1e-30, -1e30, 3.4028235e38])
@pytest.mark.parametrize("block", [None, 32])
def test_constant_blocks_are_exact(value, block):
    x = np.full((2, 100), value, dtype=np.float32)
    for bits in (2, 4, 8, 16):
        codec = tw.codec(f"minmax{bits}", block=block)
        np.testing.assert_array_equal(codec.decode(codec.encode(x), 100), x)


def test_the_extreme_of_a_block_uses_the_code_without_a_positive_twin():
    for bits in range(2, 9):
        x = np.linspace(-0.5, 1.0, 32, dtype=np.float32)[None]
        codec = tw.codec(f"int{bits}", block=32, scale="bf16")
        for sign in (1, -1):
            decoded = codec.decode(codec.encode(sign * x), 32)
            assert decoded[0, -1] == sign * 1.0
            assert len(np.unique(decoded)) <= 2**bits
