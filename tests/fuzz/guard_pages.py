"""Runs every codec's kernels on memory that ends, and begins, at a page that may not be touched: one byte too far is a SIGSEGV.

A program of its own, for the test to survive it: ``python guard_pages.py BACKEND`` names each case before it runs and the
number of cases at the end; ``python guard_pages.py read|write before|behind`` goes too far on purpose.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Iterator

import numpy as np

from samples import THOROUGH, VARIANTS, awkward
from thinwire.codec import Codec
from thinwire.errors import WireError
from thinwire.kernels import ops
from thinwire.kernels.threads import set_num_threads

PAGE = mmap.PAGESIZE
NONE, READ, WRITE = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
PLACES = ("behind", "before")
SIZES = [1, 2, 3, 7, 15, 17, 31, 33, 63, 65, 127, 129, 255, 257, 511, 513, 1023, 1025, 1537, 4095, 4097, 5001, 9001]
FEW = [1, 33, 257, 1025, 5001]
"""For the reference, whose every access NumPy checks: what is left to see is a write to what may only be read."""
LONG = 2 * (1 << 18) + 4099
"""Elements that two threads share."""
_libc = ctypes.CDLL(None, use_errno=True)


def sizes_of(codec: Codec) -> list[int]:
    """SIZES, and near each power of two the next size whose row has no padding, which would hide a byte that is read too far."""
    full = []
    for start in (1, 16, 32, 128, 256, 1024, 1100, 4096, 5000):
        fitting = (n for n in range(start, start + 512) if codec._payload_bytes(n) == codec.wire_bytes(n))
        full += [*fitting][:1]
    return sorted({*SIZES, *full})


class Fence:
    """Memory between two pages that nobody may touch."""

    def __init__(self, capacity: int) -> None:
        self.size = -(-capacity // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.size + 2 * PAGE)
        self.all = np.frombuffer(self.map, dtype=np.uint8)
        self.address = self.all.ctypes.data
        self.protect(0, PAGE, NONE)
        self.protect(PAGE + self.size, PAGE, NONE)

    def protect(self, at: int, size: int, rights: int) -> None:
        if _libc.mprotect(ctypes.c_void_p(self.address + at), ctypes.c_size_t(size), rights):
            raise OSError(ctypes.get_errno(), "mprotect")

    def array(self, shape: tuple[int, int], dtype: type, guard: str) -> np.ndarray:
        """An array with the forbidden page right ``behind`` its last byte or right ``before`` its first."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        at = PAGE + (self.size - size if guard == "behind" else 0)
        self.writable()
        return self.all[at : at + size].view(dtype).reshape(shape)

    def read_only(self) -> None:
        self.protect(PAGE, self.size, READ)

    def writable(self) -> None:
        self.protect(PAGE, self.size, WRITE)


class Fences:
    """Memory for each role of an array, used again and again."""

    def __init__(self, rows: int, n: int) -> None:
        size = 4 * rows * n + 64 * rows
        self.source, self.wire, self.out = Fence(size), Fence(2 * size), Fence(size)


def payloads(shape: tuple[int, int], codec: Codec, n: int) -> Iterator[np.ndarray]:
    """Bytes of a row: real ones, noise, and the extremes."""
    generator = np.random.default_rng(n)
    real = codec.encode(awkward(shape[0], n))
    yield real
    if codec.variable:
        for chance in (0.01, 0.1):
            # Not the first bytes, where a row states its size.
            changed = generator.random((shape[0], shape[1] - 8)) < chance
            yield np.concatenate([real[:, :8], np.where(changed, generator.integers(0, 256, changed.shape), real[:, 8:])], axis=1)
    yield np.frombuffer(generator.bytes(shape[0] * shape[1]), dtype=np.uint8).reshape(shape)
    yield np.full(shape, 0xFF, dtype=np.uint8)
    yield np.zeros(shape, dtype=np.uint8)


def decode_cases(codec: Codec, rows: int, n: int, fences: Fences) -> int:
    """Decode, and add, between forbidden pages on either side; the bytes that arrived may be read only."""
    shape, count = (rows, codec.wire_bytes(n)), 0
    for payload in payloads(shape, codec, n):
        for guard in PLACES:
            wire = fences.wire.array(shape, np.uint8, guard)
            wire[:] = payload
            fences.wire.read_only()
            out = fences.out.array((rows, n), np.float32, guard)
            out[:] = 1
            for add in (False, True):
                with contextlib.suppress(WireError):
                    codec.decode(wire, n, out=out, add=add)
                count += 1
    return count


def encode_cases(codec: Codec, rows: int, n: int, fences: Fences) -> int:
    """Encode fp32, fp16 and bf16, with and without error, between forbidden pages on either side."""
    shape, count = (rows, codec.wire_bytes(n)), 0
    noise = np.random.default_rng(n).integers(0, 1 << 16, (rows, n), dtype=np.uint16)
    sources = [(awkward(rows, n), ops.FLOAT32), (noise, ops.FLOAT16), (noise, ops.BFLOAT16)]
    for guard in PLACES:
        for source, kind in sources:
            data = fences.source.array((rows, n), source.dtype.type, guard)
            data[:] = source
            fences.source.read_only()
            for error in (None, fences.out.array((rows, n), np.float32, guard)):
                wire = fences.wire.array(shape, np.uint8, guard)
                # The method behind encode(), which takes bf16 as torch tensors only.
                codec._encode(ops.Rows(data, kind), wire, error, 0)
                count += 1
        both = fences.source.array((rows, n), np.float32, guard)
        both[:] = sources[0][0]
        codec.encode(both, out=fences.wire.array(shape, np.uint8, guard), error=both)
        count += 1
    return count


def run(backend: str) -> int:
    """All cases of one backend; returns how many."""
    ops.set_backend(backend)
    set_num_threads(2)
    few = backend == "reference" and not THOROUGH
    count = 0
    small, large = Fences(2, max(SIZES)), Fences(1, LONG)
    for codec in VARIANTS:
        count += sum(cases(codec, 2, n, small) for n in (FEW if few else sizes_of(codec)))
        # The reference knows no pieces.
        count += cases(codec, 1, LONG, large) if backend == "numba" else 0
    return count


def cases(codec: Codec, rows: int, n: int, fences: Fences) -> int:
    """Both directions; the line says where a crash was."""
    print(f"{codec.spec()}, {rows} rows of {n}", flush=True)
    return decode_cases(codec, rows, n, fences) + encode_cases(codec, rows, n, fences)


def trespass(how: str, guard: str) -> None:
    """One byte too far."""
    row = Fence(PAGE).array((1, 16), np.uint8, guard)
    touched = ctypes.c_uint8.from_address(row.ctypes.data + (16 if guard == "behind" else -1))
    print(f"{how} {guard}", flush=True)
    if how == "read":
        print(touched.value)
    else:
        touched.value = 1


if __name__ == "__main__":
    if sys.argv[1] in ops.BACKENDS:
        print(f"{run(sys.argv[1])} cases")
    else:
        trespass(*sys.argv[1:])
