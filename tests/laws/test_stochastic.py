"""Stochastic rounding as statistics: without bias, of the variance that the formula has, and other noise for other seeds."""

from __future__ import annotations

import numpy as np
import pytest

import thinwire as tw
from samples import gaussian
from thinwire.codec.base import Wrapper
from thinwire.kernels import rng

CODECS = [
    tw.codec("int8", rounding="stochastic"),
    tw.codec("int4", rounding="stochastic"),
    tw.codec("int4", rounding="stochastic", scale="bf16", block=128),
    tw.codec("int2", rounding="stochastic"),
]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=[one.spec() for one in CODECS])
UNIFORM = [
    tw.codec("minmax8", rounding="stochastic"),
    tw.codec("minmax4", rounding="stochastic", block=64),
    tw.codec("minmax2", rounding="stochastic", block=8),
    tw.codec("minmax16", rounding="stochastic", block=1024),
    tw.codec("affine8", rounding="stochastic"),
    tw.codec("affine4", rounding="stochastic", block=64),
    tw.codec("affine2", rounding="stochastic", block=8),
    tw.codec("grid", rounding="stochastic"),
    tw.codec("grid;block=32;step=2;rounding=stochastic"),
    tw.codec("entropy(grid;rounding=stochastic)"),
    tw.codec("entropy(minmax4;block=64;rounding=stochastic)"),
]
every_uniform = pytest.mark.parametrize("codec", UNIFORM, ids=[one.spec() for one in UNIFORM])
N = 4096
DRAWS = 2000
FEW = 600
"""Draws of what is slower, or looked at as a whole."""


@pytest.fixture(scope="module")
def draws():
    """What comes back of the same numbers under many seeds."""
    x = gaussian(1, N)
    return {one: np.stack([one.decode(one.encode(x, seed=seed), N)[0] for seed in range(DRAWS)]) for one in CODECS}, x[0]


@every_codec
def test_the_mean_over_seeds_is_the_number(codec, draws):
    values, x = draws[0][codec].astype(np.float64), draws[1]
    step = np.repeat(np.ptp(values, axis=0).reshape(-1, codec.block).max(axis=1), codec.block)  # the block's scale
    bound = step / 2 / np.sqrt(DRAWS)  # the largest standard error that two neighbours a step apart can have
    assert (np.abs(values.mean(axis=0) - x) <= 5.5 * bound + 1e-7).all()
    likely = np.abs((values.mean(axis=0) - values.min(axis=0)) / step - 0.5) < 0.45
    off = ((values.mean(axis=0) - x) / (values.std(axis=0) / np.sqrt(DRAWS) + 1e-30))[likely]
    assert off.size > 1000
    assert abs(off.mean()) < 5 / np.sqrt(off.size)
    assert 0.9 < off.std() < 1.1


@every_codec
def test_only_the_two_neighbours_are_drawn_and_the_farther_one_less_often(codec, draws):
    values, x = draws[0][codec], draws[1]
    low, high = values.min(axis=0), values.max(axis=0)
    assert ((values == low) | (values == high)).all()
    between = high > low
    share = (values == high).mean(axis=0)[between]
    expected = (x - low)[between] / (high - low)[between]
    assert np.abs(share - expected).max() < 5.5 * np.sqrt(0.25 / DRAWS)


def drawn(codec, x, seeds=FEW):
    """What comes back of one row under ``seeds`` seeds: (seeds, n) fp64."""
    return np.concatenate([codec.decode(codec.encode(x, seed=seed), x.shape[1]) for seed in range(seeds)]).astype(np.float64)


@every_uniform
@pytest.mark.parametrize("shift", [0.0, 0.37, 5.0], ids=["both signs", "uneven", "one sign"])
def test_uniform_codes_draw_a_neighbour_by_its_distance(codec, shift):
    """Mean x and variance f (1 - f) step^2, f being where x lies between its neighbours: the mean error in standard errors."""
    x = gaussian(3, N)[:1] + np.float32(shift)
    values, exact = drawn(codec, x), x[0].astype(np.float64)
    low, high = values.min(axis=0), values.max(axis=0)
    assert ((values == low) | (values == high)).all()
    step = np.maximum(high - low, 1e-30)
    f = np.clip((exact - low) / step, 0, 1)
    sure = (high > low) & (f > 0.03) & (f < 0.97)  # elsewhere one of the neighbours may not have been drawn, or rarely
    assert sure.sum() > 0.6 * N
    spread = (step * np.sqrt(f * (1 - f)))[sure]
    errors = (values.mean(axis=0) - exact)[sure] / (spread / np.sqrt(FEW))
    assert np.abs(errors).max() < 5.5
    assert abs(errors.mean()) < 5 / np.sqrt(errors.size)
    assert 0.9 < errors.std() < 1.1
    assert abs((values.var(axis=0)[sure] / spread**2).mean() - 1) < 0.02


@every_uniform
def test_no_end_of_a_block_has_a_bias(codec):
    """The smallest and largest of many blocks: what a clipped code would pull inwards, always to the same side."""
    x = gaussian(4, N)[:1]
    values = drawn(codec, x, 200)
    block = getattr(codec.inner if isinstance(codec, Wrapper) else codec, "block", None) or N
    inwards = (values.mean(axis=0) - x[0]).reshape(-1, block) * np.sign(x[0]).reshape(-1, block)
    spread = values.std(axis=0).reshape(-1, block)
    places = np.abs(x[0]).reshape(-1, block).argmax(axis=1)[:, None]
    error, bound = (np.take_along_axis(a, places, axis=1) for a in (inwards, spread))
    assert abs(error.sum()) <= 5 * np.sqrt(np.square(bound).sum() / 200) + 1e-6 * np.abs(x).max() * error.size


@every_uniform
def test_errors_of_rows_seeds_and_neighbours_are_not_correlated(codec):
    x = np.repeat(gaussian(5, N)[:1], 2, axis=0)
    error = [codec.decode(codec.encode(x, seed=seed), N) - x for seed in (1, 2)]
    for a, b in ((error[0][0], error[0][1]), (error[0][0], error[1][0]), (error[0][0, :-1], error[0][0, 1:])):
        assert a.any()
        assert b.any()
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(a.size)


@pytest.mark.parametrize("inner", ["minmax4;block=64", "affine4;block=64", "grid", "int4", "entropy(grid)"])
def test_a_rotation_hands_the_seed_on(inner):
    """In the rotated basis every number is drawn without bias, so it is after rotating back."""
    plain = inner.replace(")", ";rounding=stochastic)") if inner.endswith(")") else f"{inner};rounding=stochastic"
    codec = tw.codec(f"hadamard({plain})")
    x = gaussian(6, N)[:1]
    values = drawn(codec, x, 400)
    assert (values[0] != values[1]).any()
    deviation = values.std(axis=0)
    errors = (values.mean(axis=0) - x[0]) / (deviation / np.sqrt(400))
    assert np.abs(errors).max() < 5.5
    assert 0.9 < errors.std() < 1.1


@pytest.mark.parametrize("name", ["minmax4;block=64", "affine8", "grid"])
def test_what_the_wire_holds_is_read_without_the_field(name):
    x, codec = gaussian(2, 3000), tw.codec(f"{name};rounding=stochastic")
    wire = codec.encode(x, seed=3)
    np.testing.assert_array_equal(codec.decode(wire, 3000), tw.codec(name).decode(wire, 3000))


@pytest.mark.parametrize("wrapped", ["entropy({})", "hadamard({})"])
@pytest.mark.parametrize("name", ["minmax4;block=64;rounding=stochastic", "grid;rounding=stochastic"])
def test_wrappers_are_as_random_as_what_they_wrap(wrapped, name):
    codec, x = tw.codec(wrapped.format(name)), gaussian(2, 3000)
    one, again, other = (codec.encode(x, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    same = np.repeat(x[:1], 2, axis=0)
    assert (np.diff(codec.decode(codec.encode(same), 3000), axis=0) != 0).any()


def test_numbers_on_the_grid_stay_where_they_are():
    levels = np.random.default_rng(1).integers(-1, 2, (1, 8192)).astype(np.float32)
    codec = tw.codec("int2", rounding="stochastic")
    for seed in range(5):
        np.testing.assert_array_equal(codec.decode(codec.encode(levels * 0.375, seed=seed), 8192), levels * 0.375)


def test_seeds_rows_and_elements_have_noise_of_their_own():
    numbers = np.arange(1 << 16, dtype=np.uint32)
    one, other, row = (rng.dither(numbers, *rng.keys(*key)) for key in ((1, 0), (2, 0), (1, 1)))
    for a, b in ((one, other), (one, row), (one[:-1], one[1:]), (one[:-32], one[32:]), (one, other[::-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(a.size)
    assert np.abs(one).max() < 0.5
    assert abs(one.mean()) < 5 * np.sqrt(1 / 12 / one.size)
    counts = np.histogram(one, bins=64, range=(-0.5, 0.5))[0]
    # Chi square of 63 degrees: 120 has a probability of 2e-5.
    assert ((counts - one.size / 64) ** 2 / (one.size / 64)).sum() < 120


def test_it_averages_over_ranks_that_hold_the_same_numbers_where_rounding_to_nearest_does_not():
    x = gaussian(1, 1 << 16)
    near, drawn = tw.codec("int4"), tw.codec("int4", rounding="stochastic")
    rounded = near.decode(near.encode(x), x.size)
    mean = np.mean([drawn.decode(drawn.encode(x, seed=rng.mixed(7, rank)), x.size) for rank in range(16)], axis=0)
    assert np.square(mean - x).sum() < 0.3 * np.square(rounded - x).sum()
