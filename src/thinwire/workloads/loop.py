"""The training loop of all workloads: runs of several codecs side by side on one rank, and what came of them."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import struct
import time
from collections.abc import Generator, Sequence
from typing import Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.collective.transport import of
from thinwire.metrics import Stats
from thinwire.policy.choice import Choice, short
from thinwire.training.ddp import Handle, compress
from thinwire.workloads.base import Workload

WARM_UP_STEPS: Final = 3
"""Steps at the start that are not timed: compilation, and DDP's bucket rebuild after the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What to train: ``steps`` ends the run early, after so many."""

    codec: Choice
    epochs: int
    seed: int
    steps: int | None = None
    feedback: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a run; keys of the JSON rows. Times in ms: medians over the steps after the warm-up (step: of rank 0; exposed:
    of the rank that was ready last), and means of rank 0 (encode, wire, decode)."""

    workload: str
    codec: str
    bits_per_element: float
    """Payload bits sent, by 2(N-1)/N of the gradient elements: both legs, uncompressed parameters included."""
    ranks: int
    epochs: int
    """As asked for; ``steps`` says how many were trained."""
    steps: int
    seed: int
    wire_bytes_per_step: float
    """Payload bytes that one rank sends a step."""
    exposed_ms: float
    step_ms: float
    encode_ms: float
    """Means a step of the communication thread, most of it behind backward: encoding, waiting for messages, decoding."""
    wire_ms: float
    decode_ms: float
    loss: float
    """Mean loss over the test or validation set."""
    accuracy: float
    train_loss: float
    """Loss of the last step, mean over the ranks."""
    parameters: int
    replicas_identical: bool


class Report:
    """Hears how a run goes; this one keeps it to itself."""

    def started(self, summary: str) -> None:
        """``summary`` says what goes compressed."""

    def step(self, step: int, total: int, loss: float) -> None:
        """Called after each step with its number, their count, and this rank's loss."""


class _Tally:
    """Step times, traffic and exposed times after the warm-up."""

    def __init__(self, handle: Handle) -> None:
        self.handle, self.seconds = handle, list[float]()
        self._warm_up: list[Stats] = []
        self._steps: list[Stats] = []

    def step(self, number: int, seconds: float) -> None:
        if number > WARM_UP_STEPS:
            self.seconds.append(seconds)
        (self._steps if number > WARM_UP_STEPS else self._warm_up).append(self.handle.stats())

    def stats(self) -> list[Stats]:
        """Of each step; of the warm-up itself if the run was no longer than that."""
        return self._steps or self._warm_up

    def mean(self, name: str) -> float:
        return statistics.fmean(getattr(one, name) for one in self.stats())

    def exposed(self) -> float:
        """Median over the steps of the least of all ranks' exposed seconds: what is left once the slowest rank is ready."""
        mine = [one.exposed_seconds for one in self.stats()]
        everyone = [struct.unpack(f"<{len(mine)}d", part) for part in of().gather_bytes(struct.pack(f"<{len(mine)}d", *mine))]
        return statistics.median(map(min, zip(*everyone, strict=True)))

    def step_ms(self) -> float:
        return 1e3 * statistics.median(self.seconds) if self.seconds else float("nan")


def train(workload: Workload, runs: Sequence[Run], reports: Sequence[Report] | None = None) -> list[Result]:
    """Train each run on all ranks of the default process group; every rank gets the same results but for its times.

    Runs take turns, a step each, so that a machine that slows down slows all of them and their times compare.
    """
    going = [_steps(workload, run, report) for run, report in zip(runs, reports or [Report()] * len(runs), strict=True)]
    results: dict[int, Result] = {}
    while len(results) < len(runs):
        for number, one in enumerate(going):
            try:
                next(one)
            except StopIteration as end:
                results.setdefault(number, end.value)
    return [results[number] for number in range(len(runs))]


def _steps(workload: Workload, run: Run, report: Report) -> Generator[None, None, Result]:
    """One run: yields after each step."""
    transport = of()
    torch.manual_seed(run.seed)
    model = DistributedDataParallel(workload.model())
    handle = compress(model, run.codec, feedback=run.feedback)
    report.started(handle.summary())
    optimizer = workload.optimizer(model)
    total = min(run.steps or 1 << 62, run.epochs * workload.steps(transport.size))
    # To zero over the run, so that the result is not the noise of the last few steps.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total)
    tally, done, loss = _Tally(handle), 0, torch.tensor(0.0)
    for epoch in range(run.epochs):
        for inputs, targets in workload.batches(epoch, run.seed, transport.rank, transport.size):
            if done == total:
                break
            start = time.perf_counter()
            loss = workload.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
            tally.step(done, time.perf_counter() - start)
            report.step(done, total, loss.item())
            yield
    handle.remove()
    held_loss, accuracy = evaluate(workload, model)
    elements = sum(p.numel() for p in model.parameters())
    return Result(
        workload=workload.name,
        codec=short(run.codec),
        bits_per_element=effective_bits(tally.mean("bytes_sent"), elements, transport.size, handle.share.bits_per_element),
        ranks=transport.size,
        epochs=run.epochs,
        steps=done,
        seed=run.seed,
        wire_bytes_per_step=tally.mean("bytes_sent"),
        exposed_ms=1e3 * tally.exposed(),
        step_ms=tally.step_ms(),
        encode_ms=1e3 * tally.mean("encode_seconds"),
        wire_ms=1e3 * tally.mean("wire_seconds"),
        decode_ms=1e3 * tally.mean("decode_seconds"),
        loss=held_loss,
        accuracy=accuracy,
        train_loss=_mean(loss.item()),
        parameters=elements,
        replicas_identical=replicas_identical(model),
    )


def replicas_identical(model: nn.Module) -> bool:
    """Whether all ranks hold the same bits in every parameter and buffer, by SHA-256."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return len(set(of().gather_bytes(digest.digest()))) == 1


def effective_bits(sent: float, elements: int, ranks: int, nominal: float) -> float:
    """Payload bits by 2(N-1)/N of the gradient elements, from the bytes that a rank sends a step; ``nominal`` if none."""
    if ranks == 1 or not sent:
        return nominal
    return 8 * sent / (elements * 2 * (ranks - 1) / ranks)


def evaluate(workload: Workload, model: nn.Module) -> tuple[float, float]:
    """Loss and accuracy over the held-out set, each rank computing its part."""
    transport = of()
    mine = held_out_sums(workload, model, transport.rank, transport.size)
    parts = [struct.unpack("<3d", part) for part in transport.gather_bytes(struct.pack("<3d", *mine))]
    loss, right, count = (sum(column) for column in zip(*parts, strict=True))
    return loss / count, right / count


def held_out_sums(workload: Workload, model: nn.Module, rank: int, ranks: int) -> tuple[float, float, float]:
    """A rank's part of the held-out set: the sum of the losses, how many targets were met, and how many there are."""
    loss, right, count = 0.0, 0.0, 0.0
    with torch.no_grad():
        for inputs, targets in workload.held_out(rank, ranks):
            outputs = model(inputs)
            loss += workload.loss(outputs, targets).item() * targets.numel()
            right += (outputs.argmax(-1) == targets).sum().item()
            count += targets.numel()
    return loss, right, count


def _mean(value: float) -> float:
    return statistics.fmean(struct.unpack("<d", part)[0] for part in of().gather_bytes(struct.pack("<d", value)))
