"""``thinwire bench accuracy``: its figures against a direct computation."""

from __future__ import annotations

import json

import numpy as np
import pytest

import thinwire as tw
from samples import nmse
from thinwire.bench.accuracy import measure
from thinwire.cli import bench
from thinwire.errors import ConfigError


def test_figures_are_those_of_the_codec():
    n = 1 << 17
    rows = {row["codec"]: row for row in measure([tw.codec("int4"), tw.codec("entropy(int4)")], n, seed=3)}
    x = np.random.default_rng([3, 0]).standard_normal(n, dtype=np.float32)[None]
    int4 = tw.codec("int4")
    assert rows["int4"]["nmse"] == pytest.approx(nmse(x, int4.decode(int4.encode(x), n)), rel=1e-6)
    assert rows["int4"]["bits_per_element"] == pytest.approx(int4.bits_per_element(n))
    assert rows["entropy(int4)"]["nmse"] == rows["int4"]["nmse"]
    assert 3.9 < rows["entropy(int4)"]["bits_per_element"] < 4.2
    assert rows["int4"]["nmse"] < rows["int4"]["nmse_laplace"] < rows["int4"]["nmse_student_t3"]


def test_the_verb_writes_its_rows(tmp_path):
    file = tmp_path / "rows.json"
    bench.accuracy(codecs="int8, int4;block=64;search=true", elements=4096, seed=0, json=file)
    rows = json.loads(file.read_text())["rows"]
    assert [row["spec"] for row in rows] == ["int8;block=128;scale=bf16", "int4;block=64;scale=log8;search=true"]
    with pytest.raises(ConfigError, match="int9"):
        bench.accuracy(codecs="int9", elements=4096, seed=0, json=None)
