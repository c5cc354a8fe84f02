"""OneBitAdam on real ranks: with DDP and without, the bits of the simulation, checkpoints, overflows, failures."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from thinwire.optim import OneBitAdam, ZeroOne
from thinwire.optim.simulated import SimulatedOneBitAdam
from thinwire.workloads.gpt import Gpt, GptConfig
from thinwire.workloads.loop import replicas_identical

TINY = GptConfig(layers=1, heads=2, width=32, context=16)
OPTIONS = {"lr": 3e-3, "betas": (0.9, 0.99), "weight_decay": 0.1, "freeze_step": 4, "codec": "int2"}


def network() -> nn.Module:
    torch.manual_seed(7)
    return Gpt(TINY)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    tokens = torch.randint(256, (2, TINY.context + 1), generator=torch.Generator().manual_seed(100 * step + rank))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class Job:
    def __init__(self, rank: int, ddp: bool = True, **fields) -> None:
        self.rank, model = rank, network()
        self.model = DistributedDataParallel(model, bucket_cap_mb=0.02) if ddp else model
        self.optimizer = OneBitAdam(self.model.parameters(), model=self.model if ddp else None, **(OPTIONS | fields))

    def step(self, number: int, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        (loss_of(self.model, self.rank, number) * factor).backward()
        self.optimizer.step()


def _trained(rank: int, ddp: bool, fields: dict) -> tuple[torch.Tensor, int, bool]:
    job = Job(rank, ddp, **fields)
    for number in range(9):
        job.step(number)
    return flat(job.model), job.optimizer.stats().bytes_sent, replicas_identical(job.model)


def _simulated(_: int, ranks: int, fields: dict) -> tuple[torch.Tensor, bool]:
    simulation = SimulatedOneBitAdam(network(), ranks, **(OPTIONS | fields))
    for number in range(9):
        simulation.backward(lambda rank, number=number: loss_of(simulation.models[rank], rank, number))
        simulation.step()
    return flat(simulation.models[0]), simulation.identical


@pytest.mark.parametrize(
    ("ranks", "ddp", "fields"),
    [
        (2, True, {}),
        (2, True, {"variance_update": ZeroOne(scaler=1), "freeze_step": 100, "feedback": "average:0.5"}),
        (2, False, {"codec": "int4", "feedback": "decay:0.9", "decoupled": False}),
        (3, False, {"bias_correction": False, "floor": 0.0}),
    ],
)
def test_real_ranks_have_the_bits_of_simulated_ones(ranks, ddp, fields):
    every = real.run(_trained, ranks, ddp, fields)
    ((simulated, identical),) = real.run(_simulated, 1, ranks, fields)
    assert identical
    assert all(same for _, _, same in every)
    for weights, _, _ in every:
        assert torch.equal(weights, simulated)


def test_compressed_steps_send_few_bytes():
    ((_, warm, _), _), ((_, whole, _), _) = (real.run(_trained, 2, True, {"freeze_step": steps}) for steps in (9, 1))
    assert whole < 0.25 * warm


def _resumed(rank: int, ddp: bool, fields: dict) -> list[str]:
    wrong = []
    whole = Job(rank, ddp, **fields)
    for number in range(9):
        if number in (2, 6):
            saved = copy.deepcopy({"model": whole.model.state_dict(), "optimizer": whole.optimizer.state_dict(), "step": number})
            resumed = Job(rank, ddp, **fields)
            resumed.model.load_state_dict(saved["model"])
            resumed.optimizer.load_state_dict(saved["optimizer"])
            for later in range(number, 9):
                resumed.step(later)
            wrong.append(flat(resumed.model))
            resumed.optimizer.remove()
        whole.step(number)
    return [f"another trajectory from {n}" for n, one in enumerate(wrong) if not torch.equal(one, flat(whole.model))]


@pytest.mark.parametrize(
    ("ddp", "fields"),
    [(True, {}), (False, {"feedback": "average:0.9;reset=3"}), (False, {"codec": "int4;rounding=stochastic"})],
)
def test_a_resumed_run_goes_on_bit_for_bit(ddp, fields):
    assert real.run(_resumed, 2, ddp, fields) == [[], []]


def _saved(rank: int) -> dict:
    job = Job(rank)
    for number in range(6):
        job.step(number)
    return job.optimizer.state_dict()


def _more_ranks(rank: int, states: list) -> list[str]:
    job = Job(rank)
    job.optimizer.load_state_dict(states)
    mine = job.optimizer.state_dict()["thinwire"]["residuals"][f"rank{rank}"]
    parts = [one["thinwire"]["residuals"][f"rank{number}"] for number, one in enumerate(states)]
    wrong = [n for n in mine if not torch.allclose(mine[n], (parts[0][n] + parts[1][n]) / 2) or not mine[n].any()]
    job.optimizer.load_state_dict(states[0])
    alone = job.optimizer.state_dict()["thinwire"]["residuals"][f"rank{rank}"]
    return wrong + [n for n in alone if alone[n].any()]


def test_another_number_of_ranks_takes_the_mean_of_residuals():
    assert real.run(_more_ranks, 3, real.run(_saved, 2)) == [[]] * 3


def _overflow(rank: int, bad: int) -> list[str]:
    job = Job(rank)
    for number in range(bad):
        job.step(number)
    before = copy.deepcopy((flat(job.model), job.optimizer.state_dict()["thinwire"]))
    job.step(bad, float("inf") if rank == 1 else 1.0)
    after = flat(job.model), job.optimizer.state_dict()["thinwire"]
    wrong = [] if torch.equal(before[0], after[0]) and not job.optimizer.finite else ["the step was taken"]
    kept, now = before[1]["residuals"][f"rank{rank}"], after[1]["residuals"][f"rank{rank}"]
    wrong += [f"residual of {n}" for n in kept if not torch.equal(kept[n], now[n])]
    job.step(bad + 1)
    return wrong + ([] if job.optimizer.finite and replicas_identical(job.model) else ["does not recover"])


@pytest.mark.parametrize("bad", [2, 6])
def test_an_overflow_on_one_rank_is_a_step_that_no_rank_takes(bad):
    assert real.run(_overflow, 2, bad) == [[], []]


def _scaler(rank: int) -> list[str]:
    """One rank overflows in a compressed step: all scalers back off, and the run is that of one that never had the step."""

    def run(bad: bool) -> tuple[torch.Tensor, float]:
        job = Job(rank, variance_update=ZeroOne(scaler=2), freeze_step=100)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10_000)
        job.optimizer.follow(scaler)
        for number in range(8):
            if number == 4 and not bad:
                scaler.update(scaler.get_scale() / 2)
                continue
            job.optimizer.zero_grad()
            loss = loss_of(job.model, rank, number)
            scaler.scale(loss * float("inf") if number == 4 and rank == 1 else loss).backward()
            if number % 2:
                scaler.unscale_(job.optimizer)
            scaler.step(job.optimizer)
            scaler.update()
        return flat(job.model), scaler.get_scale()

    (skipped, one), (weights, other) = run(False), run(True)
    wrong = [] if one == other == 512.0 else [f"scales {one} {other}"]
    wrong += [] if torch.equal(skipped, weights) else ["not the run that skipped"]
    job = Job(rank)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(job.model, rank, 0)).backward()
    try:
        scaler.step(job.optimizer)
        wrong.append("a scaler that is not followed is no error")
    except tw.ConfigError as error:
        wrong += [] if "follow" in str(error) else [str(error)]
    return wrong


def test_scalers_stay_the_same_on_all_ranks():
    assert real.run(_scaler, 2) == [[], []]


def _loops(rank: int) -> list[str]:
    """Accumulation gives one step; a step whose gradients DDP did not average is an error while they should be exact."""
    job, wrong = Job(rank), []
    for number in range(6):
        job.optimizer.zero_grad()
        with job.model.no_sync():
            loss_of(job.model, rank, 2 * number).backward()
        loss_of(job.model, rank, 2 * number + 1).backward()
        job.optimizer.step()
    wrong += [] if replicas_identical(job.model) and job.optimizer.steps == 6 else ["accumulation"]
    other = Job(rank)
    with other.model.no_sync():
        loss_of(other.model, rank, 0).backward()
    try:
        other.optimizer.step()
        wrong.append("no error for gradients that were not averaged")
    except tw.ConfigError as error:
        wrong += [] if "no_sync" in str(error) else [str(error)]
    return wrong


def test_loops():
    assert real.run(_loops, 2) == [[], []]


def _owners(rank: int) -> list[str]:
    """One owner of a model's communication at a time; what the optimizer gives back, compress or another can take."""
    job, wrong = Job(rank), []
    attempts = {
        "compressed already": [
            lambda: tw.compress(job.model, "int8"),
            lambda: OneBitAdam(job.model.parameters(), model=job.model, freeze_step=3),
        ],
        "not in params": [lambda: OneBitAdam([DDP.module.embedding.weight], model=DDP, freeze_step=3)],
        "not in model": [lambda: OneBitAdam([*DDP.parameters(), nn.Parameter(torch.zeros(9, 99))], model=DDP, freeze_step=3)],
        "one of them": [lambda: OneBitAdam(DDP.parameters(), model=DDP, group=torch.distributed.group.WORLD, freeze_step=3)],
    }
    DDP = DistributedDataParallel(network())
    for word, acts in attempts.items():
        for act in acts:
            try:
                act()
                wrong.append(f"{word}: no error")
            except tw.ConfigError as error:
                wrong += [] if word in str(error) else [str(error)]
    for number in range(6):
        job.step(number)
    job.optimizer.remove()
    job.model.zero_grad()
    loss_of(job.model, rank, 6).backward()
    mean = job.model.module.embedding.weight.grad.clone()
    tw.all_reduce(mean, "none")
    wrong += [] if torch.allclose(mean, job.model.module.embedding.weight.grad, rtol=1e-6) else ["DDP does not average"]
    tw.compress(job.model, "int8")
    return wrong


def test_a_model_has_one_owner():
    assert real.run(_owners, 2) == [[], []]


def _disagree(rank: int, fields: list[dict]) -> str:
    try:
        Job(rank, False, **fields[rank])
    except tw.DisagreementError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([{"freeze_step": 4}, {"freeze_step": 5}], ["freeze_step=4", "freeze_step=5"]),
        ([{"codec": "int4"}, {"codec": "int2"}], ["codec=int4", "codec=int2"]),
        ([{"weight_decay": 0.1}, {"weight_decay": 0.2}], ["'weight_decay': 0.1", "'weight_decay': 0.2"]),
        ([{}, {"variance_update": "zero_one"}], ["ZeroOne(scaler=16)", "WarmUp()"]),
    ],
)
def test_ranks_agree(fields, words):
    for said in real.run(_disagree, 2, fields):
        assert all(word in said for word in words), said


def _drifted(rank: int) -> str:
    model = network()
    if rank == 1:
        with torch.no_grad():
            model.embedding.weight[3, 4] += 1
    try:
        OneBitAdam(model.parameters(), freeze_step=3)
    except tw.DisagreementError as error:
        return str(error)
    return ""


def test_replicas_start_alike():
    assert all("replicas differ" in said for said in real.run(_drifted, 2))
