"""Forms of feedback on real ranks: the bits of the simulation, checkpoints, overflows, and what ranks must agree on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from thinwire.training.simulate import Simulation

FORMS = ["decay:0.5", "average:0.75", "average:0.75;bits=32;reset=2", "plain;second_shot=false"]


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(33, 70), nn.LayerNorm(70), nn.ReLU(), nn.Linear(70, 51), nn.ReLU(), nn.Linear(51, 10))


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs, targets = torch.randn(16, 33, generator=generator), torch.randint(10, (16,), generator=generator)
    return nn.functional.cross_entropy(model(inputs), targets)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().view(-1) for p in model.parameters()])


class Job:
    def __init__(self, rank: int, form: str, bucket_mb: float = 0.01, codec: str = "int2") -> None:
        self.rank = rank
        self.model = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb)
        self.handle = tw.compress(self.model, codec, feedback=form)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, number: int, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        (loss_of(self.model, self.rank, number) * factor).backward()
        self.optimizer.step()


def _trained(rank: int, form: str, codec: str) -> torch.Tensor:
    job = Job(rank, form, codec=codec)
    for number in range(5):
        job.step(number)
    return weights(job.model)


def _simulated(_: int, form: str, codec: str) -> torch.Tensor:
    model = network()
    simulation = Simulation(model, codec, 3, form, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(5):
        simulation.backward(lambda rank, number=number: loss_of(model, rank, number))
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize(("form", "codec"), [*((form, "int2") for form in FORMS), ("plain", "minmax2")])
def test_real_ranks_have_the_bits_of_simulated_ones(form, codec):
    one, other, *_ = real.run(_trained, 3, form, codec)
    (simulated,) = real.run(_simulated, 1, form, codec)
    assert torch.equal(one, other)
    assert torch.equal(one, simulated)


def test_forms_differ():
    found = []
    for form in ("off", "plain", *FORMS):
        model = network()
        simulation = Simulation(model, "int2", 3, form)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            simulation.backward(lambda rank, model=model, number=number: loss_of(model, rank, number))
            optimizer.step()
        found.append(weights(model))
    assert all(not torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])


def _resumed(rank: int, form: str) -> list[str]:
    """With the same buckets the same bits; with others the same residuals; another form is refused."""
    whole = Job(rank, form)
    for number in range(7):
        if number == 3:
            saved = {
                "model": {n: v.clone() for n, v in whole.model.module.state_dict().items()},
                "handle": whole.handle.state_dict(),
            }
            momenta = [s["momentum_buffer"].clone() for s in whole.optimizer.state.values()]
        whole.step(number)
    resumed = Job(rank, form)
    resumed.model.module.load_state_dict(saved["model"])
    for p, value in zip(resumed.model.parameters(), momenta, strict=True):
        resumed.optimizer.state[p]["momentum_buffer"] = value
    resumed.handle.load_state_dict(saved["handle"])
    for number in range(3, 7):
        resumed.step(number)
    wrong = [] if torch.equal(weights(resumed.model), weights(whole.model)) else ["another trajectory"]
    other = Job(rank, form, bucket_mb=100)
    other.handle.load_state_dict(saved["handle"])
    mine, theirs = (one["residuals"][f"rank{rank}"] for one in (other.handle.state_dict(), saved["handle"]))
    wrong += [f"{n} in other buckets" for n in theirs if not torch.equal(mine[n], theirs[n]) or not theirs[n].any()]
    for refused in ("plain", "off"):
        try:
            Job(rank, refused).handle.load_state_dict(saved["handle"])
            wrong.append(f"{refused} takes it")
        except tw.ConfigError as error:
            wrong += [] if repr(form) in str(error) and repr(refused) in str(error) else [str(error)]
    return wrong


@pytest.mark.parametrize("form", FORMS[:3])
def test_a_resumed_run_goes_on_bit_for_bit(form):
    assert real.run(_resumed, 2, form) == [[], []]


def _more_ranks(rank: int, states: list) -> list[str]:
    job = Job(rank, "average:0.75")
    job.handle.load_state_dict(states)
    mine = job.handle.state_dict()["residuals"][f"rank{rank}"]
    parts = [one["residuals"][f"rank{number}"] for number, one in enumerate(states)]
    means = {n: (parts[0][n] + parts[1][n]) / 2 for n in mine}
    # The mean is stored in 8 bits again: half a step of a block's largest element.
    return [n for n in mine if (mine[n] - means[n]).abs().max() > means[n].abs().max() / 200]


def _state(rank: int) -> dict:
    job = Job(rank, "average:0.75")
    for number in range(3):
        job.step(number)
    return job.handle.state_dict()


def test_another_number_of_ranks_takes_the_mean():
    assert real.run(_more_ranks, 3, real.run(_state, 2)) == [[]] * 3


def _overflow(rank: int, form: str) -> list[str]:
    job = Job(rank, form)
    for number in range(2):
        job.step(number)
    before = job.handle.state_dict()["residuals"][f"rank{rank}"]
    job.step(2, float("nan") if rank == 1 else 1.0)
    after = job.handle.state_dict()["residuals"][f"rank{rank}"]
    wrong = [n for n in before if not torch.equal(before[n], after[n])]
    return wrong + (["finite"] if job.handle.finite else [])


@pytest.mark.parametrize("form", FORMS[:2])
def test_a_nan_on_one_rank_leaves_residuals_alone(form):
    assert real.run(_overflow, 2, form) == [[], []]


def _disagree(rank: int) -> str:
    try:
        Job(rank, "decay:0.5" if rank else "decay:0.6")
    except tw.DisagreementError as error:
        return str(error)
    return ""


def test_ranks_agree_on_the_form():
    for said in real.run(_disagree, 2):
        assert "feedback=decay:0.6" in said
        assert "feedback=decay:0.5" in said


def _exact_places(rank: int) -> list[str]:
    """A codec without a zero makes something of the places of uncompressed parameters, which nobody is owed."""
    job = Job(rank, "plain", bucket_mb=100, codec="minmax2")
    for number in range(3):
        job.step(number)
    kept = {n for n in job.handle._residuals.sizes if job.handle._residuals.of(n).any()}
    return sorted(kept)


def test_uncompressed_parameters_have_no_residual():
    assert real.run(_exact_places, 2) == [["0.weight", "3.weight", "5.weight"]] * 2


def test_uncompressed_gradients_are_exact_whatever_the_form():
    for form in ("off", "plain", "average:0.75"):
        model = network()
        simulation = Simulation(model, "minmax2", 2, form)
        for _ in range(3):
            simulation.backward(lambda rank, model=model: loss_of(model, rank, 0))
        parts = []
        for rank in range(2):
            twin = network()
            loss_of(twin, rank, 0).backward()
            parts.append(twin[0].bias.grad)
        assert torch.equal(model[0].bias.grad, (parts[0] + parts[1]) / 2)
