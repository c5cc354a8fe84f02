"""A self-describing message: a header that names codec and sizes, then the same row bytes as everywhere.

    0  4s   magic "TWIR"             16  u64  elements a row
    4  u8   version (1)              24  u64  payload bytes
    5  u8   bytes of the spec        32  the codec's spec, ASCII, zero-padded to a multiple of 16
    6  u16  zero                         then rows * wire_bytes(n) payload bytes
    8  u32  rows
    12 u32  CRC-32 of the whole frame with this field zero

All little endian. docs/wire-format.md is normative.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from thinwire.codec.arrays import Array
from thinwire.codec.base import Codec
from thinwire.codec.registry import from_spec
from thinwire.errors import ConfigError, WireError
from thinwire.kernels.layout import ROW_ALIGN, round_up

MAGIC: Final = b"TWIR"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sBBHIIQQ")
_CHECKSUM_AT: Final = 12
LARGEST_ROW: Final = 1 << 60
"""Elements of the longest row that a reader takes: a frame of no rows may state any number, and arrays cannot be longer."""


class Frame(NamedTuple):
    """A frame's content: ``wire`` is (r, ``codec.wire_bytes(n)``) uint8, a view of the frame's bytes; a copy for a ``variable``
    codec, whose rows are stored without the zeros behind them."""

    codec: Codec
    n: int
    wire: npt.NDArray[np.uint8]


def dumps(rows: Array, codec: Codec, seed: int = 0) -> bytes:
    """Encode (r, n) floats and frame them. Raises ConfigError as :meth:`Codec.encode` does."""
    wire = np.asarray(codec.encode(rows, seed=seed))
    return pack(Frame(codec, int(rows.shape[1]), wire))


def loads(data: bytes | bytearray | memoryview) -> npt.NDArray[np.float32]:
    """The (r, n) float32 rows of a frame.

    Raises WireError for bytes that are not a whole, unaltered frame, and ConfigError for what is not contiguous bytes.
    """
    codec, n, wire = unpack(data)
    return np.asarray(codec.decode(wire, n))


def pack(frame: Frame) -> bytes:
    """Frame rows that are encoded already."""
    spec = frame.codec.spec().encode("ascii")
    rows = frame.wire.shape[0]
    if frame.codec.variable:
        payload = b"".join(row[: frame.codec.message_bytes(row)].tobytes() for row in frame.wire)
    else:
        payload = np.ascontiguousarray(frame.wire).tobytes()
    header = bytearray(_HEADER.pack(MAGIC, VERSION, len(spec), 0, rows, 0, frame.n, len(payload)))
    header += spec.ljust(round_up(len(spec), 16), b"\0")
    checksum = zlib.crc32(payload, zlib.crc32(header))
    struct.pack_into("<I", header, _CHECKSUM_AT, checksum)
    return bytes(header) + payload


def unpack(data: bytes | bytearray | memoryview) -> Frame:
    """Check a frame and view its rows; allocates nothing that depends on the header, before it knows that the rows are there.

    Raises WireError for truncated, extended, altered or unknown bytes, and ConfigError for what is not contiguous bytes.
    """
    try:
        view = memoryview(data).cast("B")
    except TypeError as error:
        raise ConfigError(f"data is a {type(data).__name__} ({error}); allowed: contiguous bytes") from None
    codec, n, start, size = _read_header(view)
    if len(view) != start + size:
        raise WireError(f"frame has {len(view)} bytes; its header says {start + size}")
    (stated,) = struct.unpack_from("<I", view, _CHECKSUM_AT)
    blank = zlib.crc32(bytes(4), zlib.crc32(view[:_CHECKSUM_AT]))
    actual = zlib.crc32(view[_CHECKSUM_AT + 4 :], blank)
    if stated != actual:
        raise WireError(f"frame checksum is {stated:#010x}; its bytes give {actual:#010x}")
    rows = int(struct.unpack_from("<I", view, 8)[0])
    payload = np.frombuffer(view[start:], dtype=np.uint8)
    if codec.variable and size:
        return Frame(codec, n, _padded_rows(codec, rows, n, payload))
    return Frame(codec, n, payload.reshape(rows, codec.wire_bytes(n)))


def _padded_rows(codec: Codec, rows: int, n: int, payload: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Rows that state their sizes, each with zeros behind it up to ``wire_bytes(n)``."""
    least, most, at = codec.least_bytes(n), codec.wire_bytes(n), 0
    places: list[tuple[int, int]] = []
    for row in range(rows):
        size = codec.stated_bytes(payload[at : at + ROW_ALIGN].tobytes())
        if not least <= size <= min(most, payload.size - at):
            raise WireError(f"frame row {row} says it has {size} bytes; allowed: {least} to {min(most, payload.size - at)}")
        places.append((at, at + size))
        at += size
    if at != payload.size:
        raise WireError(f"frame rows end after {at} bytes; the payload has {payload.size}")
    wire = np.zeros((rows, most), dtype=np.uint8)
    for target, (start, stop) in zip(wire, places, strict=True):
        target[: stop - start] = payload[start:stop]
    return wire


def _read_header(view: memoryview) -> tuple[Codec, int, int, int]:
    """Codec, elements a row, where the payload starts and its size: each checked against the others."""
    if len(view) < _HEADER.size:
        raise WireError(f"frame has {len(view)} bytes; a header alone has {_HEADER.size}")
    magic, version, spec_size, zero, rows, _, n, size = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise WireError(f"frame starts with {bytes(magic)!r}; allowed: {MAGIC!r}")
    if version != VERSION:
        raise WireError(f"frame has version {version}; allowed: {VERSION}")
    start = _HEADER.size + round_up(spec_size, 16)
    if zero or len(view) < start or any(view[_HEADER.size + spec_size : start]):
        raise WireError(f"frame header is damaged: {spec_size} bytes of spec in {len(view)} bytes, padding not zero")
    text = bytes(view[_HEADER.size : _HEADER.size + spec_size])
    try:
        codec = from_spec(text.decode("ascii"))
    except (ConfigError, ValueError) as error:
        raise WireError(f"frame names codec {text!r}: {error}") from None
    if n > LARGEST_ROW:
        raise WireError(f"frame says {n} elements a row; allowed: up to {LARGEST_ROW}")
    least, most = rows * codec.least_bytes(n), rows * codec.wire_bytes(n)
    if not least <= size <= most:
        have = f"{most}" if least == most else f"{least} to {most}"
        raise WireError(f"frame says {size} payload bytes; {rows} rows of {n} elements have {have}")
    return codec, n, start, size
