"""Entry to the kernels of ``gaussB`` and ``sign1``; see ops.py."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from thinwire.kernels import layout, ops, reference_gauss
from thinwire.kernels.ops import F32, U8, Rows


@lru_cache
def _tables(bits: int) -> F32:
    """Thresholds, then levels."""
    return np.concatenate([layout.GAUSS_THRESHOLDS[bits], layout.GAUSS_LEVELS[bits]])


def gauss_encode(rows: Rows, wire: U8, bits: int, block: int, fit: int, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference_gauss.gauss_encode`."""
    if ops.backend() == "reference":
        reference_gauss.gauss_encode(rows.as_float32(), wire, bits, block, fit, error)
        return
    from thinwire.kernels.cpu_gauss import gauss_encode as kernel

    n, kind, tables = rows.data.shape[1], rows.kind, _tables(bits)

    def piece(x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, n, a, b, bits, block, fit, tables, e)

    ops.encode_rows(rows, wire, error, layout.TILE, piece)


def gauss_decode(wire: U8, out: F32, bits: int, block: int, add: bool) -> None:
    """See :func:`thinwire.kernels.reference_gauss.gauss_decode`."""
    if ops.backend() == "reference":
        reference_gauss.gauss_decode(wire, out, bits, block, add)
        return
    from thinwire.kernels.cpu_gauss import gauss_decode as kernel

    tables = _tables(bits)

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, bits, block, tables, add)

    ops.decode_rows(wire, out, layout.TILE, piece)
