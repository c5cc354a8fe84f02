"""How training ends with each codec: short runs on simulated ranks, with the same data and initial weights for all of a seed.

Every run is DDP's with ``compress``, bit for bit (training/simulate.py). The learning rate rises linearly over the steps of the
warm-up, and falls linearly to zero over the run.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import nn

from thinwire.codec.cast import Raw
from thinwire.errors import ConfigError, unknown_name
from thinwire.feedback.deep_gradient import DeepGradient
from thinwire.feedback.specs import parse, spec_of
from thinwire.optim.simulated import SimulatedOneBitAdam
from thinwire.policy.choice import Choice, short
from thinwire.training.assignment import kernels_of
from thinwire.training.simulate import Simulation
from thinwire.workloads.base import Batch, Workload
from thinwire.workloads.loop import effective_bits, held_out_sums

OPTIMIZERS: Final[Mapping[str, Callable[[nn.Module, float], torch.optim.Optimizer]]] = {
    "sgd": lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr),
    "momentum": lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
    "adamw": lambda model, lr: torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1),
}

ONE_BIT_ADAM: Final = "onebit-adam"
"""AdamW's other one: it sends momenta itself, with the codec, after a warm-up of a fifth of the steps."""

LEARNING_RATES: Final[Mapping[str, Mapping[str, float]]] = {
    "mnist": {"momentum": 0.05, "sgd": 0.2, "adamw": 1e-3, ONE_BIT_ADAM: 1e-3},
    "gpt": {"adamw": 1e-3, "sgd": 0.3, "momentum": 0.03, ONE_BIT_ADAM: 1e-3},
}
"""Defaults of a workload; its first optimizer is its own, the rates of the others are not tuned (gpt diverges with sgd at 1)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What all runs of a study share; ``every`` steps, the held-out loss is computed for the curve."""

    workload: str
    data: str
    optimizer: str
    lr: float
    ranks: int
    steps: int
    batch: int
    every: int
    threads: int
    warm_up_steps: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contestant:
    """A codec and the spec of a form of feedback, or "off"."""

    codec: Choice
    feedback: str

    @property
    def label(self) -> str:
        return short(self.codec) if self.feedback == "off" else f"{short(self.codec)} {self.feedback}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One contestant with one seed. A run whose loss is no longer finite ends there."""

    seed: int
    loss: float
    """On the held-out data at the end."""
    accuracy: float
    train_loss: float
    """Of the last step, mean over the ranks."""
    nmse: float
    """Of the mean gradient (OneBitAdam: momentum) against the exact mean of what the ranks had, mean over the steps."""
    wire_bytes_per_step: float
    bits_per_element: float
    replicas_identical: bool
    seconds: float
    curve_steps: list[int]
    curve_loss: list[float]


def defaults(workload: str, optimizer: str | None) -> tuple[str, float]:
    """The workload's own optimizer if None, and a learning rate. Raises ConfigError for a name that is not known."""
    if workload not in LEARNING_RATES:
        raise unknown_name("workload", workload, LEARNING_RATES)
    rates = LEARNING_RATES[workload]
    if optimizer is not None and optimizer not in rates:
        raise unknown_name("optimizer", optimizer, rates)
    chosen = optimizer or next(iter(rates))
    return chosen, rates[chosen]


def warm_up(optimizer: str, steps: int) -> int:
    """Steps of warm-up unless asked otherwise: a tenth of them for Adam's kin, none for SGD.

    Without it Adam's first steps are the longest of all and follow single gradients: on ``gpt`` fp32 stays longer on its first
    plateau, and whatever noise there is, another seed's or a codec's, decides for how long.
    """
    return max(1, steps // 10) if optimizer in ("adamw", ONE_BIT_ADAM) else 0


def schedule(settings: Settings) -> Callable[[int], float]:
    """The factor of the learning rate in each step, counted from 0."""
    rise, steps = settings.warm_up_steps, settings.steps
    return lambda step: min(1.0, (step + 1) / (rise + 1)) * (1 - step / steps)


def forms(names: str) -> list[str]:
    """Specs of forms of feedback from a comma-separated list. Raises ConfigError for what is none, or for an empty list."""
    found = [spec_of(parse(name.strip())) for name in names.split(",") if name.strip()]
    if not found:
        raise ConfigError(
            f"feedback={names!r} is empty; allowed: off, plain, decay:0.95, average:0.9, dgc:0.9, separated by commas"
        )
    return found


def contestants(codecs: Sequence[Choice], baselines: Sequence[Choice], feedback: Sequence[str]) -> list[Contestant]:
    """The baselines without feedback, then every codec that has something to feed back with each form of it. Each once.

    Deep Gradient Compression is for sparse codecs; others do without it. Raises ConfigError if there is no sparse one.
    """
    made = [Contestant(codec=codec, feedback="off") for codec in baselines]
    for codec, form in itertools.product(codecs, feedback):
        if not _is_deep(form) or all(one.sums == "all_gather" for one in kernels_of(codec)):
            made.append(Contestant(codec=codec, feedback="off" if isinstance(codec, Raw) else form))
    if any(map(_is_deep, feedback)) and not any(_is_deep(one.feedback) for one in made):
        raise ConfigError(f"codecs={','.join(one.name for one in codecs)} and feedback=dgc: none is sparse; allowed: topk")
    return list(dict.fromkeys(made))


def check_optimizer(optimizer: str, wanted: Sequence[Contestant]) -> None:
    """Raises ConfigError for Deep Gradient Compression and an optimizer that is not SGD, with momentum or without."""
    if optimizer not in ("sgd", "momentum") and any(_is_deep(one.feedback) for one in wanted):
        raise ConfigError(f"optimizer={optimizer!r} and feedback=dgc, which has SGD's momentum; allowed: 'sgd', 'momentum'")


def train(
    workload: Workload, settings: Settings, contestant: Contestant, seed: int, progress: Callable[[int], None]
) -> Run:  # fmt: skip
    """Train once; ``progress`` hears the number of each step that is done."""
    start = time.perf_counter()
    torch.manual_seed(seed)
    model = workload.model()
    ranks, optimizer, take_step = _ranks(model, settings, contestant)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(settings))
    steps, losses, errors = list[int](), list[float](), list[float]()
    train_loss, accuracy = math.nan, math.nan
    for step, batches in enumerate(_batches(workload, seed, settings), 1):
        train_loss = statistics.fmean(ranks.backward(_loss_of(workload, ranks.models, batches)))
        take_step()
        rates.step()
        errors.append(ranks.nmse)
        ended = step == settings.steps or not math.isfinite(train_loss)
        if ended or step % settings.every == 0:
            loss, accuracy = _held_out(workload, model)
            steps.append(step)
            losses.append(loss)
        progress(step)
        if ended:
            break
    sent = statistics.fmean(one.bytes_sent for one in ranks.stats()) / steps[-1]
    return Run(
        seed=seed,
        loss=losses[-1],
        accuracy=accuracy,
        train_loss=train_loss,
        nmse=statistics.fmean(errors),
        wire_bytes_per_step=sent,
        bits_per_element=effective_bits(sent, ranks.share.total, settings.ranks, ranks.share.bits_per_element),
        replicas_identical=ranks.identical,
        seconds=time.perf_counter() - start,
        curve_steps=steps,
        curve_loss=losses,
    )


def _ranks(
    model: nn.Module, settings: Settings, contestant: Contestant
) -> tuple[Simulation | SimulatedOneBitAdam, torch.optim.Optimizer, Callable[[], object]]:
    """The ranks, the optimizer whose learning rate is set, and what takes a step of all ranks."""
    if settings.optimizer == ONE_BIT_ADAM:
        # The variance that is held must come from more than the last 20 gradients, so beta2 is not AdamW's 0.95 here.
        replicas = SimulatedOneBitAdam(
            model, settings.ranks, lr=settings.lr, betas=(0.9, 0.999), weight_decay=0.1, codec=contestant.codec,
            feedback=contestant.feedback, freeze_step=max(1, settings.steps // 5),
        )  # fmt: skip
        return replicas, replicas.optimizer, replicas.step
    # Ranks that have the momentum themselves need an optimizer without.
    name = "sgd" if _is_deep(contestant.feedback) else settings.optimizer
    optimizer = OPTIMIZERS[name](model, settings.lr)

    def step() -> None:
        optimizer.step()  # looked up each time: a schedule of the learning rate puts its own in its place

    return Simulation(model, contestant.codec, settings.ranks, contestant.feedback), optimizer, step


def _is_deep(feedback: str) -> bool:
    return isinstance(parse(feedback), DeepGradient)


def _loss_of(workload: Workload, models: Sequence[nn.Module], batches: Sequence[Batch]) -> Callable[[int], torch.Tensor]:
    return lambda rank: workload.loss(models[rank](batches[rank].inputs), batches[rank].targets)


def _batches(workload: Workload, seed: int, settings: Settings) -> Iterator[tuple[Batch, ...]]:
    """The batches of all ranks, step after step, for as many epochs as it takes."""
    for epoch in itertools.count():
        ranks = range(settings.ranks)
        yield from zip(*(workload.batches(epoch, seed, rank, settings.ranks) for rank in ranks), strict=True)


def _held_out(workload: Workload, model: nn.Module) -> tuple[float, float]:
    loss, right, count = held_out_sums(workload, model, 0, 1)
    return loss / count, right / count
