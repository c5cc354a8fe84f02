"""A switch in user space, for delay, jitter and loss where the kernel has no netem: packets from each host's TUN device wait
here until they arrive at another's.

A process of its own, so that nothing else in the lab delays a packet. Segmentation offload makes packets large: few of them
carry much.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from thinwire.lab.packet import HEADER, segments, wire_size, without
from thinwire.lab.shape import Port
from thinwire.lab.topology import Link

_READ: Final = HEADER + 65536
_AT_ONCE: Final = 16
_OVERHEAD: Final = 100e-6
"""Seconds that a packet takes anyway, most of it until sleeping processes wake up; taken off the delay."""
LINK: Final = struct.Struct("<4d")
"""A changed link on the control pipe: rate, delay, jitter, loss."""


class Relay:
    """Moves packets between ``devices`` (TUN file descriptors by host, with virtio_net_hdr) until ``control`` is closed."""

    def __init__(self, devices: Sequence[int], link: Link, control: int, seed: int = 0) -> None:
        self._devices, self._control = list(devices), control
        self._ports = [Port(link, seed + host) for host in range(len(devices))]
        self._waiting: list[deque[tuple[float, bytes]]] = [deque() for _ in devices]

    def run(self) -> None:
        readable = [*self._devices, self._control]
        while True:
            ready, _, _ = select.select(readable, [], [], self._patience())
            for fd in ready:
                if fd == self._control:
                    message = os.read(fd, LINK.size)
                    if len(message) < LINK.size:
                        return
                    self._change(message)
                else:
                    self._take(fd)
            self._deliver()

    def _change(self, message: bytes) -> None:
        rate, delay, jitter, loss = LINK.unpack(message)
        for port in self._ports:
            port.set_link(Link(rate=rate, delay=delay, jitter=jitter, loss=loss))

    def _patience(self) -> float | None:
        """Seconds until the next packet arrives; None without one."""
        due = [queue[0][0] for queue in self._waiting if queue]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _take(self, device: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(device, _READ)
            except BlockingIOError:
                return
            host = packet[HEADER + 19] - 1 if len(packet) >= HEADER + 20 and packet[HEADER] >> 4 == 4 else -1
            # What is not IPv4 for a host of ours (IPv6 router solicitations, multicast) has nowhere to go.
            if 0 <= host < len(self._devices):
                self._queue(host, packet)

    def _queue(self, host: int, packet: bytes) -> None:
        port = self._ports[host]
        at = port.arrival(time.monotonic(), wire_size(packet))
        if at is None:
            return
        at -= min(_OVERHEAD, port.link.delay / 2)
        lost = port.lost(segments(packet))
        for part in without(packet, lost) if lost else (packet,):
            self._waiting[host].append((at, part))

    def _deliver(self) -> None:
        now = time.monotonic()
        for device, queue in zip(self._devices, self._waiting, strict=True):
            while queue and queue[0][0] <= now:
                try:
                    os.write(device, queue.popleft()[1])
                except BlockingIOError:
                    break
