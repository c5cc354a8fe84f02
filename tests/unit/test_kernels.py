"""Packing at every width, and the compile cache that ranks share."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from thinwire.kernels import jit, layout, ops, reference
from thinwire.kernels.threads import in_pieces, set_num_threads


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8, 16])
def test_packing_is_dense_and_exact(bits):
    for n in (0, 1, 7, 8, 9, 255, 256, 257, 1000):
        codes = np.random.default_rng(n).integers(0, 1 << bits, (2, n)).astype(np.uint32)
        packed = reference.pack(codes, bits)
        assert packed.shape == (2, layout.code_bytes(n, bits))
        # At most one unfinished byte for each plane of the last, short unit.
        assert 0 <= 8 * packed.shape[1] - n * bits <= 7 * len(layout.plane_widths(bits))
        np.testing.assert_array_equal(reference.unpack(packed, n, bits), codes)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8, 16])
def test_fast_packing_equals_the_reference(bits):
    """The affine kernel sends whole numbers from 0 to 2^bits - 1 as they are, so it shows the packing alone."""
    for n in (2, 255, 256, 300, 5000):
        codes = np.random.default_rng(n).integers(0, 1 << bits, (1, n)).astype(np.uint32)
        codes[0, :2] = 0, (1 << bits) - 1
        wire = np.zeros((1, layout.round_up(8 + layout.code_bytes(n, bits), 16)), dtype=np.uint8)
        ops.minmax_encode(ops.Rows(codes.astype(np.float32), ops.FLOAT32), wire, bits, n, None)
        np.testing.assert_array_equal(wire[:, 8 : 8 + layout.code_bytes(n, bits)], reference.pack(codes, bits))


def test_log_table_is_monotonic_and_covers_the_codes():
    for bits in range(2, 9):
        table = layout.log_table(bits)
        assert table.shape == (256,)
        assert (np.diff(table[: layout.LOG_LAST + 1]) < 0).all()
        assert table[0] == 2.0 ** (1 - bits)
        assert table[layout.LOG_ZERO] == 0
        assert np.isnan(table[layout.LOG_NONFINITE])
        np.testing.assert_array_equal(table[128:], -table[:128])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 2, 5])
def test_pieces_cover_everything_once(count):
    set_num_threads(count)
    seen = np.zeros(3_000_001, dtype=np.int32)

    def mark(start: int, stop: int) -> None:
        assert start % 4096 == 0
        seen[start:stop] += 1

    in_pieces(mark, seen.size, 4096)
    assert (seen == 1).all()


def test_a_change_of_any_kernel_source_makes_the_cache_stale(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    before = jit.sources_stamp(tmp_path)
    assert jit.sources_stamp(tmp_path) == before
    (tmp_path / "b.py").write_text("x = 2\n")
    assert jit.sources_stamp(tmp_path) != before


def test_processes_that_start_together_share_an_empty_cache(tmp_path):
    """Each compiles or loads; none gets another's half-written code."""
    program = (
        "import numpy as np, thinwire as tw\n"
        "x = np.random.default_rng(0).standard_normal((1, 5000), dtype=np.float32)\n"
        "print(hash(tw.codec('bf16').encode(x).tobytes()) and tw.codec('bf16').encode(x).sum())\n"
    )
    environment = {
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(jit.__file__).parents[2]),
        "PATH": "/usr/bin:/bin",
    }
    command = [sys.executable, "-c", program]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate(timeout=120)[0] for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(answers) == 1
    assert len(list(tmp_path.rglob("*bf16_encode*.nbc"))) == 1


def test_without_a_cache_folder_kernels_work_and_say_so():
    scope: dict = {}
    exec("def fill(out):\n    out[:] = 7\n", scope)  # code without a file has no place in a cache
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR"):
        kernel = jit.Kernel(scope["fill"], (jit.FLOATS,))
    out = np.zeros(3, dtype=np.float32)
    kernel(out)
    assert (out == 7).all()
    with pytest.raises(TypeError):
        kernel(np.zeros(3))


def test_fp16_on_a_processor_without_conversions(tmp_path):
    """The integer code that such a processor runs gives the reference's bytes."""
    program = (
        "import numpy as np, thinwire as tw\n"
        "from thinwire.kernels import ops, simd_cast\n"
        "simd_cast.converts_half = lambda: False\n"
        "from thinwire.kernels import cpu_cast\n"
        "assert not cpu_cast._CONVERTS\n"
        "codec = tw.codec('fp16')\n"
        "bits = np.random.default_rng(0).integers(0, 2**32, (3, 5000), dtype=np.uint32)\n"
        "bits[1] = (bits[1] & 0x807FFFFF) | 0x3F800000\n"
        "bits[2] &= 0xF07FFFFF\n"
        "x = bits.view(np.float32)\n"
        "wire = codec.encode(x); back = codec.decode(wire, 5000)\n"
        "ops.set_backend('reference')\n"
        "assert (wire == codec.encode(x)).all()\n"
        "assert np.array_equal(back, codec.decode(wire, 5000), equal_nan=True)\n"
        "assert np.isfinite(back[1:]).all()\n"
        "print('equal')\n"
    )
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(jit.__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.usefixtures("threads")
def test_a_forked_child_has_threads_of_its_own():
    set_num_threads(2)
    in_pieces(lambda a, b: None, 1 << 20, 4096)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads: that is what is tested
        child = os.fork()
    if child == 0:
        done: list[int] = []
        in_pieces(lambda a, b: done.append(b - a), 1 << 20, 4096)
        os._exit(0 if sum(done) == 1 << 20 else 1)
    assert os.waitpid(child, 0)[1] == 0
