"""The entry to the kernels of the small floating-point formats; conventions as in :mod:`thinwire.kernels.ops`."""

from __future__ import annotations

import numpy as np

from thinwire.kernels import layout, ops, reference_float, smallfloat
from thinwire.kernels.ops import F32, U8, Rows
from thinwire.kernels.smallfloat import SmallFloat


def fp8_encode(rows: Rows, wire: U8, block: int, small: SmallFloat, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference_float.fp8_encode`."""
    if ops.backend() == "reference":
        reference_float.fp8_encode(rows.as_float32(), wire, block, small, error)
        return
    from thinwire.kernels.cpu_float import fp8_encode as kernel

    n, kind, shape, limit = rows.data.shape[1], rows.kind, small.shape, smallfloat.largest_scale(small)
    largest = np.array([small.largest], dtype=np.float32)

    def piece(x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, n, a, b, block, shape, largest, limit, e)

    ops.encode_rows(rows, wire, error, layout.TILE, piece)


def fp8_decode(wire: U8, out: F32, block: int, small: SmallFloat, add: bool) -> None:
    """See :func:`thinwire.kernels.reference_float.fp8_decode`."""
    if ops.backend() == "reference":
        reference_float.fp8_decode(wire, out, block, small, add)
        return
    from thinwire.kernels.cpu_float import fp8_decode as kernel

    shape = small.shape

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, block, shape, add)

    ops.decode_rows(wire, out, layout.TILE, piece)


def mxfp4_encode(rows: Rows, wire: U8, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference_float.mxfp4_encode`."""
    if ops.backend() == "reference":
        reference_float.mxfp4_encode(rows.as_float32(), wire, error)
        return
    from thinwire.kernels.cpu_float import mxfp4_encode as kernel

    n, kind = rows.data.shape[1], rows.kind

    def piece(x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, n, a, b, e)

    ops.encode_rows(rows, wire, error, layout.TILE, piece)


def mxfp4_decode(wire: U8, out: F32, add: bool) -> None:
    """See :func:`thinwire.kernels.reference_float.mxfp4_decode`."""
    if ops.backend() == "reference":
        reference_float.mxfp4_decode(wire, out, add)
        return
    from thinwire.kernels.cpu_float import mxfp4_decode as kernel

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, add)

    ops.decode_rows(wire, out, layout.TILE, piece)
