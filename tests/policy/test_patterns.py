"""Which codec each parameter gets by its name, and what is a mistake."""

from __future__ import annotations

import pytest
from torch import nn

import thinwire as tw
from thinwire.collective.legs import Legs
from thinwire.errors import ConfigError
from thinwire.policy.choice import from_spec, resolve
from thinwire.training.assignment import Assignment, assign, parts_of, tied_names

INT2, INT4, INT8 = (tw.codec(name) for name in ("int2", "int4", "int8"))
PAIR = Legs(reduce=INT2, gather=INT4)


class Net(nn.Module):
    """body.0.weight (40, 30), body.0.bias, norm.weight (40), table.weight (50, 40), head.weight (8, 40) tied to head_too."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(30, 40), nn.ReLU())
        self.norm = nn.LayerNorm(40)
        self.table = nn.Embedding(50, 40)
        self.head = self.head_too = nn.Linear(40, 8, bias=False)


def assigned(choice, min_elements: int = 256, sparse=(), frozen=()) -> dict[str, object]:
    net = Net()
    for name, parameter in net.named_parameters():
        parameter.requires_grad = name not in frozen
    every = dict(net.named_parameters())
    ids = {id(every[name]) for name in sparse}
    return dict(assign(resolve(choice), every, min_elements, ids, tied_names(net)).codecs)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", {}),
        ("int4", {"body.0.weight": INT4, "table.weight": INT4, "head.weight": INT4}),
        (("int2", "int4"), {"body.0.weight": PAIR, "table.weight": PAIR, "head.weight": PAIR}),
        ({"*": "int4"}, {"body.0.weight": INT4, "table.weight": INT4, "head.weight": INT4}),
        ({"*": "none"}, {}),
        # The first pattern that matches wins, and stars cross dots.
        ({"head*": "int8", "*": "int4"}, {"body.0.weight": INT4, "table.weight": INT4, "head.weight": INT8}),
        ({"b*t": "int8", "t*": ("int2", "int4"), "*": "none"}, {"body.0.weight": INT8, "table.weight": PAIR}),
        ({"*.bias": "none", "[bt]*": INT8, "????.weight": "none", "*": "int2"}, {"body.0.weight": INT8, "table.weight": INT8}),
        # Small ones and those of one dimension stay out of a pattern with a wildcard, and a full name is taken at its word.
        ({"norm*": "none", "body.*": "int8", "*": "none"}, {"body.0.weight": INT8}),
        ({"norm.weight": "int8", "*": "none"}, {"norm.weight": INT8}),
        ({"body.0.bias": "int2", "*": "int4"},
         {"body.0.bias": INT2, "body.0.weight": INT4, "table.weight": INT4, "head.weight": INT4}),
    ],
)  # fmt: skip
def test_the_first_pattern_that_matches_decides(choice, expected):
    assert assigned(choice) == expected
    assert from_spec(resolve(choice).spec()) == resolve(choice)


def test_min_elements_sparse_and_frozen_parameters():
    assert set(assigned({"*": "int4"}, min_elements=1000)) == {"body.0.weight", "table.weight"}
    by_name = {"head.weight": "int8", "*": "int4"}
    assert set(assigned(by_name, min_elements=1000)) == {"body.0.weight", "table.weight", "head.weight"}
    assert set(assigned({"*": "int4"}, sparse=["table.weight"])) == {"body.0.weight", "head.weight"}
    # A frozen parameter has no gradient, so it needs no pattern.
    every = ("body.0.weight", "body.0.bias", "norm.weight", "norm.bias", "table.weight")
    assert set(assigned({"head.*": "int4"}, frozen=every)) == {"head.weight"}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"body.*": "int4"}, ["norm.weight", "'body.*'", "'*'"]),
        ({"heads.*": "int8", "*": "int4"}, ["'heads.*'", "matches no parameter", "head.weight"]),
        ({"*": "int4", "head.*": "int8"}, ["'head.*'", "never reached", "'*' comes first"]),
        ({"head_too.weight": "int8", "*": "int4"}, ["head_too.weight", "tied", "head.weight"]),
        ({"body.*": "none", "[nth]*": "none", "b*": "int4"}, ["'b*'", "never reached"]),
        ({"*.weight": "none", "*": "int4"}, ["'*'", "nothing", "2 parameters"]),
        ({"*.bias": "int8", "*": "int4"}, ["'*.bias'", "nothing", "2 parameters", "full names"]),
        ({}, ["no pattern"]),
        ({"*": "int9"}, ["'*'", "'int9'"]),
        ({"*": "auto:4"}, ["'*'", "auto:4"]),
        ({"*": ("int4", "int4", "int4")}, ["'*'", "3 legs"]),
        ({"a;b": "int4"}, ["'a;b'", "; = |"]),
        ({3: "int4"}, ["3"]),
        ({"": "int4"}, ["''"]),
        ("*=int4|head.*", ["'head.*'", "pattern=codec"]),
        ("*=int4|*=int8", ["'*'", "twice"]),
        (("int4",), ["1 legs", "two"]),
        (("int4", "int9"), ["'int9'"]),
        ("int4/int8/int2", ["3 legs"]),
    ],
)
def test_mistakes(choice, words):
    with pytest.raises(ConfigError) as caught:
        assigned(choice)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_sparse_parameter_is_no_match_for_a_codec():
    with pytest.raises(ConfigError, match=r"'table.weight' would compress nothing.*sparse"):
        assigned({"table.weight": "int8", "*": "int4"}, sparse=["table.weight"])


def test_legs():
    assert resolve(("int4", "int4")) == INT4
    assert resolve("int2/int4") == resolve(("int2", INT4)) == PAIR
    assert PAIR.name == "int2/int4"
    assert PAIR.bits_per_element(1 << 20) == (INT2.bits_per_element(1 << 20) + INT4.bits_per_element(1 << 20)) / 2
    with pytest.raises(ConfigError, match="gather='int4'"):
        Legs(reduce=INT2, gather="int4")


def spans(codecs: dict[str, object], sizes: dict[str, int], alike: bool = False) -> list[tuple[str, list[tuple[int, int]], int]]:
    found = parts_of(list(sizes), list(sizes.values()), Assignment(codecs=codecs, alike=alike))
    return [(part.codec.name, [(span.start, span.stop) for span in part.spans], part.elements) for part in found]


@pytest.mark.parametrize(
    ("codecs", "sizes", "expected"),
    [
        ({}, {"a": 5}, []),
        ({"a": INT4}, {"a": 500, "x": 5}, [("int4", [(0, 500)], 500)]),
        # Neighbours are one run, and a few zeros in place of small ones are less trouble than a copy.
        ({"a": INT4, "b": INT4}, {"x": 9, "a": 500, "b": 300}, [("int4", [(9, 809)], 800)]),
        ({"a": INT4, "b": INT4}, {"a": 500, "x": 20, "b": 300, "y": 9}, [("int4", [(0, 820)], 800)]),
        # Many are not, and another codec's parameters cannot lie within.
        ({"a": INT4, "b": INT4}, {"a": 500, "x": 90, "b": 300}, [("int4", [(0, 500), (590, 890)], 800)]),
        ({"a": INT4, "b": INT8, "c": INT4}, {"a": 500, "b": 5, "c": 300},
         [("int4", [(0, 500), (505, 805)], 800), ("int8", [(500, 505)], 5)]),
        ({"a": INT8, "b": INT4, "c": INT4}, {"a": 9, "b": 0, "c": 4}, [("int8", [(0, 9)], 9), ("int4", [(9, 13)], 4)]),
    ],
)  # fmt: skip
def test_runs_of_one_codec_are_sent_as_they_lie(codecs, sizes, expected):
    assert spans(codecs, sizes) == expected


def test_one_codec_for_all_sends_whole_buckets():
    assert spans({"a": INT4, "b": INT4}, {"x": 90, "a": 300, "y": 90, "b": 300, "z": 9}, alike=True) == [
        ("int4", [(0, 789)], 600)
    ]
    assert spans({}, {"x": 90}, alike=True) == []


def test_bits_and_rows():
    made = Assignment(codecs={"a": INT8, "b": PAIR}, alike=False)
    sizes = {"a": 4096, "x": 10, "b": 8192}
    assert made.groups(sizes) == {INT8: 4096, PAIR: 8192}
    assert made.bits_per_element(sizes) == pytest.approx((INT8.bits_per_element(4096) + 2 * PAIR.bits_per_element(8192)) / 3)
    assert Assignment(codecs={}, alike=True).bits_per_element(sizes) == 32
    assert [(row["parameter"], row["codec"]) for row in made.rows(sizes)] == [
        ("a", INT8.spec()),
        ("x", "none"),
        ("b", PAIR.spec()),
    ]
