"""The entry to all kernels: picks the backend and the number of threads. Every backend writes the same bytes.

``Rows`` hold (r, n) fp32, or fp16 and bf16 as their bits. ``wire`` is (r, wire_bytes) uint8, ``out`` and ``error``
(r, n) float32; each row is contiguous. Sizes are the caller's duty: nothing here checks them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from thinwire.errors import unknown_name
from thinwire.kernels import layout, reference
from thinwire.kernels.threads import in_pieces

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
BACKENDS: Final = ("numba", "reference")
FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
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


def _bytes(row: npt.NDArray[Any]) -> U8:
    return row.view(np.uint8)


def int_encode(rows: Rows, wire: U8, bits: int, block: int, log_scale: bool, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference.int_encode`."""
    if _backend == "reference":
        return reference.int_encode(rows.as_float32(), wire, bits, block, log_scale, error)
    from thinwire.kernels.cpu_int import int_encode as kernel

    n, table = rows.data.shape[1], layout.log_table(bits)
    for i, row in enumerate(rows.data):
        x, lost, kind = _bytes(row), _NO_ERROR if error is None else error[i], rows.kind
        in_pieces(
            lambda a, b, x=x, w=wire[i], e=lost: kernel(x, kind, w, n, a, b, bits, block, log_scale, table, e),
            n,
            max(layout.TILE, block),
        )


def int_decode(wire: U8, out: F32, bits: int, block: int, log_scale: bool, add: bool) -> None:
    """See :func:`thinwire.kernels.reference.int_decode`."""
    if _backend == "reference":
        return reference.int_decode(wire, out, bits, block, log_scale, add)
    from thinwire.kernels.cpu_int import int_decode as kernel

    table = layout.log_table(bits)
    for w, o in zip(wire, out, strict=True):
        in_pieces(
            lambda a, b, w=w, o=o: kernel(w, o, a, b, bits, block, log_scale, table, add),
            o.size,
            max(layout.TILE, block),
        )


def minmax_encode(rows: Rows, wire: U8, bits: int, block: int, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference.minmax_encode`."""
    if _backend == "reference":
        return reference.minmax_encode(rows.as_float32(), wire, bits, block, error)
    from thinwire.kernels.cpu_minmax import minmax_encode as kernel

    n = rows.data.shape[1]
    for i, row in enumerate(rows.data):
        x, lost, kind = _bytes(row), _NO_ERROR if error is None else error[i], rows.kind
        if block > layout.TILE:
            _write_long_ranges(x, kind, wire[i], n, block)
        in_pieces(
            lambda a, b, x=x, w=wire[i], e=lost: kernel(x, kind, w, n, a, b, bits, block, e),
            n,
            layout.TILE,
        )


def _write_long_ranges(x: U8, kind: int, wire: U8, n: int, block: int) -> None:
    """Bounds of the blocks that are longer than a tile, to the front of the row."""
    from thinwire.kernels.cpu_minmax import minmax_range as kernel

    bounds = wire[: 8 * -(-n // block)].view(np.float32).reshape(-1, 2)
    for i, start in enumerate(range(0, n, block)):
        parts: list[F32] = []

        def one(a: int, b: int, start: int = start, parts: list[F32] = parts) -> None:
            part = np.empty(2, dtype=np.float32)
            kernel(x, kind, start + a, start + b, part)
            parts.append(part)

        in_pieces(one, min(block, n - start), layout.TILE)
        found = np.stack(parts)
        # minimum and maximum hand a NaN of any piece on
        bounds[i] = np.minimum.reduce(found[:, 0]), np.maximum.reduce(found[:, 1])


def minmax_decode(wire: U8, out: F32, bits: int, block: int, add: bool) -> None:
    """See :func:`thinwire.kernels.reference.minmax_decode`."""
    if _backend == "reference":
        return reference.minmax_decode(wire, out, bits, block, add)
    from thinwire.kernels.cpu_minmax import minmax_decode as kernel

    for w, o in zip(wire, out, strict=True):
        in_pieces(lambda a, b, w=w, o=o: kernel(w, o, a, b, bits, block, add), o.size, layout.TILE)


def bf16_encode(rows: Rows, wire: U8, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference.bf16_encode`."""
    if _backend == "reference":
        return reference.bf16_encode(rows.as_float32(), wire, error)
    from thinwire.kernels.cpu_cast import bf16_encode as kernel

    for i, row in enumerate(rows.data):
        x, lost, kind = _bytes(row), _NO_ERROR if error is None else error[i], rows.kind
        in_pieces(lambda a, b, x=x, w=wire[i], e=lost: kernel(x, kind, w, a, b, e), row.size, layout.TILE)


def bf16_decode(wire: U8, out: F32, add: bool) -> None:
    """See :func:`thinwire.kernels.reference.bf16_decode`."""
    if _backend == "reference":
        return reference.bf16_decode(wire, out, add)
    from thinwire.kernels.cpu_cast import bf16_decode as kernel

    for w, o in zip(wire, out, strict=True):
        in_pieces(lambda a, b, w=w, o=o: kernel(w, o, a, b, add), o.size, layout.TILE)


def f16_encode(rows: Rows, wire: U8, block: int, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference.f16_encode`."""
    if _backend == "reference":
        return reference.f16_encode(rows.as_float32(), wire, block, error)
    from thinwire.kernels.cpu_cast import f16_encode as kernel

    n = rows.data.shape[1]
    for i, row in enumerate(rows.data):
        x, lost, kind = _bytes(row), _NO_ERROR if error is None else error[i], rows.kind
        in_pieces(lambda a, b, x=x, w=wire[i], e=lost: kernel(x, kind, w, n, a, b, block, e), n, layout.TILE)


def f16_decode(wire: U8, out: F32, block: int, add: bool) -> None:
    """See :func:`thinwire.kernels.reference.f16_decode`."""
    if _backend == "reference":
        return reference.f16_decode(wire, out, block, add)
    from thinwire.kernels.cpu_cast import f16_decode as kernel

    for w, o in zip(wire, out, strict=True):
        in_pieces(lambda a, b, w=w, o=o: kernel(w, o, a, b, block, add), o.size, layout.TILE)


def raw_encode(rows: Rows, wire: U8, error: F32 | None) -> None:
    """fp32 as it is: a copy on every backend."""
    n = rows.data.shape[1]
    wire[:, : 4 * n].view(np.float32)[...] = rows.data if rows.kind == FLOAT32 else rows.as_float32()
    if error is not None:
        error[...] = 0


def raw_decode(wire: U8, out: F32, add: bool) -> None:
    values = wire[:, : 4 * out.shape[1]].view(np.float32)
    if add:
        out += values
    else:
        out[...] = values
