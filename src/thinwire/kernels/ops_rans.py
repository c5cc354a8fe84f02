"""The entropy coder over one row of packed codes: the sizes of the chunks, then the chunks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thinwire.errors import WireError
from thinwire.kernels import layout, ops, reference, reference_rans
from thinwire.kernels.layout_rans import CHUNK, chunks, slot_bytes, stream_capacity
from thinwire.kernels.threads import in_pieces

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


def rans_encode(packed: U8, n: int, bits: int, out: U8) -> int:
    """Code ``n`` packed codes to the front of ``out``, which has ``stream_capacity(n, bits)`` bytes; returns how many it took."""
    if ops.backend() == "reference":
        stream = reference_rans.encode(reference.unpack(packed[None], n, bits)[0].astype(np.uint8), bits)
        out[: stream.size] = stream
        return stream.size
    from thinwire.kernels.cpu_rans import rans_encode as kernel

    head, slot = 4 * chunks(n), slot_bytes(bits)
    sizes = np.empty(chunks(n), dtype=np.uint32)
    body = out[head : stream_capacity(n, bits)]
    in_pieces(lambda start, stop: kernel(packed, n, bits, start, stop, slot, body, sizes), n, CHUNK)
    at = head
    for k, size in enumerate(sizes.tolist()):
        out[at : at + size] = body[k * slot : k * slot + size]
        at += size
    out[:head] = sizes.astype("<u4").view(np.uint8)
    return at


def chunk_places(data: U8, n: int) -> I64:
    """Where each chunk of ``data`` starts, and where the last ends. Raises WireError if that is not within ``data``."""
    head = 4 * chunks(n)
    if data.size < head:
        raise WireError(f"entropy-coded row has {data.size} bytes; the sizes of its chunks alone have {head}")
    places = np.empty(chunks(n) + 1, dtype=np.int64)
    places[0] = head
    np.cumsum(np.ascontiguousarray(data[:head]).view("<u4"), dtype=np.int64, out=places[1:])
    places[1:] += head
    if places[-1] > data.size:
        raise WireError(f"entropy-coded row has {data.size} bytes; the sizes of its chunks say {places[-1]}")
    return places


def rans_decode(data: U8, places: I64, n: int, bits: int, packed: U8) -> None:
    """The inverse of :func:`rans_encode`, chunks at :func:`chunk_places`. Raises WireError for a damaged chunk."""
    if ops.backend() == "reference":
        codes = reference_rans.decode(data, places, n, bits)
        packed[: layout.code_bytes(n, bits)] = reference.pack(codes[None], bits)[0]
        return
    from thinwire.kernels.cpu_rans import rans_decode as kernel

    faults = np.zeros(chunks(n), dtype=np.uint8)
    in_pieces(lambda start, stop: kernel(data, places, n, bits, start, stop, packed, faults), n, CHUNK)
    if faults.any():
        first = int(np.flatnonzero(faults)[0])
        raise reference_rans.damaged(first, int(faults[first]))
