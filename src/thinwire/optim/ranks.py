"""The ranks of an optimizer: those of a process group, or one of those that a process simulates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch

from thinwire.collective.base import Peers
from thinwire.collective.handshake import agree
from thinwire.collective.simulated import SimulatedPeers
from thinwire.collective.transport import Group
from thinwire.overlap import worker_of
from thinwire.training.verify import verify

T = TypeVar("T")


class Ranks(Protocol):
    """How an optimizer reaches the other ranks."""

    peers: Peers

    def run(self, task: Callable[[], T]) -> T:
        """What ``task``, which may talk to other ranks, returns or raises."""
        ...

    def agree(self, parameters: Mapping[str, torch.Tensor], facts: Mapping[str, object]) -> None:
        """Raises DisagreementError on all ranks unless they have the same ``facts``, and parameters of the same bits."""
        ...


class Connected:
    """A process group: tasks run on its worker, in order with all that the group does."""

    def __init__(self, group: Group = None, streams: int | None = None, timeout: float | None = None) -> None:
        self.transport, self.worker = worker_of(group, streams, timeout)
        self.peers: Peers = self.transport

    def run(self, task: Callable[[], T]) -> T:
        def begun() -> T:
            self.transport.watch.begin("a step of OneBitAdam")
            with torch.no_grad():
                return task()

        return self.worker.submit(begun).result()

    def agree(self, parameters: Mapping[str, torch.Tensor], facts: Mapping[str, object]) -> None:
        listing = [f"{name} {p.dtype}{list(p.shape)}" for name, p in parameters.items()]

        def task() -> None:
            agree(self.transport, "OneBitAdam", listing, **facts)
            verify(self.transport, parameters, 1)

        self.worker.submit(task).result()


class Simulated:
    """A rank of a simulated group, in a thread of its own already; all ranks are made from the same arguments."""

    def __init__(self, peers: SimulatedPeers) -> None:
        self.peers: Peers = peers

    def run(self, task: Callable[[], T]) -> T:
        return task()

    def agree(self, parameters: Mapping[str, torch.Tensor], facts: Mapping[str, object]) -> None:
        """There is nobody to disagree."""


def ranks_of(group: Group, streams: int | None, timeout: float | None) -> Ranks:
    """The ranks behind the argument ``group`` of an optimizer."""
    return Simulated(group) if isinstance(group, SimulatedPeers) else Connected(group, streams, timeout)


def names_of(parameters: Sequence[torch.Tensor], named: Mapping[str, torch.Tensor]) -> list[str]:
    """Names for messages: the model's where it has one, else the number among the optimizer's parameters."""
    known = {id(p): name for name, p in named.items()}
    return [known.get(id(p), str(number)) for number, p in enumerate(parameters)]
