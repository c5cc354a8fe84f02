"""Seconds to a stated accuracy or loss: thinwire's codecs beside PyTorch's own hooks, the same job on the same network.

Contestants take turns, a step each, so that a machine that slows down slows all of them. A contestant's clock runs while it
trains, not while it is evaluated; kernels are compiled before.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.bench.hooks import HOOKS, ONE_BUCKET_MB, Register
from thinwire.codec.base import Codec
from thinwire.codec.registry import short
from thinwire.collective.transport import of
from thinwire.training.ddp import compress
from thinwire.workloads.base import Workload
from thinwire.workloads.loop import WARM_UP_STEPS, evaluate, replicas_identical

COLUMNS: Final = {
    "codec": "method",
    "seconds": "seconds to target",
    "speed_up": "speed-up",
    "steps": "steps",
    "step_ms": "step ms",
    "loss": "loss",
    "accuracy": "accuracy",
    "reached": "reached",
    "replicas_identical": "replicas identical",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
    """What ends a contestant's run: an accuracy or a loss on held-out data, looked at every ``every`` steps; or ``steps``."""

    accuracy: float | None
    loss: float | None
    every: int
    steps: int

    def met(self, loss: float, accuracy: float) -> bool:
        return (self.accuracy is not None and accuracy >= self.accuracy) or (self.loss is not None and loss <= self.loss)


def race(
    workload: Workload, codecs: Sequence[Codec], goal: Goal, seed: int, progress: Callable[[str, int], None]
) -> list[dict[str, Any]]:  # fmt: skip
    """A row a contestant; every rank gets the same but for its times. ``progress`` hears each contestant's name and step."""
    contestants: dict[str, Register] = dict(HOOKS)
    for codec in codecs:
        contestants[short(codec)] = _ours(codec)
    going = {name: _run(workload, name, register, goal, seed) for name, register in contestants.items()}
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < len(going):
        for name, run in going.items():
            if name not in rows:
                try:
                    progress(name, next(run))
                except StopIteration as end:
                    rows[name] = end.value
    first = rows["DDP fp32"]["seconds"]
    for row in rows.values():
        row["speed_up"] = first / row["seconds"] if first and row["seconds"] else None
    return [rows[name] for name in going]


def _ours(codec: Codec) -> Register:
    row = torch.randn(1, 5000)
    codec.decode(codec.encode(row), 5000, out=torch.zeros_like(row), add=True)
    codec.decode(codec.encode(row), 5000)

    def register(model: DistributedDataParallel) -> None:
        compress(model, codec)

    return register


def _run(
    workload: Workload, name: str, register: Register, goal: Goal, seed: int
) -> Generator[int, None, dict[str, Any]]:  # fmt: skip
    transport = of()
    torch.manual_seed(seed)
    model = DistributedDataParallel(workload.model(), bucket_cap_mb=ONE_BUCKET_MB if name == "DDP PowerSGD" else None)
    register(model)
    optimizer = workload.optimizer(model)
    done, clock, times = 0, 0.0, list[float]()
    loss, accuracy, epoch = float("nan"), float("nan"), 0
    batches = iter(workload.batches(0, seed, transport.rank, transport.size))
    while done < goal.steps and not goal.met(loss, accuracy):
        batch = next(batches, None)
        if batch is None:
            epoch += 1
            batches = iter(workload.batches(epoch, seed, transport.rank, transport.size))
            continue
        start = time.perf_counter()
        step_loss = workload.loss(model(batch.inputs), batch.targets)
        optimizer.zero_grad()
        step_loss.backward()
        optimizer.step()
        seconds = time.perf_counter() - start
        clock, done = clock + seconds, done + 1
        if done > WARM_UP_STEPS:
            times.append(seconds)
        if done % goal.every == 0 or done == goal.steps:
            loss, accuracy = evaluate(workload, model)
        yield done
    reached = goal.met(loss, accuracy)
    return {
        "codec": name,
        "ranks": transport.size,
        "seconds": clock if reached else None,
        "steps": done,
        "step_ms": 1e3 * sorted(times)[len(times) // 2] if times else None,
        "loss": loss,
        "accuracy": accuracy,
        "reached": reached,
        "replicas_identical": replicas_identical(model),
        "seed": seed,
    }
