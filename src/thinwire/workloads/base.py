"""What a workload is: a model, its data and its optimizer, the same on every rank for the same seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import nn


class Batch(NamedTuple):
    """Inputs and targets of one step of one rank."""

    inputs: torch.Tensor
    targets: torch.Tensor


class Workload(ABC):
    """A training job that runs on any number of ranks; it knows which part of the data is a rank's."""

    name: str
    data: str
    """What it trains on, for people."""
    epochs: int
    """The default."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A fresh model; its weights come from torch's global generator."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...

    @abstractmethod
    def steps(self, ranks: int) -> int:
        """Steps of an epoch."""

    @abstractmethod
    def batches(self, epoch: int, seed: int, rank: int, ranks: int) -> Iterator[Batch]:
        """The rank's batches of an epoch."""

    @abstractmethod
    def held_out(self, rank: int, ranks: int) -> Iterable[Batch]:
        """The rank's part of the test or validation set."""

    @abstractmethod
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss over the targets."""
