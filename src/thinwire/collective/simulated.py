"""All ranks of a group in one process: threads that hand each other messages, so that collectives run as on real ranks.

Results have the same bits as those of real ranks: a rank adds what arrives in the order in which it waits, not in the order of
arrival. The sum without compression is gloo's ring, addition by addition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import torch

from thinwire.collective.base import Link, Pending
from thinwire.errors import ConfigError, TransportError

MOST_RANKS: Final = 1024
NO_LINK: Final = Link(rate=float("inf"), round_trip=0.0)
_GLOO_SEGMENT: Final = 1 << 20
T = TypeVar("T")


class SimulatedGroup:
    """``size`` ranks, a thread each while :meth:`run` runs. ``link`` paces segments; results do not depend on it."""

    def __init__(self, size: int, link: Link = NO_LINK) -> None:
        """Raises ConfigError for a size out of range."""
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_RANKS:
            raise ConfigError(f"ranks={size!r} is out of range; allowed: 1 to {MOST_RANKS}")
        self.size = size
        self.boxes: list[list[SimpleQueue[torch.Tensor | None]]] = [[SimpleQueue() for _ in range(size)] for _ in range(size)]
        """What rank i has sent to rank j and j has not taken yet; None says that a rank has failed."""
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size
        self.total = torch.empty(0)
        self.barrier = threading.Barrier(size, self._sum)
        self.peers = [SimulatedPeers(self, rank, link) for rank in range(size)]
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="thinwire-rank")
        self._broken = False

    def run(self, task: Callable[[int], T]) -> list[T]:
        """What ``task(rank)`` returns on every rank, all at once. Raises what a rank raised; the group is of no use then."""
        if self._broken:
            raise TransportError("a rank of this simulated group has failed before; allowed: a new group")
        if self.size == 1:
            return [task(0)]
        futures = [self._threads.submit(self._guarded, task, rank) for rank in range(self.size)]
        wait(futures)
        errors = [error for one in futures if (error := one.exception()) is not None]
        if errors:
            raise next((one for one in errors if not isinstance(one, (_Left, threading.BrokenBarrierError))), errors[0])
        return [one.result() for one in futures]

    def _guarded(self, task: Callable[[int], T], rank: int) -> T:
        try:
            return task(rank)
        except BaseException:  # whatever it was, the others must not wait for this rank
            self._broken = True
            self.barrier.abort()
            for box in self.boxes[rank]:
                box.put(None)
            raise

    def _sum(self) -> None:
        """Runs on one rank while all others are at the barrier."""
        self.total = ring_sum(self.parts)


class SimulatedPeers:
    """The group as one of its ranks sees it: ``Peers`` of collective/base.py."""

    def __init__(self, group: SimulatedGroup, rank: int, link: Link) -> None:
        self.rank, self.size, self.link = rank, group.size, link
        self._group = group

    @property
    def fixed_sizes(self) -> bool:
        return False

    def exchange(
        self, send: torch.Tensor | None, to: int, receive: torch.Tensor | None, source: int,
        measure: Callable[[memoryview], int] | None = None,
    ) -> Pending:  # fmt: skip
        """``measure`` is not needed: messages are handed over whole."""
        if send is not None:
            self._group.boxes[self.rank][to].put(send.clone())
        return _Arrival(self._group.boxes[source][self.rank], receive, source)

    def all_reduce_sum(self, tensor: torch.Tensor) -> Pending:
        return _Sum(self._group, self.rank, tensor)


class _Arrival:
    """A message of another rank, for ``receive``; nothing if that is None."""

    def __init__(self, box: SimpleQueue[torch.Tensor | None], receive: torch.Tensor | None, source: int) -> None:
        self._box, self._receive, self._source = box, receive, source

    def wait(self) -> None:
        if self._receive is None:
            return
        data = self._box.get()
        if data is None:
            raise _Left(f"rank {self._source} has failed")
        self._receive[: data.numel()].copy_(data)


class _Sum:
    """An all-reduce that starts and ends when all ranks wait for it."""

    def __init__(self, group: SimulatedGroup, rank: int, tensor: torch.Tensor) -> None:
        self._group, self._rank, self._tensor = group, rank, tensor

    def wait(self) -> None:
        if self._group.size > 1:
            self._group.parts[self._rank] = self._tensor
            self._group.barrier.wait()
            self._tensor.copy_(self._group.total)


class _Left(TransportError):
    """Another rank's failure, as seen from here."""


def ring_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of flat tensors with the bits that gloo's ring all-reduce gives (gloo/allreduce.cc, ``ring``).

    The tensor is cut into as many chunks as there are parts. Chunk c starts as that of rank c - 1 and travels down the ranks to
    rank c, each of which adds its own. A chunk is a number of segments of at most 1 MiB, two or more.
    """
    ranks, first = len(parts), parts[0]
    n, most = first.numel(), _GLOO_SEGMENT // first.element_size()
    # gloo counts bytes; rounded up to elements, that is the same as to count elements.
    a_chunk = -(-max(-(-n // most), 2 * ranks) // ranks)
    chunk = a_chunk * -(-n // (a_chunk * ranks))
    total = torch.empty_like(first)
    for c in range(ranks):
        span = slice(min(c * chunk, n), min((c + 1) * chunk, n))
        target: Any = total[span]
        target.copy_(parts[c - 1][span])
        for step in range(2, ranks + 1):
            target.add_(parts[(c - step) % ranks][span])
    return total
