"""Inputs that tests of several kinds share, and every codec with fields that are worth testing."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from thinwire.codec import REGISTRY, Codec, codec

F32 = npt.NDArray[np.float32]
THOROUGH = bool(os.environ.get("THINWIRE_THOROUGH"))
"""All sizes, examples and messages, as before a release. Without it, what is repeated for every codec takes fewer of them."""

VARIANTS: list[Codec] = [
    *REGISTRY.values(),
    codec("int8", block=8),
    codec("int8", block=4096),
    codec("int8", scale="log8", block=64),
    codec("int7", scale="log8", block=1024),
    codec("int5", block=32, scale="log8"),
    codec("int4", block=8),
    codec("int4", scale="bf16", block=128),
    codec("int3", scale="bf16", block=16),
    codec("int2", block=1024),
    codec("minmax8", block=8),
    codec("minmax8", block=64),
    codec("minmax8", block=8192),
    codec("minmax5", block=4096),
    codec("minmax4", block=128),
    codec("minmax3", block=16384),
    codec("minmax16", block=32),
    codec("int4", search=True),
    codec("int2", search=True, block=8),
    codec("int3", search=True, scale="bf16", block=64),
    codec("int4", rounding="stochastic"),
    codec("int8", rounding="stochastic"),
    codec("int2", rounding="stochastic", block=64, scale="bf16"),
    codec("gauss4", fit="least", block=8),
    codec("gauss2", fit="unbiased", block=1024),
    codec("sign1", fit="unbiased", block=16),
    codec("grid;block=32;step=2"),
    codec("grid;block=4096;step=0.0625"),
    codec("entropy(grid)"),
    codec("entropy(int4)"),
    codec("entropy(int8)"),
    codec("entropy(int3;block=64;scale=bf16)"),
    codec("entropy(minmax2;block=4096)"),
    codec("entropy(hadamard(int2))"),
    codec("hadamard(entropy(minmax8))"),
    codec("hadamard(int4)"),
    codec("hadamard(gauss2;fit=unbiased)"),
    codec("hadamard(int8;block=64)", block=16, seed=7),
    codec("hadamard(minmax4)", block=4096),
    codec("affine8", block=64),
    codec("affine7", block=16384),
    codec("affine4", block=8),
    codec("affine3", block=4096),
    codec("fp8_e4m3", block=8),
    codec("fp8_e4m3", block=4096),
    codec("fp8_e5m2", block=64),
    codec("topk", k=1, bits=2),
    codec("topk", k=7, chunk=64, bits=8),
    codec("topk", k=256, chunk=1024, bits=5),
    codec("topk", k=16, chunk=16, bits=3),
    codec("topk", k=100, chunk=16384, bits=6),
]
IDS = [made.spec() for made in VARIANTS]
EXAMPLES = 40 if THOROUGH else 15
"""Of Hypothesis for each codec, each codec with its own."""
SIZES = [0, 1, 2, 7, 31, 32, 33, 127, 255, 256, 257, 1000, 1023, 1025, 4095, 4097, 9001]


def gaussian(rows: int, n: int, seed: int = 0) -> F32:
    return np.random.default_rng([seed, rows, n]).standard_normal((rows, n), dtype=np.float32)


def awkward(rows: int, n: int, seed: int = 0) -> F32:
    """Everything that broke somebody: magnitudes over the whole range of fp32, zeros of both signs, equal runs, outliers."""
    generator = np.random.default_rng([seed, rows, n, 1])
    exponents = generator.integers(-140, 128, (rows, n))
    x = np.ldexp(generator.uniform(-2, 2, (rows, n)), exponents).astype(np.float32)
    kind = generator.integers(0, 8, (rows, n))
    x[kind == 0] = 0.0
    x[kind == 1] = -0.0
    x[kind == 2] = np.float32(3.4028235e38)
    x[kind == 3] = np.float32(1e-45)
    x[:, n // 2 : n // 2 + n // 4] = 0.75
    x[~np.isfinite(x)] = 1.0
    return x


def with_nonfinite(rows: int, n: int, seed: int = 0) -> F32:
    """Gaussian with a few NaN, Inf and -Inf."""
    x = gaussian(rows, n, seed)
    generator = np.random.default_rng([seed, rows, n, 2])
    for value in (np.nan, np.inf, -np.inf):
        if n:
            x[generator.integers(rows), generator.integers(n)] = value
    return x


def nmse(x: npt.NDArray[np.floating], decoded: npt.NDArray[np.floating]) -> float:
    """E|x - x'|^2 / E|x|^2 in fp64."""
    exact = x.astype(np.float64)
    return float(np.square(exact - decoded).sum() / np.square(exact).sum())
