"""Entry to the kernels of the randomized Hadamard transform; see ops.py."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from thinwire.kernels import layout, ops, reference, reference_hadamard, rng
from thinwire.kernels.ops import F32, Rows
from thinwire.kernels.threads import in_pieces


@lru_cache
def _roots() -> F32:
    """The square roots of the powers of two, by the power: (4097,) fp32."""
    table = np.zeros(4097, dtype=np.float32)
    for exponent in range(13):
        table[1 << exponent] = layout.hadamard_scale(1 << exponent)
    return table


def rotate(rows: Rows, out: F32, block: int, seed: int) -> None:
    """See :func:`thinwire.kernels.reference_hadamard.rotate`."""
    if ops.backend() == "reference":
        reference_hadamard.rotate(rows.as_float32(), out, block, seed)
        return
    from thinwire.kernels.cpu_hadamard import rotate as kernel

    k0, k1 = rng.keys(seed)
    for row, target in zip(rows.data, out, strict=True):
        x = row.view(np.uint8)

        def piece(a: int, b: int, x: ops.U8 = x, target: F32 = target) -> None:
            kernel(x, rows.kind, target, a, b, block, k0, k1, _roots())

        in_pieces(piece, target.size, layout.TILE)


def unrotate(y: F32, out: F32, block: int, seed: int, add: bool) -> None:
    """See :func:`thinwire.kernels.reference_hadamard.unrotate`; ``y`` is overwritten."""
    if ops.backend() == "reference":
        back = np.empty_like(y)
        reference_hadamard.unrotate(y, back, block, seed)
        reference.deliver(back, out, add)
        return
    from thinwire.kernels.cpu_hadamard import unrotate as kernel

    k0, k1 = rng.keys(seed)

    def piece(source: F32, target: F32, a: int, b: int) -> None:
        kernel(source, target, a, b, block, k0, k1, _roots(), add)

    for source, target in zip(y, out, strict=True):
        in_pieces(partial(piece, source, target), target.size, layout.TILE)
