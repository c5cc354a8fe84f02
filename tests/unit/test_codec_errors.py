"""A user's mistake gets an error with the value and what is allowed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import thinwire as tw
from thinwire.codec import from_spec
from thinwire.codec.affine import Affine
from thinwire.codec.float8 import Float8
from thinwire.codec.integer import Int
from thinwire.codec.minmax import MinMax
from thinwire.kernels import ops
from thinwire.kernels.threads import set_num_threads

INT8 = tw.codec("int8")
ROWS = np.zeros((2, 100), dtype=np.float32)
WIRE = INT8.encode(ROWS)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tw.codec("int9"), ["'int9'", "int8"]),
        (lambda: tw.codec("mimax8"), ["'mimax8'", "did you mean", "minmax8"]),
        (lambda: tw.codec(8), ["8", "allowed"]),
        (lambda: tw.codec(None), ["None"]),
        (lambda: tw.codec("int8", blok=64), ["'blok'", "'block'"]),
        (lambda: tw.codec("bf16", block=64), ["'block'", "no fields"]),
        (lambda: tw.codec("int8", bits=4), ["bits=4", "part of the name"]),
        (lambda: tw.codec("int8", block=100), ["100", "powers of two"]),
        (lambda: tw.codec("int8", block=0), ["0", "8 to 4096"]),
        (lambda: tw.codec("int8", block=True), ["True"]),
        (lambda: tw.codec("int8", block=64.0), ["64.0"]),
        (lambda: tw.codec("int4", block=2048), ["2048", "1024"]),
        (lambda: tw.codec("int8", scale="fp16"), ["'fp16'", "bf16", "log8"]),
        (lambda: tw.codec("minmax8", block=3), ["3"]),
        (lambda: Int(bits=9, block=64, scale="bf16"), ["9", "2, 3, 4"]),
        (lambda: MinMax(bits=9), ["9", "16"]),
        (lambda: MinMax(bits=True), ["True"]),
        (lambda: tw.codec("grid", step=0), ["step=0", "0.0625"]),
        (lambda: tw.codec("grid", step="wide"), ["'wide'"]),
        (lambda: tw.codec("grid", step=float("nan")), ["nan"]),
        (lambda: tw.codec("grid", rounding="up"), ["'up'", "nearest, stochastic"]),
        (lambda: tw.codec("minmax8", rounding=True), ["True", "nearest, stochastic"]),
        (lambda: tw.codec("affine8", rounding="random"), ["'random'", "nearest, stochastic"]),
        (lambda: tw.codec("grid", block=16), ["16", "32 to 4096"]),
        (lambda: Affine(bits=9), ["9", "2, 3, 4"]),
        (lambda: tw.codec("affine8", block=3), ["3", "powers of two"]),
        (lambda: tw.codec("fp8_e4m3", block=8192), ["8192", "8 to 4096"]),
        (lambda: tw.codec("fp8_e4m3", format="e5m2"), ["format='e5m2'", "part of the name"]),
        (lambda: tw.codec("fp8_e4m3", bits=8), ["'bits'", "block"]),
        (lambda: Float8(format="e3m4"), ["'e3m4'", "e4m3, e5m2"]),
        (lambda: tw.codec("mxfp4", block=16), ["'block'", "no fields"]),
        (lambda: from_spec("fp8_e4m3;format=e4m3;block=128"), ["part of the name"]),
        (lambda: from_spec("int8;block=128"), ["not complete"]),
        (lambda: from_spec("int8;block=128;block=128"), ["once each"]),
        (lambda: INT8.encode(np.zeros((2, 3), dtype=np.int32)), ["int32", "float32"]),
        (lambda: INT8.encode(np.zeros((2, 3), dtype=np.complex64)), ["complex64"]),
        (lambda: INT8.encode(np.zeros((2, 3), dtype=bool)), ["bool"]),
        (lambda: INT8.encode(np.zeros(3, dtype=np.float32)), ["(3,)", "two dimensions"]),
        (lambda: INT8.encode(np.zeros((1, 2, 3), dtype=np.float32)), ["(1, 2, 3)"]),
        (lambda: INT8.encode([[1.0]]), ["list", "NumPy array"]),
        (lambda: INT8.encode(torch.zeros(2, 3, dtype=torch.int64)), ["int64"]),
        (lambda: INT8.encode(torch.zeros(2, 3, device="meta")), ["'meta'", "'cpu'"]),
        (lambda: INT8.encode(torch.zeros(2, 3).to_sparse()), ["sparse"]),
        (lambda: INT8.encode(ROWS, out=np.zeros((2, 5), dtype=np.uint8)), ["(2, 5)", str(WIRE.shape)]),
        (lambda: INT8.encode(ROWS, out=WIRE.astype(np.int8)), ["int8", "uint8"]),
        (lambda: INT8.encode(ROWS, error=np.zeros((2, 100))), ["float64", "float32"]),
        (lambda: INT8.encode(ROWS, error=np.zeros((100, 2), dtype=np.float32).T), ["strides"]),
        (lambda: INT8.encode(ROWS, error=np.broadcast_to(np.float32(0), (2, 100))), ["read-only"]),
        (lambda: INT8.encode(torch.zeros(2, 100), error=torch.zeros(2, 100, requires_grad=True)), ["grad"]),
        (lambda: INT8.decode(WIRE, 200), [str(WIRE.shape[1]), str(INT8.wire_bytes(200))]),
        (lambda: INT8.decode(WIRE, -1), ["-1"]),
        (lambda: INT8.decode(WIRE[0], 100), ["two dimensions"]),
        (lambda: INT8.decode(WIRE.astype(np.int16), 100), ["int16"]),
        (lambda: INT8.decode(WIRE, 100, add=True), ["add=True"]),
        (lambda: INT8.decode(WIRE, 100, out=np.zeros((2, 99), dtype=np.float32)), ["(2, 99)"]),
        (lambda: INT8.wire_bytes(-5), ["-5"]),
        (lambda: ops.set_backend("cuda"), ["'cuda'", "numba"]),
        (lambda: set_num_threads(0), ["0"]),
    ],
)
def test_the_message_names_the_value_and_what_is_allowed(call, words):
    with pytest.raises(tw.ConfigError) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    for word in words:
        assert word in str(caught.value)


def test_a_codec_is_a_frozen_value():
    with pytest.raises(AttributeError):
        INT8.block = 64
    assert tw.codec("int8") == INT8
    assert tw.codec(INT8) is INT8
    assert tw.codec(INT8, block=64) == tw.codec("int8", block=64) != INT8
    assert len({INT8, tw.codec("int8"), tw.codec("int4")}) == 2


def test_numbers_beyond_fp32_spoil_their_block_visibly():
    x = np.zeros((1, 256))
    x[0, 0] = 1e300
    decoded = INT8.decode(INT8.encode(x), 256)
    assert np.isnan(decoded[0, :128]).all()
    assert not decoded[0, 128:].any()


def test_read_only_and_foreign_endian_input():
    x = np.random.default_rng(0).standard_normal((2, 100), dtype=np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(INT8.encode(frozen), INT8.encode(x))
    np.testing.assert_array_equal(INT8.encode(x.astype(">f4")), INT8.encode(x))
    np.testing.assert_array_equal(INT8.encode(torch.from_numpy(x).requires_grad_()).numpy(), INT8.encode(x))
