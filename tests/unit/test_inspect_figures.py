"""The figures of ``thinwire inspect`` against closed forms, its rule as a table, and its levels against the formulas."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

import thinwire as tw
from samples import IDS, VARIANTS, awkward, gaussian, nmse
from thinwire.bench.oracle import all_reduced
from thinwire.inspect import layers as L
from thinwire.inspect.levels import in_units, levels
from thinwire.inspect.losses import Loss, loss, rows_of
from thinwire.inspect.statistics import correlation, finite, flat, statistics
from thinwire.inspect.suggestion import MIN_ELEMENTS, TOLERANCE, compressible, default_codecs, error, suggest

N = 1 << 18


def samples_of(name: str) -> np.ndarray:
    generator = np.random.default_rng(7)
    return {
        "gaussian": generator.standard_normal,
        "laplace": lambda n: generator.laplace(size=n),
        "uniform": lambda n: generator.uniform(-1, 1, n),
        "signs": lambda n: generator.choice([-1.0, 1.0], n),
    }[name](N)


@pytest.mark.parametrize(
    ("name", "exact", "bound"),
    [("gaussian", 3, 0.05), ("laplace", 6, 0.3), ("uniform", 1.8, 0.01), ("signs", 1, 1e-3)],
)
def test_kurtosis_of_known_distributions(name, exact, bound):
    assert statistics(flat(samples_of(name))).kurtosis == pytest.approx(exact, abs=bound)


def test_kurtosis_within_blocks_is_unbiased_for_gaussians_and_blind_to_their_scales():
    x = gaussian(1, N)[0]
    # Of 4096 blocks with a standard deviation of about 0.6 each.
    assert statistics(x).block_kurtosis == pytest.approx(3, abs=0.05)
    scales = np.repeat(np.exp(np.random.default_rng(1).standard_normal(N // 64)), 64).astype(np.float32)
    mixed = statistics(x * scales)
    assert mixed.block_kurtosis == pytest.approx(3, abs=0.05)
    assert mixed.kurtosis > 20


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e30])
def test_figures_do_not_depend_on_the_scale(scale):
    x = gaussian(1, 10_000)[0]
    one, other = statistics(x), statistics((x * np.float32(scale)).astype(np.float32))
    assert other.kurtosis == pytest.approx(one.kurtosis, rel=1e-5)
    assert other.block_kurtosis == pytest.approx(one.block_kurtosis, rel=1e-5)
    assert other.absmax == pytest.approx(one.absmax * scale, rel=1e-6)
    assert other.squares == pytest.approx(one.squares * scale**2, rel=1e-5)


def test_zeros_and_what_is_not_finite_are_counted_apart():
    x = np.array([0, -0.0, 1, -3, np.nan, np.inf, -np.inf, 2], dtype=np.float32)
    found = statistics(x)
    assert (found.elements, found.zeros, found.nonfinite, found.absmax, found.squares) == (8, 0.25, 0.375, 3, 14)
    assert found.block_kurtosis is None
    assert finite(x).tolist() == [0, 0, 1, -3, 0, 0, 0, 2]


@pytest.mark.parametrize("x", [[], [2.0], [0.1] * 1000, [0.0] * 64, [np.nan] * 64, [3e38] * 129])
def test_what_does_not_vary_has_no_kurtosis(x):
    found = statistics(np.array(x, dtype=np.float32))
    assert found.kurtosis is None
    assert found.block_kurtosis is None


def test_a_block_with_a_nan_is_left_out_of_the_blocks():
    x = gaussian(1, 128)[0]
    expected = statistics(x[:64]).block_kurtosis
    x[100] = np.nan
    assert statistics(x).block_kurtosis == pytest.approx(expected)


@pytest.mark.parametrize("rho", [0.0, 0.25, 0.9, 1.0])
def test_correlation_by_construction(rho):
    common, own = gaussian(1, N, 1), gaussian(4, N, 2)
    ranks = np.float32(math.sqrt(rho)) * common + np.float32(math.sqrt(1 - rho)) * own
    scaled = [flat(x * factor) for x, factor in zip(ranks, (1, 1e-20, 1e20, 7), strict=True)]
    assert correlation(scaled) == pytest.approx(rho, abs=0.01)


def test_correlation_of_opposites_and_of_nothing():
    x, zero = gaussian(1, 1000)[0], np.zeros(1000, dtype=np.float32)
    assert correlation([x, -x]) == pytest.approx(-1)
    assert correlation([x, zero, x]) == pytest.approx(1)
    assert correlation([x]) is None
    assert correlation([x, zero]) is None


@pytest.mark.parametrize("made", VARIANTS, ids=IDS)
def test_errors_are_those_of_the_librarys_own_rows(made):
    """One encoding row by row, and the mean as the oracle of the collectives replays it."""
    n, ranks = 3001, 3
    tensors = list(gaussian(ranks, n, 5))
    found = loss(tensors, made)
    back = [np.empty_like(x) for x in tensors]
    for x, out in zip(tensors, back, strict=True):
        for _, span in rows_of(n, 1 if made.sums == "all_gather" else ranks):
            out[span] = np.asarray(made.decode(made.encode(x[None, span]), span.stop - span.start))[0]
    # One seed for everything here and in the oracle is right where there is no noise; else the figures agree as statistics do.
    plain = np.array_equal(made.encode(gaussian(1, n), seed=0), made.encode(gaussian(1, n), seed=1))
    assert found.nmse == pytest.approx(nmse(np.stack(tensors), np.stack(back)), rel=1e-6 if plain else 0.05, abs=1e-30)
    mean = np.stack(tensors).astype(np.float64).mean(axis=0)
    if plain:
        expected = nmse(mean, all_reduced(tensors, made, "mean"))
        assert found.mean_nmse == pytest.approx(expected, rel=1e-4, abs=1e-14)
    assert found.bits_per_element == made.expected_bits(1 << 19)
    assert tw.codec(found.codec) == made


@pytest.mark.parametrize("made", VARIANTS, ids=IDS)
def test_awkward_numbers_give_figures_and_no_warning(made):
    found = loss([finite(x) for x in awkward(2, 1500)], made)
    assert found.nmse >= 0
    assert error(found) >= 0


def test_nothing_is_lost_of_nothing():
    zeros = [np.zeros(1000, dtype=np.float32)] * 2
    assert loss(zeros, tw.codec("int4")).nmse == 0
    assert loss(zeros, tw.codec("int4")).mean_nmse == 0
    assert loss(zeros[:1], tw.codec("int4")).mean_nmse is None


def made_up(codec: str, bits: float, nmse: float, mean_nmse: float | None = None) -> Loss:
    return Loss(codec=codec, bits_per_element=bits, nmse=nmse, mean_nmse=mean_nmse)


A, B, C = made_up("a", 8.1, 1e-4, 2e-4), made_up("b", 4.2, 0.008, 0.015), made_up("c", 2.3, 0.12, 0.2)
TABLE = [
    ("fewest bits within", [A, B, C], 0.02, "b"),
    ("order does not matter", [C, B, A], 0.02, "b"),
    ("the limit itself is within", [A, B], 0.015, "b"),
    ("the mean counts", [A, B], 0.01, "a"),
    ("one encoding counts too", [A, made_up("b", 4.2, 0.03, 0.01)], 0.02, "a"),
    ("a single rank's counts twice", [made_up("a", 8.1, 1e-4), made_up("b", 4.2, 0.011)], 0.02, "a"),
    ("of equal bits the better", [B, made_up("d", 4.2, 0.007, 0.014)], 0.02, "d"),
    ("anything goes", [A, B, C], 1.0, "c"),
    ("none is good enough", [A, B, C], 1e-6, None),
    ("infinite errors never are", [made_up("e", 1, math.inf, math.inf), A], 1.0, "a"),
    ("no codec at all", [], 1.0, None),
]


@pytest.mark.parametrize(("losses", "tolerance", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_rule(losses, tolerance, expected):
    found = suggest(losses, tolerance)
    assert (found and found.codec) == expected


@pytest.mark.parametrize(
    ("shape", "expected"), [((16, 16), True), ((255,), False), ((5000,), False), ((15, 17), False), ((), False), ((1, 256), True)]
)
def test_small_and_one_dimensional_layers_go_uncompressed(shape, expected):
    x = gaussian(1, math.prod(shape)).reshape(shape)
    collection = L.Collection([tw.codec("int8")])
    collection.add("x", [x])
    (layer,) = collection.layers()
    assert compressible(shape, x.size) is expected
    assert L.choose(layer, 1.0).codec == ("int8" if expected else "none")


def test_the_threshold_is_that_of_compress():
    assert inspect.signature(tw.compress).parameters["min_elements"].default == MIN_ELEMENTS


def test_the_default_codecs_are_the_registrys_without_one_scale_a_row():
    assert {"bf16", "int8", "int4", "int2"} <= set(default_codecs())
    assert not {"none", "minmax8", "minmax16", "topk"} & set(default_codecs())


def test_gaussian_gradients_of_four_ranks_take_4_bits_and_correlated_ones_no_fewer():
    collection = L.Collection([tw.codec(name) for name in default_codecs()])
    collection.add("independent", list(gaussian(4, 4 * 16_384).reshape(4, 256, 256)))
    collection.add("the same", [gaussian(1, 65_536).reshape(256, 256)] * 4)
    independent, same = (L.choose(layer, TOLERANCE) for layer in collection.layers())
    assert (independent.codec, same.codec) == ("gauss4", "gauss4")  # 4.06 bits, where int4 has 4.27
    assert independent.mean_nmse == pytest.approx(1.75 * independent.nmse, rel=0.05)  # D (N-1)/N + D
    assert collection.layers()[1].correlation == pytest.approx(1)


def test_layers_are_means_over_steps_and_ranks():
    collection = L.Collection([tw.codec("int8")])
    x = gaussian(2, 1024).reshape(2, 32, 32)
    for step in range(3):
        collection.add("w", [x[0] * np.float32(10**step), x[1]])
    collection.add("empty", [np.empty((0, 3), dtype=np.float32)])
    (layer,) = collection.layers()
    assert (layer.name, layer.shape, layer.elements, layer.ranks, layer.steps) == ("w", (32, 32), 1024, 2, 3)
    assert layer.absmax == pytest.approx(100 * np.abs(x[0]).max())
    assert layer.rms == pytest.approx(math.sqrt((np.square(x[0]).mean() * 10101 + 3 * np.square(x[1]).mean()) / 6), rel=1e-5)


def test_the_total_weighs_bits_by_elements_and_errors_by_squares():
    collection = L.Collection([tw.codec("int4")])
    large, small = gaussian(2, 4096).reshape(2, 64, 64), gaussian(2, 64, 1)
    collection.add("w", list(large))
    collection.add("b", list(small))
    rows, whole = L.rows(collection.layers(), TOLERANCE), L.total(collection.layers(), TOLERANCE)
    assert [row["codec"] for row in rows] == ["int4", "none"]
    assert whole["elements"] == 4160
    assert whole["bits_per_element"] == pytest.approx((4096 * rows[0]["bits_per_element"] + 64 * 32) / 4160)
    share = np.square(large).sum() / (np.square(large).sum() + np.square(small).sum())
    assert whole["nmse"] == pytest.approx(rows[0]["nmse"] * share, rel=1e-5)
    assert set(rows[0]) == set(whole)


X = gaussian(1, 1 << 16)[0]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_levels_of_int_are_those_of_its_formula(bits):
    found = levels(tw.codec(f"int{bits}"), X)
    assert found.unit == "extreme of the block"
    # In units of the extreme: -2^(b-1) ... 2^(b-1) - 1 by -2^(b-1). The scale's own rounding moves them by up to 4.5 %.
    exact = -np.arange(2 ** (bits - 1) - 1, -(2 ** (bits - 1)) - 1, -1) / 2 ** (bits - 1)
    assert len(found.positions) in (len(exact), len(exact) - 1)  # the far end may be out of the block's reach
    np.testing.assert_allclose(found.positions, exact[-len(found.positions) :], atol=0.05)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_levels_of_minmax_are_even(bits):
    found = levels(tw.codec(f"minmax{bits}", block=64), X)
    assert found.unit == "half range of the block"
    np.testing.assert_allclose(found.positions, np.linspace(-1, 1, 2**bits), atol=1e-3)


@pytest.mark.parametrize("name", ["none", "bf16", "fp16", "minmax16"])
def test_floats_have_no_levels(name):
    assert not len(levels(tw.codec(name), X).positions)


@pytest.mark.parametrize("made", VARIANTS, ids=IDS)
@pytest.mark.parametrize("x", [[], [1.0], [1.0, 2.0], [0.0] * 5000, [3e38, -3e38, 1e-45] * 700], ids=len)
def test_levels_of_any_codec_and_any_tensor(made, x):
    values = np.array(x, dtype=np.float32)
    found = levels(made, values)
    assert np.isfinite(found.positions).all()
    assert np.isfinite(in_units(values, found.block, found.unit)).all()
