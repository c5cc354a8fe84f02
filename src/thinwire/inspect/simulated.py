"""Real training steps of a built-in workload with simulated ranks: the same weights, each rank's own batch, one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from thinwire.workloads.base import Batch, Workload


def workload_of(name: str, data: Path | None) -> Workload:
    """``gpt`` or ``mnist``. Raises DataError if its data cannot be read."""
    if name == "gpt":
        from thinwire.workloads.gpt import GptWorkload

        return GptWorkload(data)
    from thinwire.workloads.mnist import Mnist

    return Mnist(data)


def gradients(workload: Workload, ranks: int, steps: int, seed: int) -> Iterator[dict[str, list[npt.NDArray[Any]]]]:
    """Of each step, each rank's gradient by the name of the parameter; then the optimizer steps with their mean."""
    torch.manual_seed(seed)
    model = workload.model()
    optimizer = workload.optimizer(model)
    parameters = dict(model.named_parameters())
    batches = zip(*(_endless(workload, seed, rank, ranks) for rank in range(ranks)), strict=True)
    for one in itertools.islice(batches, steps):
        found: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in parameters}
        for inputs, targets in one:
            optimizer.zero_grad()
            workload.loss(model(inputs), targets).backward()
            for name, parameter in parameters.items():
                assert parameter.grad is not None
                found[name].append(parameter.grad.numpy().copy())
        for name, parameter in parameters.items():
            parameter.grad = torch.stack([torch.from_numpy(x) for x in found[name]]).mean(dim=0)
        optimizer.step()
        yield found


def _endless(workload: Workload, seed: int, rank: int, ranks: int) -> Iterator[Batch]:
    for epoch in itertools.count():
        yield from workload.batches(epoch, seed, rank, ranks)
