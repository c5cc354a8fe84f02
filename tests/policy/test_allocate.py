"""Bits under a budget: what the choice must be, whatever the errors are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thinwire as tw
from thinwire.errors import ConfigError
from thinwire.policy.allocate import allocate, total
from thinwire.policy.auto import CANDIDATES, Auto, parse

LAYERS = {"embedding": 40_000, "head": 5_000, "norm": 300}


@st.composite
def problems(draw, layers: int = 5, options: int = 4, largest: int = 1000):
    """Errors and bytes of a few layers, in no order, with ties and zeros; and two budgets that the cheapest options fit into."""
    shape = (draw(st.integers(1, layers)), draw(st.integers(1, options)))
    count = shape[0] * shape[1]
    errors = draw(st.lists(st.floats(0, 1e6, width=32), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(1, largest), min_size=count, max_size=count))
    table = np.array(sizes, dtype=np.int64).reshape(shape)
    least, most = int(table.min(1).sum()), int(table.max(1).sum())
    budgets = sorted(draw(st.lists(st.integers(least, most + 5), min_size=2, max_size=2)))
    return np.array(errors, dtype=np.float64).reshape(shape), table, budgets


@given(problems())
def test_never_above_the_budget_and_no_worse_with_a_larger_one(problem):
    errors, sizes, budgets = problem
    found = [allocate(errors, sizes, budget) for budget in budgets]
    for choice, budget in zip(found, budgets, strict=True):
        assert total(sizes, choice) <= budget
    less, more = (total(errors, choice) for choice in found)
    assert more <= less * (1 + 1e-12)


@given(problems(largest=2000))
def test_the_optimum_of_small_cases(problem):
    """All bytes fit into the grid of the dynamic answer, so it is exact."""
    errors, sizes, (budget, _) = problem
    fitting = [c for c in itertools.product(range(sizes.shape[1]), repeat=len(sizes)) if total(sizes, c) <= budget]
    best = min(total(errors, choice) for choice in fitting)
    assert total(errors, allocate(errors, sizes, budget)) <= best * (1 + 1e-12)


@given(problems(layers=40, options=6, largest=10_000_000))
def test_no_worse_than_one_option_for_all_and_than_the_greedy_gap(problem):
    """The greedy answer is above the linear relaxation, and so above the optimum, by at most the gain of one step."""
    errors, sizes, (budget, _) = problem
    got = total(errors, allocate(errors, sizes, budget))
    for option in range(sizes.shape[1]):
        if sizes[:, option].sum() <= budget:
            assert got <= errors[:, option].sum() * (1 + 1e-12)
    steepest = float((errors.max(1) - errors.min(1)).max())
    assert got <= relaxed(errors, sizes, budget) + steepest * (1 + 1e-9) + 1e-9 * errors.sum()


def relaxed(errors, sizes, budget: int) -> float:
    """A lower bound: the largest value of the Lagrangian over many multipliers (any of them is a bound)."""
    scale = errors.sum() / sizes.sum()
    prices = scale * np.geomspace(1e-6, 1e6, 200)
    return max(float((errors + price * sizes).min(1).sum() - price * budget) for price in prices)


def test_many_layers_and_few():
    """Real numbers of layers: within some percent of the bound; a layer that is most of the model does not end the search."""
    generator = np.random.default_rng(0)
    for layers in (3, 30, 1000):
        sizes = (generator.integers(1_000, 1_000_000, layers)[:, None] * np.array([2.2, 3.2, 4.2, 8.1]) / 8).astype(np.int64)
        errors = generator.lognormal(0, 3, layers)[:, None] * np.array([0.13, 0.03, 0.0075, 4e-5])
        for bits in (2.5, 3.7, 6):
            budget = int(sizes[:, 0].sum() * bits / 2.2)
            got = total(errors, allocate(errors, sizes, budget))
            assert got <= relaxed(errors, sizes, budget) * (1.05 if layers > 3 else 3)


def test_the_warm_up_is_the_largest_candidate_within_the_budget():
    for bits, name in ((2.5, "int2"), (4, "int3"), (4.3, "int4"), (100, "int8")):
        made = Auto(bits=bits, candidates=("int8", "int4", "int3", "int2"))
        assert {one.name for one in made.init(LAYERS).values()} == {name}
    with pytest.raises(ConfigError, match=r"auto:1.5 is out of reach: int2.* 2.2"):
        Auto(bits=1.5, candidates=("int8", "int2")).init(LAYERS)


def test_bits_go_where_the_error_is():
    made = Auto(bits=4)
    alike = {name: [n * 4.0 ** -codec_bits(one) for one in made.candidates] for name, n in LAYERS.items()}
    decision = made.update(LAYERS, {**alike, "head": [1e4 * e for e in alike["head"]]})
    assert decision["head"].bits > decision["embedding"].bits
    bytes_taken = sum(decision[name].wire_bytes(n) for name, n in LAYERS.items())
    assert bytes_taken <= made.budget(LAYERS) == sum(LAYERS.values()) * 4 // 8


def codec_bits(codec) -> int:
    return int(codec.name[-1])


def test_a_layer_without_gradient_is_taken_for_an_average_one():
    made = Auto(bits=3.5, candidates=("int4", "int3", "int2"))
    layers = {"a": 10_000, "b": 10_000}
    assert set(made.update(layers, {"a": [0.0] * 3, "b": [1.0, 4.0, 16.0]}).values()) <= set(made.candidates)
    both = made.update(layers, {"a": [0.0] * 3, "b": [1.0, 4.0, 16.0]})
    assert both == made.update(layers, {"a": [1.0, 4.0, 16.0], "b": [1.0, 4.0, 16.0]})
    assert made.update(layers, {"a": [0.0] * 3, "b": [0.0] * 3}) is not None


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_decides_nothing(wrong):
    made = Auto(bits=4)
    assert made.update({"a": 1000}, {"a": [wrong] * len(made.candidates)}) is None


def test_specs():
    made = Auto(bits=3.5, every=7, candidates=("int8;block=64", "hadamard(int4;block=64)", "int2"))
    assert made.name == "auto:3.5"
    assert parse(made.spec()) == made
    assert parse("auto:4") == Auto(bits=4) == parse("auto:4.0")
    assert Auto(bits=4).candidates == CANDIDATES
    assert tw.codec("int4") in CANDIDATES


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: parse("auto:"), ["'auto:'", "auto:BITS"]),
        (lambda: parse("auto:four"), ["'auto:four'"]),
        (lambda: parse("auto:4;each=3"), ["each=3", ";every="]),
        (lambda: parse("auto:4;every=3;every=4"), ["every=3"]),
        (lambda: parse("auto:4;every=0"), ["every=0", "1 or more"]),
        (lambda: parse("auto:nan"), ["nan", "above 0"]),
        (lambda: parse("auto:4;candidates=int9"), ["'int9'"]),
        (lambda: parse("auto:4;candidates=int4+entropy(int4)"), ["entropy(int4)", "vary in size"]),
        (lambda: parse("auto:4;candidates=int4+topk"), ["topk", "go to all ranks"]),
        (lambda: parse("auto:4;candidates=none+int4"), ["none", "compress"]),
        (lambda: Auto(bits=True), ["True"]),
        (lambda: Auto(bits="4"), ["'4'"]),
        (lambda: Auto(bits=4, candidates=()), ["[]", "one or more"]),
        (lambda: Auto(bits=4, candidates=("int4", "int4;block=32")), ["each once"]),
    ],
)
def test_mistakes(act, words):
    with pytest.raises(ConfigError) as caught:
        act()
    assert all(word in str(caught.value) for word in words), caught.value
