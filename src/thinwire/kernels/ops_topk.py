"""The entry to the ``topk`` kernels; see :mod:`thinwire.kernels.ops`."""

from __future__ import annotations

from thinwire.kernels import layout, ops, reference_topk
from thinwire.kernels.ops import F32, U8, Rows


def topk_encode(rows: Rows, wire: U8, k: int, chunk: int, bits: int, error: F32 | None) -> None:
    """See :func:`thinwire.kernels.reference_topk.topk_encode`."""
    if ops.backend() == "reference":
        reference_topk.topk_encode(rows.as_float32(), wire, k, chunk, bits, error)
        return
    from thinwire.kernels.cpu_topk import topk_encode as kernel

    kind = rows.kind

    def piece(x: U8, w: U8, e: F32, a: int, b: int) -> None:
        kernel(x, kind, w, a, b, k, chunk, bits, e)

    ops.encode_rows(rows, wire, error, max(layout.TILE, chunk), piece)


def topk_decode(wire: U8, out: F32, k: int, chunk: int, bits: int, add: bool) -> None:
    """See :func:`thinwire.kernels.reference_topk.topk_decode`."""
    if ops.backend() == "reference":
        reference_topk.topk_decode(wire, out, k, chunk, bits, add)
        return
    from thinwire.kernels.cpu_topk import topk_decode as kernel

    def piece(w: U8, o: F32, a: int, b: int) -> None:
        kernel(w, o, a, b, k, chunk, bits, add)

    ops.decode_rows(wire, out, max(layout.TILE, chunk), piece)
