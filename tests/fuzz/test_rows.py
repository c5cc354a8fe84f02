"""Rows from outside: any bytes of the right number decode to numbers of the right shape, the same on both backends, in bounds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutations import PATTERNS, Mutator
from samples import EXAMPLES, IDS, THOROUGH, VARIANTS, gaussian
from thinwire.codec import Codec
from thinwire.errors import WireError
from thinwire.kernels import ops

HERE = Path(__file__).parent
SIZES = [1, 3, 31, 33, 100, 255, 257, 1023, 1025, 1537, 4097]
CANARY = 0xA5C3F00D
every_codec = pytest.mark.parametrize("codec", VARIANTS, ids=IDS)
linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are protected with Linux's mprotect")


def decoded_in_bounds(codec: Codec, wire: np.ndarray, n: int, add: bool) -> np.ndarray | str:
    """Rows decoded into the middle of a larger array, whose other elements must stay as they are; or why they were refused."""
    rows = wire.shape[0]
    around = np.full((rows + 2, n + 37), CANARY, dtype=np.uint32)
    out = around.view(np.float32)[1 : rows + 1, 16 : 16 + n]
    out[:] = gaussian(rows, n, seed=3)
    before = wire.copy()
    try:
        assert codec.decode(wire, n, out=out, add=add) is out
        found = out.copy()
    except WireError as error:
        assert codec.variable, "any bytes are a row of a codec whose rows have one size"
        found = str(error)
    out.view(np.uint32)[:] = CANARY
    assert (around == CANARY).all(), "decode wrote beside its output"
    np.testing.assert_array_equal(wire, before, err_msg="decode wrote to its input")
    return found


def bits(values: np.ndarray) -> np.ndarray:
    """fp32 bits, every NaN as the same one."""
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


def check(codec: Codec, wire: np.ndarray, n: int) -> None:
    """Both backends, plain and added: the same bits of the right shape."""
    for add in (False, True):
        results = []
        for backend in ops.BACKENDS:
            before = ops.set_backend(backend)
            try:
                results.append(decoded_in_bounds(codec, wire, n, add))
            finally:
                ops.set_backend(before)
        fast, slow = results
        if isinstance(fast, str):
            assert fast == slow
            continue
        assert fast.shape == slow.shape == (wire.shape[0], n)
        np.testing.assert_array_equal(bits(fast), bits(slow), err_msg=f"{n} elements, add={add}")


@every_codec
@pytest.mark.parametrize("pattern", PATTERNS, ids=bytes.hex)
def test_patterns(codec, pattern):
    for n in SIZES[::2]:
        size = codec.wire_bytes(n)
        check(codec, np.frombuffer((pattern * 2 * size)[: 2 * size], dtype=np.uint8).reshape(2, size), n)


@every_codec
def test_noise(codec):
    mutator = Mutator(7, [b""])
    for n in SIZES:
        for _ in range(6):
            size = codec.wire_bytes(n)
            check(codec, np.frombuffer(mutator.bytes_like(3 * size), dtype=np.uint8).reshape(3, size), n)


@every_codec
@settings(max_examples=EXAMPLES)
@given(n=st.integers(1, 700), seed=st.integers(0, 2**32), patch=st.binary(max_size=40), at=st.integers(0, 100))
def test_any_bytes(codec, n, seed, patch, at):
    wire = np.frombuffer(np.random.default_rng(seed).bytes(codec.wire_bytes(n)), dtype=np.uint8).copy()
    piece = np.frombuffer(patch, dtype=np.uint8)[: max(0, wire.size - at)]
    wire[at : at + piece.size] = piece
    check(codec, wire.reshape(1, -1), n)


@every_codec
def test_bytes_of_the_padding_are_not_read(codec):
    for n in SIZES:
        wire = codec.encode(gaussian(2, n))
        other = wire.copy()
        other[:, codec._payload_bytes(n) :] = 0xFF
        for row in other:
            row[codec.message_bytes(row) :] = 0xFF
        np.testing.assert_array_equal(codec.decode(other, n), codec.decode(wire, n))


# --- one byte too far -------------------------------------------------------------------------------------------------


def guarded(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run guard_pages.py with the tests' own import path."""
    paths = [str(HERE.parent), *(path for path in sys.path if path)]
    return subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "guard_pages.py"), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@linux
@pytest.mark.parametrize("how", ["read", "write"])
@pytest.mark.parametrize("guard", ["before", "behind"])
def test_the_fence_holds(how, guard):
    done = guarded(how, guard)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert done.stdout == f"{how} {guard}\n"


@linux
@pytest.mark.parametrize("backend", ops.BACKENDS)
def test_no_kernel_leaves_its_arrays(backend):
    done = guarded(backend)
    lines = done.stdout.splitlines() or ["start"]
    if done.returncode == -signal.SIGSEGV:
        pytest.fail(f"{backend}: memory outside of an array was touched; the case: {lines[-1]}")
    assert done.returncode == 0, f"the case: {lines[-1]}\n{done.stderr}"
    count = int(lines[-1].removesuffix(" cases"))
    assert count >= 30 * len(VARIANTS) * (20 if THOROUGH or backend == "numba" else 5)
