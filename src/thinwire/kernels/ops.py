"""The entry to all kernels: picks the backend and the number of threads. Every backend writes the same bytes.

``Rows`` hold (r, n) fp32, or fp16 and bf16 as their bits. ``wire`` is (r, wire_bytes) uint8, ``out`` and ``error``
(r, n) float32; each row is contiguous. Sizes are the caller's duty: nothing here checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from thinwire.errors import unknown_name
from thinwire.kernels import layout, reference, reference_int_modes, rng
from thinwire.kernels.threads import in_pieces

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
BACKENDS: Final = ("numba", "reference")
FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
Noise = tuple[bool, int, int]
"""Whether a kernel rounds stochastically, and the keys of the row."""
_NO_ERROR: Final[F32] = np.empty(0, dtype=np.float32)
_backend = "numba"


class Rows(NamedTuple):
    """(r, n) numbers: float32, or uint16 bits of the kind that ``kind`` says."""

    data: npt.NDArray[Any]
    kind: int

    def as_float32(self) -> F32:
        if self.kind == FLOAT32:
            return np.ascontiguousarray(self.data)
        convert = reference.f16_values if self.kind == FLOAT16 else reference.bf16_values
        return convert(np.ascontiguousarray(self.data))


def set_backend(name: str) -> str:
    """Choose "numba" (the default) or "reference" for this process; returns the one before."""
    global _backend
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    before, _backend = _backend, name
    return before


def backend() -> str:
    """The backend in force."""
    return _backend


def encode_rows(rows: Rows, wire: U8, error: F32 | None, align: int, kernel: Callable[..., object]) -> None:
    """Call ``kernel(x bytes, wire row, error row, start, stop)`` over each row in pieces."""
    for i, row in enumerate(rows.data):
        lost = _NO_ERROR if error is None else error[i]
        in_pieces(partial(kernel, row.view(np.uint8), wire[i], lost), row.size, align)


def encode_drawn_rows(
    rows: Rows, wire: U8, error: F32 | None, align: int, seed: int | None, kernel: Callable[..., object]
) -> None:  # fmt: skip
    """As :func:`encode_rows`; ``kernel`` first takes the row's ``Noise``: none without a ``seed``."""
    for i, row in enumerate(rows.data):
        noise = (False, 0, 0) if seed is None else (True, *rng.keys(seed, i))
        lost = None if error is None else error[i : i + 1]
        encode_rows(Rows(row[None], rows.kind), wire[i : i + 1], lost, align, partial(kernel, noise))


def decode_rows(wire: U8, out: F32, align: int, kernel: Callable[..., object]) -> None:
    """Call ``kernel(wire row, out row, start, stop)`` over each row in pieces."""
    for i, row in enumerate(out):
        in_pieces(partial(kernel, wire[i], row), row.size, align)


def int_encode(rows: Rows, wire: U8, bits: int, block: int, log_scale: bool, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference.int_encode`."""
    if _backend == "reference":
        reference.int_encode(rows.as_float32(), wire, bits, block, log_scale, error)
        return
    from thinwire.kernels.cpu_int import int_encode as kernel

    n, kind, table = rows.data.shape[1], rows.kind, layout.log_table(bits)

    def piece(x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, n, a, b, bits, block, log_scale, table, e)

    encode_rows(rows, wire, error, max(layout.TILE, block), piece)


def int_encode_stochastic(
    rows: Rows, wire: U8, bits: int, block: int, log_scale: bool, error: F32 | None, seed: int
) -> None:  # fmt: skip
    """See :func:`thinwire.kernels.reference_int_modes.int_encode_stochastic`."""
    if _backend == "reference":
        reference_int_modes.int_encode_stochastic(rows.as_float32(), wire, bits, block, log_scale, error, seed)
        return
    _int_encode_modes(rows, wire, bits, block, log_scale, error, seed)


def int_encode_search(rows: Rows, wire: U8, bits: int, block: int, log_scale: bool, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference_int_modes.int_encode_search`."""
    if _backend == "reference":
        reference_int_modes.int_encode_search(rows.as_float32(), wire, bits, block, log_scale, error)
        return
    _int_encode_modes(rows, wire, bits, block, log_scale, error, None)


def _int_encode_modes(
    rows: Rows, wire: U8, bits: int, block: int, log_scale: bool, error: F32 | None, seed: int | None
) -> None:  # fmt: skip
    from thinwire.kernels.cpu_int_modes import int_encode_modes as kernel

    n, kind, table = rows.data.shape[1], rows.kind, layout.log_table(bits)

    def piece(noise: Noise, x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, n, a, b, bits, block, log_scale, table, e, *noise)

    encode_drawn_rows(rows, wire, error, max(layout.TILE, block), seed, piece)


def int_decode(wire: U8, out: F32, bits: int, block: int, log_scale: bool, add: bool) -> None:
    """See :func:`thinwire.kernels.reference.int_decode`."""
    if _backend == "reference":
        reference.int_decode(wire, out, bits, block, log_scale, add)
        return
    from thinwire.kernels.cpu_int import int_decode as kernel

    table = layout.log_table(bits)

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, bits, block, log_scale, table, add)

    decode_rows(wire, out, max(layout.TILE, block), piece)


def minmax_encode(rows: Rows, wire: U8, bits: int, block: int, error: F32 | None, seed: int | None = None) -> None:
    """See :func:`thinwire.kernels.reference.minmax_encode`."""
    if _backend == "reference":
        reference.minmax_encode(rows.as_float32(), wire, bits, block, error, seed)
        return
    from thinwire.kernels.cpu_minmax import minmax_encode as kernel

    n, kind = rows.data.shape[1], rows.kind
    if block > layout.TILE:
        for i, row in enumerate(rows.data):
            wire[i, : 8 * -(-n // block)].view(np.float32).reshape(-1, 2)[...] = long_ranges(row.view(np.uint8), kind, n, block)

    def piece(noise: Noise, x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, n, a, b, bits, block, e, *noise)

    encode_drawn_rows(rows, wire, error, layout.TILE, seed, piece)


def long_ranges(x: U8, kind: int, n: int, block: int) -> F32:
    """Smallest and largest of the blocks of a row that are longer than a tile: (blocks, 2); NaN twice if one is not finite."""
    found = [_long_range(x, kind, start, min(start + block, n)) for start in range(0, n, block)]
    return np.array(found, dtype=np.float32)


def _long_range(x: U8, kind: int, start: int, stop: int) -> tuple[Any, Any]:
    """Smallest and largest of elements [start, stop), found in pieces; NaN twice if one is not finite."""
    from thinwire.kernels.cpu_minmax import minmax_range as kernel

    parts: list[F32] = []

    def piece(a: int, b: int) -> None:
        part = np.empty(2, dtype=np.float32)
        kernel(x, kind, start + a, start + b, part)
        parts.append(part)

    in_pieces(piece, stop - start, layout.TILE)
    found = np.stack(parts)
    # minimum and maximum hand the NaN of any piece on.
    return np.minimum.reduce(found[:, 0]), np.maximum.reduce(found[:, 1])


def minmax_decode(wire: U8, out: F32, bits: int, block: int, add: bool) -> None:
    """See :func:`thinwire.kernels.reference.minmax_decode`."""
    if _backend == "reference":
        reference.minmax_decode(wire, out, bits, block, add)
        return
    from thinwire.kernels.cpu_minmax import minmax_decode as kernel

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, bits, block, add)

    decode_rows(wire, out, layout.TILE, piece)


def bf16_encode(rows: Rows, wire: U8, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference.bf16_encode`."""
    if _backend == "reference":
        reference.bf16_encode(rows.as_float32(), wire, error)
        return
    from thinwire.kernels.cpu_cast import bf16_encode as kernel

    kind = rows.kind

    def piece(x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, a, b, e)

    encode_rows(rows, wire, error, layout.TILE, piece)


def bf16_decode(wire: U8, out: F32, add: bool) -> None:
    """See :func:`thinwire.kernels.reference.bf16_decode`."""
    if _backend == "reference":
        reference.bf16_decode(wire, out, add)
        return
    from thinwire.kernels.cpu_cast import bf16_decode as kernel

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, add)

    decode_rows(wire, out, layout.TILE, piece)


def f16_encode(rows: Rows, wire: U8, block: int, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference.f16_encode`."""
    if _backend == "reference":
        reference.f16_encode(rows.as_float32(), wire, block, error)
        return
    from thinwire.kernels.cpu_cast import f16_encode as kernel

    n, kind = rows.data.shape[1], rows.kind

    def piece(x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, n, a, b, block, e)

    encode_rows(rows, wire, error, layout.TILE, piece)


def f16_decode(wire: U8, out: F32, block: int, add: bool) -> None:
    """See :func:`thinwire.kernels.reference.f16_decode`."""
    if _backend == "reference":
        reference.f16_decode(wire, out, block, add)
        return
    from thinwire.kernels.cpu_cast import f16_decode as kernel

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, block, add)

    decode_rows(wire, out, layout.TILE, piece)


def raw_encode(rows: Rows, wire: U8, error: F32 | None) -> None:
    """fp32 as it is: a copy on every backend."""
    n = rows.data.shape[1]
    wire[:, : 4 * n].view(np.float32)[...] = rows.data if rows.kind == FLOAT32 else rows.as_float32()
    if error is not None:
        error[...] = 0


def raw_decode(wire: U8, out: F32, add: bool) -> None:
    values = wire[:, : 4 * out.shape[1]].view(np.float32)
    reference.deliver(values, out, add)
