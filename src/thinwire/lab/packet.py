"""Large packets as the kernel hands them to a TUN device, and how some of their segments get lost.

With segmentation offload one packet is up to 64 KiB and stands for many on the wire (virtio_net_hdr, Virtual I/O Device 1.2,
5.1.6). To lose segment k of it, what is before and what is behind become large packets of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

HEADER: Final = 10
"""Bytes of virtio_net_hdr: flags, type of segmentation, length of headers, size of a segment, start and place of the checksum."""
_ETHERNET: Final = 14
_TCPV4: Final = 1
_PUSH_FIN: Final = 0x09
_CWR: Final = 0x80


def segments(packet: bytes) -> int:
    """How many packets on the wire this one stands for."""
    size = int.from_bytes(packet[4:6], "little")
    if not packet[1] or not size:
        return 1
    return -(-(len(packet) - _headers(packet)) // size)


def wire_size(packet: bytes) -> int:
    """Bytes that the packets it stands for take on the wire, Ethernet and repeated headers included."""
    count = segments(packet)
    repeated = (count - 1) * (_headers(packet) - HEADER) if count > 1 else 0
    return len(packet) - HEADER + repeated + count * _ETHERNET


def without(packet: bytes, lost: Sequence[int]) -> list[bytes]:
    """What is left of ``packet`` if the segments ``lost`` (rising) do not arrive, as packets of the same kind."""
    count = segments(packet)
    kept: list[bytes] = []
    start = 0
    for end in (*lost, count):
        if end > start:
            kept.append(packet if (start, end) == (0, count) else _slice(packet, start, end, last=end == count))
        start = end + 1
    return kept


def _headers(packet: bytes) -> int:
    """Bytes before the payload of a TCP/IPv4 packet, virtio_net_hdr included."""
    ip = 4 * (packet[HEADER] & 15)
    return HEADER + ip + 4 * (packet[HEADER + ip + 12] >> 4)


def _slice(packet: bytes, start: int, end: int, last: bool) -> bytes:
    """Segments [start, end) as a packet: sequence number, lengths, flags and checksums made to fit."""
    if packet[1] & ~_CWR != _TCPV4:
        raise ValueError(f"segmentation of type {packet[1]} is not TCP/IPv4")
    headers, size = _headers(packet), int.from_bytes(packet[4:6], "little")
    tcp = HEADER + 4 * (packet[HEADER] & 15)
    payload = packet[headers + start * size : headers + end * size]
    made = bytearray(packet[:headers])
    if end - start == 1:
        made[1:6] = struct.pack("<BHH", 0, headers - HEADER, 0)
    identity, sequence = struct.unpack_from(">H", packet, HEADER + 4)[0], struct.unpack_from(">I", packet, tcp + 4)[0]
    struct.pack_into(">H", made, HEADER + 2, headers - HEADER + len(payload))
    struct.pack_into(">H", made, HEADER + 4, (identity + start) & 0xFFFF)
    struct.pack_into(">I", made, tcp + 4, (sequence + start * size) & 0xFFFFFFFF)
    if not last:
        made[tcp + 13] &= ~_PUSH_FIN
    if start:
        made[tcp + 13] &= ~_CWR
    struct.pack_into(">H", made, HEADER + 10, 0)
    struct.pack_into(">H", made, HEADER + 10, ~_sum(bytes(made[HEADER:tcp])) & 0xFFFF)
    # The rest of the checksum is the receiver's to trust: it is that of the pseudo-header alone, as offload has it.
    pseudo = bytes(made[HEADER + 12 : HEADER + 20]) + struct.pack(">HH", 6, headers - tcp + len(payload))
    struct.pack_into(">H", made, tcp + 16, _sum(pseudo))
    return bytes(made) + payload


def _sum(data: bytes) -> int:
    """The internet checksum's ones' complement sum (RFC 1071), of an even number of bytes, not inverted."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
