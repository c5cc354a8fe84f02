"""Laws that hold for every codec and every field, whatever the numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samples import EXAMPLES, IDS, SIZES, VARIANTS, awkward, gaussian, with_nonfinite
from thinwire.codec import Codec, from_spec, short
from thinwire.codec import codec as read
from thinwire.codec.base import Wrapper
from thinwire.kernels import ops
from thinwire.kernels.threads import set_num_threads

every_codec = pytest.mark.parametrize("codec", VARIANTS, ids=IDS)
INPUTS = [gaussian, awkward, with_nonfinite]


def both_backends(codec: Codec, x: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Bytes, error, decoded and added numbers of each backend."""
    found = []
    n = x.shape[1]
    for backend in ops.BACKENDS:
        before = ops.set_backend(backend)
        error = np.full(x.shape, 7, dtype=np.float32)
        wire = codec.encode(x, error=error)
        base = gaussian(x.shape[0], n, seed=9)
        found.append((wire, error, codec.decode(wire, n), codec.decode(wire, n, out=base, add=True)))
        ops.set_backend(before)
    return found


@every_codec
@pytest.mark.parametrize("make", INPUTS)
def test_fast_kernels_give_the_bytes_of_the_reference(codec, make):
    for n in SIZES:
        fast, slow = both_backends(codec, make(2, n))
        for name, a, b in zip(("wire", "error", "decoded", "added"), fast, slow, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{name} of {n} elements")


@every_codec
@settings(max_examples=EXAMPLES)
@given(
    x=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 300)),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_fast_kernels_give_the_bytes_of_the_reference_on_any_bits(codec, x):
    fast, slow = both_backends(codec, x)
    for a, b in zip(fast, slow, strict=True):
        np.testing.assert_array_equal(a, b)


@every_codec
@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_half_precision_input_is_encoded_as_its_exact_value(codec, dtype):
    for n in (1, 100, 1025, 5000):
        half = torch.from_numpy(with_nonfinite(2, n)).to(torch.float16 if dtype == np.float16 else torch.bfloat16)
        exact = codec.encode(half.float())
        assert torch.equal(codec.encode(half), exact)
        before = ops.set_backend("reference")
        assert torch.equal(codec.encode(half), exact)
        ops.set_backend(before)


@every_codec
def test_size_of_a_row_depends_on_n_only_and_padding_is_zero(codec):
    for n in SIZES:
        wire = codec.encode(awkward(3, n))
        assert wire.shape == (3, codec.wire_bytes(n))
        assert wire.dtype == np.uint8
        assert codec.wire_bytes(n) % 16 == 0
        assert not wire[:, codec._payload_bytes(n) :].any()
        for row in wire:
            assert codec.least_bytes(n) <= codec.message_bytes(row) <= codec.wire_bytes(n)
            assert not row[codec.message_bytes(row) :].any()
    assert codec.wire_bytes(0) == 0
    assert codec.bits_per_element(0) == 0.0
    assert codec.bits_per_element(1 << 20) == 8 * codec.wire_bytes(1 << 20) / (1 << 20)


@every_codec
def test_rows_are_independent_messages(codec):
    x = awkward(4, 1500)
    together = codec.encode(x)
    for row in range(4):
        if row == 0 or "stochastic" not in codec.spec():  # there, every row has noise of its own
            np.testing.assert_array_equal(codec.encode(x[row : row + 1])[0], together[row])
        np.testing.assert_array_equal(codec.decode(together[row : row + 1], 1500), codec.decode(together, 1500)[row : row + 1])


@every_codec
def test_error_is_what_the_wire_lost(codec):
    x = gaussian(2, 3000) * np.float32(1e-4)
    error = np.empty_like(x)
    wire = codec.encode(x, error=error)
    np.testing.assert_array_equal(error, x - codec.decode(wire, 3000))
    in_place = x.copy()
    np.testing.assert_array_equal(codec.encode(in_place, error=in_place), wire)
    np.testing.assert_array_equal(in_place, error)


@every_codec
def test_add_accumulates_and_out_is_filled_whole(codec):
    x, base = gaussian(2, 3001), gaussian(2, 3001, seed=1)
    wire = codec.encode(x)
    plain = codec.decode(wire, 3001)
    added = base.copy()
    assert codec.decode(wire, 3001, out=added, add=True) is added
    np.testing.assert_array_equal(added, base + plain)
    dirty = np.full(wire.shape, 0xFF, dtype=np.uint8)
    assert codec.encode(x, out=dirty) is dirty
    np.testing.assert_array_equal(dirty, wire)


def spoiled(codec: Codec, n: int) -> int:
    """Elements of the aligned block that a NaN makes NaN."""
    own = {"none": 1, "bf16": 1, "fp16": 1024}.get(codec.name) or getattr(codec, "block", getattr(codec, "chunk", 1)) or n
    return max(own, spoiled(codec.inner, n)) if isinstance(codec, Wrapper) else own


@every_codec
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_nonfinite_number_spoils_its_own_block_and_no_other(codec, value):
    n = 20_000
    x = gaussian(1, n)
    clean = codec.decode(codec.encode(x), n)
    bad = x.copy()
    bad[0, 5000] = value
    decoded = codec.decode(codec.encode(bad), n)
    width = spoiled(codec, n)
    if codec.name in ("none", "bf16"):
        np.testing.assert_array_equal(decoded[0, 5000], np.float32(value))
    block = slice(5000 // width * width, (5000 // width + 1) * width)
    if codec.name not in ("none", "bf16"):
        assert np.isnan(decoded[0, block]).all()
    outside = np.ones(n, dtype=bool)
    outside[block] = False
    if "log8" in codec.spec():
        # Block scales are relative to the group's largest finite block; a spoiled block may have held it.
        group = np.zeros(n, dtype=bool)
        group[4096:5120] = True
        assert np.isfinite(decoded[0, outside]).all()
        outside &= ~group
    np.testing.assert_array_equal(decoded[0, outside], clean[0, outside])


@every_codec
def test_zeros_come_back_as_zeros_without_error(codec):
    error = np.ones((2, 2000), dtype=np.float32)
    wire = codec.encode(np.zeros((2, 2000), dtype=np.float32), error=error)
    assert not codec.decode(wire, 2000).any()
    assert not error.any()


@every_codec
def test_finite_numbers_stay_finite(codec):
    x = awkward(2, 5000)
    assert np.isfinite(codec.decode(codec.encode(x), 5000)).all()


@every_codec
def test_torch_gives_torch_and_the_same_bytes(codec):
    x = gaussian(2, 1000)
    wire = codec.encode(torch.from_numpy(x))
    assert isinstance(wire, torch.Tensor)
    np.testing.assert_array_equal(wire.numpy(), codec.encode(x))
    out = torch.empty(2, 1000)
    assert codec.decode(wire, 1000, out=out) is out
    np.testing.assert_array_equal(out.numpy(), codec.decode(wire.numpy(), 1000))


@every_codec
@pytest.mark.usefixtures("threads")
def test_threads_do_not_change_a_bit(codec):
    n = (1 << 20) + 12345
    x = gaussian(1, n)
    set_num_threads(1)
    wire = codec.encode(x)
    decoded = codec.decode(wire, n)
    set_num_threads(3)
    np.testing.assert_array_equal(codec.encode(x), wire)
    np.testing.assert_array_equal(codec.decode(wire, n), decoded)


@every_codec
def test_inputs_of_any_strides(codec):
    wide = gaussian(4, 2000)
    for view in (wide[::2], wide[:, ::2], wide[:, 3:1003], wide.T, wide[:, ::-1]):
        np.testing.assert_array_equal(codec.encode(view), codec.encode(view.copy()))


@every_codec
def test_spec_names_the_codec_completely(codec):
    assert from_spec(codec.spec()) == codec
    assert codec.spec().isascii()


def test_short_names_are_read_back_and_tell_codecs_apart():
    names = [short(codec) for codec in VARIANTS]
    assert [read(name) for name in names] == VARIANTS
    assert len(set(names)) == len(set(VARIANTS))
    assert [short(read(name)) for name in ("int4", "hadamard(int4)", "int4;block=64")] == [
        "int4",
        "hadamard(int4)",
        "int4;block=64",
    ]
