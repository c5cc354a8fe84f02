"""How a link's numbers become those of a token bucket, and the arithmetic of a wire that takes time. No side effects."""

from __future__ import annotations

import dataclasses
import random
from typing import Final

from thinwire.lab.topology import Link

_LARGEST_PACKET: Final = 65536
_UP_QUEUE_SECONDS: Final = 0.2
_DOWN_QUEUE_SECONDS: Final = 0.01
_RELAY_QUEUE_SECONDS: Final = 0.05
"""Routers of long links have long queues; and packets that gather while the relay's machine stalls must not be lost."""
_DOWN_QUEUE_LEAST: Final = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """A token bucket filter: ``rate`` bytes/s, ``burst`` and ``limit`` bytes; ``gso`` is the largest packet handed to it.

    The burst is what passes at once after a pause. A large one flatters senders that pause; with a small one, a machine
    whose timers are late loses rate.
    """

    rate: int
    burst: int
    limit: int
    gso: int


def up(link: Link, mtu: int, burst: float) -> Bucket:
    """The host's own side: its queue holds back the sender's sockets, as a network card's does."""
    return _bucket(link, mtu, burst, _UP_QUEUE_SECONDS)


def down(link: Link, mtu: int, burst: float) -> Bucket:
    """The switch's port: a queue of 10 ms or 1 MiB; what does not fit is lost, as when many send to one."""
    return _bucket(link, mtu, burst, _DOWN_QUEUE_SECONDS)


def _bucket(link: Link, mtu: int, burst: float, seconds: float) -> Bucket:
    rate = link.rate / 8
    gso = int(min(_LARGEST_PACKET, max(mtu, rate * burst)))
    # A packet larger than the bucket never passes; its headers count too.
    size = int(max(gso * 1.02 + 128, rate * burst))
    return Bucket(rate=int(rate), burst=size, limit=int(max(_DOWN_QUEUE_LEAST, rate * seconds)), gso=gso)


class Port:
    """The switch's port to a host in time: packets leave one after another at the link's rate and arrive ``delay`` later.

    Jitter is uniform and keeps the order, as queues on a path do. Times are seconds of any clock that rises.
    """

    def __init__(self, link: Link, seed: int) -> None:
        self._random = random.Random(seed)
        self._free = 0.0
        self._last = 0.0
        self.set_link(link)

    def set_link(self, link: Link) -> None:
        self.link = link
        self._rate = link.rate / 8
        self._queue = max(_DOWN_QUEUE_LEAST, self._rate * _RELAY_QUEUE_SECONDS)

    def arrival(self, now: float, size: int) -> float | None:
        """When a packet of ``size`` bytes that is here ``now`` reaches the host; None if the queue is full."""
        start = max(now, self._free)
        if (start - now) * self._rate + size > self._queue + _LARGEST_PACKET:
            return None
        self._free = start + size / self._rate
        jitter = self._random.uniform(-self.link.jitter, self.link.jitter) if self.link.jitter else 0.0
        # The uplink's bucket has spent the time of a packet already: what leaves here is what leaves there, cut through.
        self._last = max(self._last, start + self.link.delay + jitter)
        return self._last

    def lost(self, packets: int) -> list[int]:
        """Which of ``packets`` are lost, each by itself."""
        if not self.link.loss:
            return []
        return [k for k in range(packets) if self._random.random() < self.link.loss]
