"""Stochastic rounding as statistics: without bias, of the variance that the formula has, and other noise for other seeds."""

from __future__ import annotations

import numpy as np
import pytest

import thinwire as tw
from samples import gaussian
from thinwire.kernels import rng

CODECS = [
    tw.codec("int8", rounding="stochastic"),
    tw.codec("int4", rounding="stochastic"),
    tw.codec("int4", rounding="stochastic", scale="bf16", block=128),
    tw.codec("int2", rounding="stochastic"),
]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=[one.spec() for one in CODECS])
N = 4096
DRAWS = 2000


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
