"""What a collective needs of the ranks that it sums over: messages in pairs, and a plain sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import torch

from thinwire.kernels.rng import mixed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """What the probe found between neighbouring ranks, the worst of all: bytes/s each way at once, and seconds."""

    rate: float
    round_trip: float


class Noise:
    """Seeds of a rank's messages: other noise on every rank and for every message."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.messages = 0
        """Seeds that were given. A checkpoint keeps it."""

    def seed(self) -> int:
        """That of the next message."""
        self.messages += 1
        return mixed(self._rank, self.messages - 1)


class Pending(Protocol):
    """Something that was started and can be waited for."""

    def wait(self) -> None: ...


class Peers(Protocol):
    """The ranks of a group as one of them sees them: processes (transport.py), or all of them in one process (simulated.py)."""

    rank: int
    size: int
    link: Link

    @property
    def fixed_sizes(self) -> bool:
        """Whether a receiver must know the bytes of a message; else the message may tell them itself."""
        ...

    def exchange(
        self, send: torch.Tensor | None, to: int, receive: torch.Tensor | None, source: int,
        measure: Callable[[memoryview], int] | None = None,
    ) -> Pending:  # fmt: skip
        """Start sending bytes to one rank and receiving from another; None moves nothing.

        ``measure``, which ``fixed_sizes`` rules out, finds in the first bytes of what arrives how many it has; at most those of
        ``receive``.
        Every rank calls this equally often; what was started first is waited for first. Both buffers belong to the exchange
        until it was waited for.
        """
        ...

    def all_reduce_sum(self, tensor: torch.Tensor) -> Pending:
        """Start the sum over all ranks of a flat tensor, in place and uncompressed."""
        ...
