"""The fast kernels of ``gaussB`` and ``sign1`` at magnitudes that squares cannot hold, and without shuffles by a table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import thinwire as tw
from thinwire.codec.base import F32
from thinwire.kernels import layout, ops

N = 5000


def _inputs() -> Iterator[F32]:
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((2, N))
    yield normal * 10.0 ** rng.uniform(-30, 30, (2, N))
    yield normal * 10.0 ** rng.uniform(-44, -10, (2, N))
    yield normal * 2.0 ** np.repeat(rng.integers(-140, 127, (2, N // 500)), 500, 1)
    yield normal * 2.0 ** (np.repeat(rng.integers(-66, 66, (2, N // 50)), 50, 1) - rng.integers(0, 30, (2, N)))
    zeros = normal * 2.0 ** -rng.integers(0, 90, (2, N))
    zeros[:, ::7], zeros[:, 3::11] = 0.0, -0.0
    yield zeros
    # Squares that leave the normal numbers, and sums that are halfway between two of them, on the way up.
    climb = np.cumsum(rng.integers(0, 2, (2, N)), 1) % 60
    yield np.ldexp(1 + rng.integers(0, 4096, (2, N)) / 4096, rng.integers(-66, -60, (2, N)) + climb)
    special = normal.copy()
    special[0, 100], special[1, 3000], special[:, 512:1024], special[:, 2048:2056] = np.inf, np.nan, 0.0, -0.0
    yield special


INPUTS = [x.astype(np.float32) for x in _inputs()]


def _results(codec: tw.Codec, x: F32) -> list[F32]:
    error = np.empty_like(x)
    wire = codec.encode(x, error=error)
    back, total = codec.decode(wire, N), codec.decode(wire, N, out=x.copy(), add=True)
    return [wire, error, back, total]


@pytest.mark.parametrize("block", [8, 64, 256, 4096])
@pytest.mark.parametrize("fit", ["rms", "least", "unbiased"])
@pytest.mark.parametrize("name", ["gauss4", "gauss3", "gauss2", "sign1"])
def test_numbers_of_all_magnitudes_in_one_block(name, fit, block):
    codec = tw.codec(name, fit=fit, block=block)
    for x in INPUTS:
        fast = _results(codec, x)
        ops.set_backend("reference")
        try:
            slow = _results(codec, x)
        finally:
            ops.set_backend("numba")
        for a, b in zip(fast, slow, strict=True):
            np.testing.assert_array_equal(a, b)


def test_without_the_shuffles(tmp_path):
    """Selections give the numbers of the shuffles' definition."""
    program = (
        "import numpy as np, thinwire as tw\n"
        "from thinwire.kernels import ops, simd\n"
        "simd.shuffles = lambda: False\n"
        "from thinwire.kernels import simd_gauss\n"
        "assert not simd_gauss.shuffles()\n"
        "x = np.random.default_rng(0).standard_normal((2, 9000), dtype=np.float32)\n"
        "for name in ('gauss4', 'gauss3', 'gauss2', 'sign1'):\n"
        "    codec = tw.codec(name)\n"
        "    wire = codec.encode(x); back = codec.decode(wire, 9000)\n"
        "    ops.set_backend('reference')\n"
        "    assert (wire == codec.encode(x)).all()\n"
        "    assert np.array_equal(back, codec.decode(wire, 9000))\n"
        "    ops.set_backend('numba')\n"
        "print('equal')\n"
    )
    folder = str(Path(layout.__file__).parents[2])
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": folder, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout == "equal\n", done.stderr
