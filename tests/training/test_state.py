"""Checkpoints: the run that was interrupted has the trajectory of the one that was not, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from heard import heard


def network() -> nn.Module:
    torch.manual_seed(3)
    parts = (nn.Linear(33, 70), nn.LayerNorm(70), nn.Dropout(0.2), nn.ReLU(), nn.Linear(70, 51), nn.ReLU(), nn.Linear(51, 10))
    return nn.Sequential(*parts)


class Job:
    """A training run of one rank whose whole state can be saved."""

    def __init__(self, rank: int, bucket_mb: float, codec: str = "int4", lr: float = 0.1) -> None:
        self.rank = rank
        self.model = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb)
        self.handle = tw.compress(self.model, codec, feedback=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        torch.manual_seed(17 + rank)

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(1000 * self.rank + number)
        inputs, targets = torch.randn(16, 33, generator=generator), torch.randint(10, (16,), generator=generator)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(inputs), targets).backward()
        self.optimizer.step()

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().view(-1) for p in self.model.parameters()])

    def save(self) -> dict:
        state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        copies = {"handle": self.handle.state_dict(), "random": torch.get_rng_state()}
        return {name: _copy(value) for name, value in (state | copies).items()}

    def load(self, state: dict) -> None:
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(_copy(state["optimizer"]))
        self.handle.load_state_dict(state["handle"])
        torch.set_rng_state(state["random"])


def _copy(value):
    import copy

    return copy.deepcopy(value)


def _resume(rank: int, saved_bucket_mb: float, bucket_mb: float, codec: str = "int4") -> list[str]:
    whole = Job(rank, saved_bucket_mb, codec)
    for number in range(9):
        if number == 4:
            state = whole.save()
        whole.step(number)
    resumed = Job(rank, bucket_mb, codec)
    resumed.load(state)
    resumed.step(4)
    first = resumed.weights()
    for number in range(5, 9):
        resumed.step(number)
    again = Job(rank, saved_bucket_mb, codec)
    again.load(state)
    again.step(4)
    wrong = [] if torch.equal(first, again.weights()) else ["the first step differs with another bucket layout"]
    same = torch.equal(resumed.weights(), whole.weights())
    if saved_bucket_mb == bucket_mb and not same:
        wrong.append(f"{(resumed.weights() != whole.weights()).sum()} weights differ from the run that was not interrupted")
    if not torch.allclose(resumed.weights(), whole.weights(), atol=0.05):
        wrong.append("far from the run that was not interrupted")
    return wrong


def test_a_resumed_run_has_the_same_trajectory_bit_for_bit():
    for ranks in (2, 3):
        assert real.run(_resume, ranks, 0.01, 0.01) == [[]] * ranks


@pytest.mark.parametrize(
    "codec",
    ["0.*=int8|6.*=int2/int4|*=int4", "auto:4;every=3", "int4;rounding=stochastic", "0.bias=int8|*=int3;rounding=stochastic"],
)
def test_so_it_has_with_several_codecs_and_with_noise(codec):
    assert real.run(_resume, 2, 0.01, 0.01, codec) == [[], []]


def test_another_bucket_layout_resumes_with_the_same_first_step():
    assert real.run(_resume, 2, 0.01, 100) == [[], []]


def _without_state(rank: int) -> bool:
    whole = Job(rank, 0.01, "int2")
    for number in range(7):
        if number == 4:
            state = whole.save()
        whole.step(number)
    resumed = Job(rank, 0.01, "int2")
    resumed.load(state | {"handle": resumed.handle.state_dict()})
    for number in range(4, 7):
        resumed.step(number)
    return torch.equal(resumed.weights(), whole.weights())


def test_the_handles_state_is_what_makes_it_so():
    assert real.run(_without_state, 2) == [False, False]


def _checkpoint(rank: int, folder: str) -> list[str]:
    """Through torch.distributed.checkpoint: each rank gets its own residuals back."""
    import torch.distributed.checkpoint as dcp

    whole = Job(rank, 0.01)
    for number in range(4):
        whole.step(number)
    state = whole.save()
    dcp.save({"thinwire": whole.handle.state_dict()}, checkpoint_id=folder)
    whole.step(4)
    resumed = Job(rank, 0.01)
    template = {"thinwire": resumed.handle.state_dict()}
    dcp.load(template, checkpoint_id=folder)
    resumed.load(state | {"handle": template["thinwire"]})
    resumed.step(4)
    return [] if torch.equal(resumed.weights(), whole.weights()) else ["another trajectory"]


def test_distributed_checkpoint(tmp_path):
    assert real.run(_checkpoint, 2, str(tmp_path)) == [[], []]


def _more_ranks(rank: int, folder: str) -> list[str]:
    """A checkpoint of two ranks on three: every rank takes the mean, so that what is owed to the mean is kept."""
    import torch.distributed.checkpoint as dcp

    with heard() as lines:
        job = Job(rank, 0.01)
        state = job.handle.state_dict(ranks=2)
        dcp.load({"thinwire": state}, checkpoint_id=folder)
        job.handle.load_state_dict(state)
        (got,) = job.handle.state_dict()["residuals"].values()
        parts = list(state["residuals"].values())
        wrong = [n for n, value in got.items() if not torch.allclose(value, (parts[0][n] + parts[1][n]) / 2)]
        wrong += [] if any(value.any() for value in got.values()) else ["all residuals are zero"]
        wrong += [] if any("mean of their residuals" in line for line in lines) else [f"the log says {lines}"]
        alone = {**state, "residuals": {"rank0": parts[0]}}
        job.handle.load_state_dict(alone)
        (got,) = job.handle.state_dict()["residuals"].values()
        wrong += ["residuals are not zero"] if any(value.any() for value in got.values()) else []
        return wrong + ([] if any("start at zero" in line for line in lines) else [f"the log says {lines}"])


def test_another_world_size_keeps_what_is_owed_or_says_that_it_does_not(tmp_path):
    real.run(_checkpoint, 2, str(tmp_path))
    assert real.run(_more_ranks, 3, str(tmp_path)) == [[]] * 3


def _channels_last(rank: int) -> list[str]:
    """Residuals lie in memory as their parameter does, and are saved in its shape."""
    model = DistributedDataParallel(nn.Conv2d(8, 16, 3, bias=False).to(memory_format=torch.channels_last))
    handle = tw.compress(model, "int2", feedback=True)
    model(torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last)).square().sum().backward()
    state = handle.state_dict()
    plain = DistributedDataParallel(nn.Conv2d(8, 16, 3, bias=False))
    other = tw.compress(plain, "int2", feedback=True)
    other.load_state_dict(state)
    (saved,), (got,) = state["residuals"].values(), other.state_dict()["residuals"].values()
    wrong = [] if torch.equal(saved["weight"], got["weight"]) and saved["weight"].any() else ["the residual changed"]
    flat = handle._residuals.of("weight")
    wrong += [] if torch.equal(flat, saved["weight"].permute(0, 2, 3, 1).reshape(-1)) else ["not the order of memory"]
    return wrong


def test_memory_formats():
    assert real.run(_channels_last, 2) == [[], []]
