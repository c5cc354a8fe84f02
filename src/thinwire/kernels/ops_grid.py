"""The entry to the kernels of ``grid``; conventions as in :mod:`thinwire.kernels.ops`."""

from __future__ import annotations

import numpy as np

from thinwire.kernels import layout, ops, reference_grid
from thinwire.kernels.ops import F32, U8, Noise, Rows


def grid_encode(
    rows: Rows, wire: U8, block: int, step: float, shrink: float, error: F32 | None, seed: int | None = None
) -> None:  # fmt: skip
    """See :func:`thinwire.kernels.reference_grid.grid_encode`."""
    if ops.backend() == "reference":
        reference_grid.grid_encode(rows.as_float32(), wire, block, step, shrink, error, seed)
        return
    from thinwire.kernels.cpu_grid import grid_encode as kernel

    n, kind = rows.data.shape[1], rows.kind

    def piece(noise: Noise, x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, n, a, b, block, np.float32(step), np.float32(shrink), e, *noise)

    ops.encode_drawn_rows(rows, wire, error, layout.TILE, seed, piece)


def grid_decode(wire: U8, out: F32, block: int, shrink: float, add: bool) -> None:
    """See :func:`thinwire.kernels.reference_grid.grid_decode`."""
    if ops.backend() == "reference":
        reference_grid.grid_decode(wire, out, block, shrink, add)
        return
    from thinwire.kernels.cpu_grid import grid_decode as kernel

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, block, np.float32(shrink), add)

    ops.decode_rows(wire, out, layout.TILE, piece)
