"""The entry to the kernels of ``affineB``; conventions as in :mod:`thinwire.kernels.ops`."""

from __future__ import annotations

import numpy as np

from thinwire.kernels import layout, ops, reference_affine
from thinwire.kernels.ops import F32, U8, Noise, Rows


def affine_encode(rows: Rows, wire: U8, bits: int, block: int, error: F32 | None, seed: int | None = None) -> None:
    """See :func:`thinwire.kernels.reference_affine.affine_encode`."""
    if ops.backend() == "reference":
        reference_affine.affine_encode(rows.as_float32(), wire, bits, block, error, seed)
        return
    from thinwire.kernels.cpu_affine import affine_encode as kernel
    from thinwire.kernels.cpu_affine import affine_steps

    n, kind = rows.data.shape[1], rows.kind
    if block > layout.TILE:
        for i, row in enumerate(rows.data):
            affine_steps(ops.long_ranges(row.view(np.uint8), kind, n, block).reshape(-1), wire[i], bits, seed is not None)

    def piece(noise: Noise, x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, n, a, b, bits, block, e, *noise)

    ops.encode_drawn_rows(rows, wire, error, layout.TILE, seed, piece)


def affine_decode(wire: U8, out: F32, bits: int, block: int, add: bool) -> None:
    """See :func:`thinwire.kernels.reference_affine.affine_decode`."""
    if ops.backend() == "reference":
        reference_affine.affine_decode(wire, out, bits, block, add)
        return
    from thinwire.kernels.cpu_affine import affine_decode as kernel

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, bits, block, add)

    ops.decode_rows(wire, out, layout.TILE, piece)
