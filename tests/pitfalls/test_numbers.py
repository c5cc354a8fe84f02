"""docs/pitfalls.md, "Numbers": where peers lost them."""

from __future__ import annotations

import numpy as np
import pytest

import thinwire as tw
from samples import IDS, VARIANTS, gaussian, nmse

quantizers = pytest.mark.parametrize("codec", [c for c in VARIANTS if c.name != "none"], ids=[i for i in IDS if i != "none"])


@quantizers
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e6, 1e30])
def test_pytorch_57410_magnitudes_far_from_one(codec, scale):
    """The fp16 hook turned 1e6 into Inf and 1e-8 into 0: here the relative error is the same at every magnitude."""
    x = gaussian(1, 4096)
    error = nmse(x, codec.decode(codec.encode(x), 4096))
    scaled = x * np.float32(scale)
    assert nmse(scaled, codec.decode(codec.encode(scaled), 4096)) == pytest.approx(error, rel=0.15)


def test_one_outlier_does_not_erase_the_others():
    """Per tensor, an element 1000 times the rest sent 95 % of the others as zero; blocks keep it to its own."""
    x = gaussian(1, 8192)
    spoiled = x.copy()
    spoiled[0, 100] = 4000.0
    for name, block in (("int8", 128), ("int4", 32)):
        codec = tw.codec(name)
        others = np.ones(8192, dtype=bool)
        others[100 // block * block : (100 // block + 1) * block] = False
        errors = [nmse(t[:, others], codec.decode(codec.encode(t), 8192)[:, others]) for t in (x, spoiled)]
        assert errors[1] == pytest.approx(errors[0], rel=0.02)
    decoded = tw.codec("minmax4").decode(tw.codec("minmax4").encode(spoiled), 8192)
    assert nmse(np.delete(x, 100)[None], np.delete(decoded, 100)[None]) > 0.9, "the fault that blocks keep out"


def test_layers_whose_gradients_differ_by_more_than_2_16():
    """A log scale relative to the row's maximum would send the small layer as zero."""
    x = np.concatenate([gaussian(1, 4096), gaussian(1, 4096) * np.float32(1e-9)], axis=1)
    for bits in (2, 3, 4):
        codec = tw.codec(f"int{bits}")
        decoded = codec.decode(codec.encode(x), 8192)
        assert nmse(x[:, 4096:], decoded[:, 4096:]) == pytest.approx(nmse(x[:, :4096], decoded[:, :4096]), rel=0.2)


@quantizers
def test_transformer_engine_3550_a_nan_is_never_lost(codec):
    for at in range(0, 300, 7):
        for value in (np.nan, -np.nan, np.inf, -np.inf):
            x = gaussian(1, 300)
            x[0, at] = value
            assert not np.isfinite(codec.decode(codec.encode(x), 300)[0, at])


@quantizers
def test_all_zero_gradients_stay_zero(codec):
    x = np.zeros((1, 1000), dtype=np.float32)
    assert not codec.decode(codec.encode(x), 1000).any()


def test_integer_sums_do_not_wrap():
    """100 + 100 in int8 is -56 on gloo: sums here are fp32 sums of decoded numbers."""
    codec = tw.codec("int8")
    x = np.full((1, 64), 100.0, dtype=np.float32)
    total = codec.decode(codec.encode(x), 64)
    total = codec.decode(codec.encode(x), 64, out=total, add=True)
    np.testing.assert_allclose(total, 200.0, rtol=0.01)


def test_deepspeed_qgz_a_bf16_tensor_is_not_read_as_fp16():
    torch = pytest.importorskip("torch")
    x = torch.randn(1, 256, generator=torch.Generator().manual_seed(0))
    codec = tw.codec("int8")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        decoded = codec.decode(codec.encode(x.to(dtype)), 256)
        assert (decoded - x).abs().max() < 0.05
