"""N ranks of :class:`OneBitAdam` in one process: a replica and an optimizer each, which run the code of real ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from thinwire.collective.simulated import SimulatedGroup
from thinwire.metrics import Stats
from thinwire.optim.one_bit_adam import OneBitAdam
from thinwire.training.share import Share


class SimulatedOneBitAdam:
    """The ranks; ``models`` are the replicas, of which the first is the caller's model."""

    def __init__(self, model: nn.Module, ranks: int, **options: Any) -> None:
        """``options`` as of :class:`OneBitAdam`, without ``params``, ``model`` and ``group``. Raises ConfigError as it does."""
        self.ranks = ranks
        self._group = SimulatedGroup(ranks)
        self.models = [model, *(copy.deepcopy(model) for _ in range(ranks - 1))]
        pairs = zip(self.models, self._group.peers, strict=True)
        self.optimizers = [OneBitAdam(one.parameters(), group=peers, **options) for one, peers in pairs]
        self.nmse = 0.0
        """Of the last step: squared error of the mean momentum by the squared mean (residuals are not part of it)."""
        self.identical = True
        """Whether all replicas have had the same bits after every step."""

    @property
    def optimizer(self) -> OneBitAdam:
        """The first rank's, for schedules of the learning rate: the others follow its groups."""
        return self.optimizers[0]

    @property
    def share(self) -> Share:
        """As an optimizer's."""
        return self.optimizer.share

    def stats(self) -> list[Stats]:
        """What each rank sent and received since the last call. Seconds are those of threads that share the processor."""
        return [one.stats() for one in self.optimizers]

    def backward(self, loss_of: Callable[[int], torch.Tensor]) -> list[float]:
        """The gradients of all ranks: ``loss_of(rank)``, from the rank's model, and backward. Returns the losses.

        Buffers are the first rank's before each step, as in DDP.
        """
        with torch.no_grad():
            for other in self.models[1:]:
                for buffer, value in zip(other.buffers(), self.models[0].buffers(), strict=True):
                    buffer.copy_(value)
        losses: list[float] = []
        for rank, optimizer in enumerate(self.optimizers):
            optimizer.zero_grad()
            loss = loss_of(rank)
            loss.backward()
            losses.append(loss.item())
        return losses

    def step(self) -> None:
        """A step of all ranks."""
        for optimizer in self.optimizers[1:]:
            for group, first in zip(optimizer.param_groups, self.optimizer.param_groups, strict=True):
                group |= {name: value for name, value in first.items() if name != "params"}
        wanted = self._exact_momentum()
        self._group.run(lambda rank: self.optimizers[rank].step())
        if self.optimizer.finite:
            self.nmse = float((self._momentum(self.optimizer) - wanted).square().sum() / wanted.square().sum().clamp_min(1e-300))
        first = _flat(self.models[0].parameters())
        self.identical = self.identical and all(_same_bits(first, _flat(one.parameters())) for one in self.models[1:])

    def _exact_momentum(self) -> torch.Tensor:
        """What the momentum would be after this step if nothing were lost."""
        parts: list[torch.Tensor] = []
        every = zip(*map(_parameters, self.optimizers), strict=True)
        for number, replicas in enumerate(every):
            p, group = replicas[0], _groups(self.optimizer)[number]
            gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in replicas]
            mean = torch.stack(gradients).double().mean(0)
            if not group["decoupled"]:
                mean += group["weight_decay"] * p.detach()
            before, beta = self.optimizer.state[p].get("exp_avg", torch.zeros_like(p)), group["betas"][0]
            parts.append((beta * before + (1 - beta) * mean).reshape(-1))
        return torch.cat(parts)

    def _momentum(self, optimizer: OneBitAdam) -> torch.Tensor:
        states = [(p, optimizer.state[p]) for p in _parameters(optimizer)]
        return torch.cat([state.get("exp_avg", torch.zeros_like(p)).double().reshape(-1) for p, state in states])


def _parameters(optimizer: OneBitAdam) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _groups(optimizer: OneBitAdam) -> list[dict[str, Any]]:
    """The group of each parameter."""
    return [group for group in optimizer.param_groups for _ in group["params"]]


def _flat(parameters: Any) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in parameters])


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
