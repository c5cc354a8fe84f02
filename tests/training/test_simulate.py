"""Ranks of one process give the bits of real ranks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from thinwire.collective.base import Link
from thinwire.collective.simulated import SimulatedGroup, ring_sum
from thinwire.errors import ConfigError, TransportError
from thinwire.training.simulate import Simulation
from thinwire.workloads.gpt import GptConfig, GptWorkload
from thinwire.workloads.mnist import Mnist, MnistConfig

STEPS = 5
GPT = {
    "gpt": GptConfig(layers=2, heads=2, width=64, context=32, batch=2),
    "wide gpt": GptConfig(layers=1, width=256, context=16, batch=1),  # several segments a shard
}


def workload_of(name, text):
    return Mnist(None, MnistConfig(batch=8)) if name == "mnist" else GptWorkload(text, GPT[name])


def flat(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().view(-1) for p in model.parameters()]).numpy()


def optimizer_of(workload, model: nn.Module, feedback) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05) if isinstance(feedback, tw.DeepGradient) else workload.optimizer(model)


def _real(rank: int, ranks: int, name: str, text, codec: str, feedback: bool | tw.DeepGradient | None, bucket_mb: float | None):
    """This rank's losses, its weights and what it has sent."""
    workload = workload_of(name, text)
    torch.manual_seed(7)
    model = DistributedDataParallel(workload.model(), bucket_cap_mb=bucket_mb)
    handle = tw.compress(model, codec, feedback=feedback)
    # A fixed link with a long way, so that many segments are under way.
    handle.transport.link = Link(rate=1e8, round_trip=0.05)
    optimizer, losses = optimizer_of(workload, model, feedback), []
    for _, batch in zip(range(STEPS), workload.batches(0, 3, rank, ranks), strict=False):
        optimizer.zero_grad()
        loss = workload.loss(model(batch.inputs), batch.targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, flat(model), handle.stats().bytes_sent


def _simulated(_: int, ranks: int, name: str, text, codec: str, feedback: bool | tw.DeepGradient | None, bucket_mb: float | None):
    """The losses by rank, the weights, what each rank has sent, and whether all ranks had the same."""
    workload = workload_of(name, text)
    torch.manual_seed(7)
    model = workload.model()
    simulation = Simulation(model, codec, ranks, feedback, bucket_cap_mb=bucket_mb)
    optimizer, losses = optimizer_of(workload, model, feedback), []
    batches = [workload.batches(0, 3, rank, ranks) for rank in range(ranks)]
    for _, batch in zip(range(STEPS), zip(*batches, strict=True), strict=False):
        losses.append(
            simulation.backward(lambda rank, batch=batch: workload.loss(model(batch[rank].inputs), batch[rank].targets))
        )
        optimizer.step()
    sent = [one.bytes_sent for one in simulation.stats()]
    return list(map(list, zip(*losses, strict=True))), flat(model), sent, simulation.identical


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("gpt") / "text"
    words = np.random.default_rng(0).choice([b"all ", b"work ", b"and ", b"no ", b"play\n"], 20_000)
    file.write_bytes(b"".join(words))
    return file


@pytest.mark.parametrize(
    ("ranks", "name", "codec", "feedback", "bucket_mb"),
    [
        (2, "mnist", "int8", False, None),
        (2, "mnist", "int4", True, 0.1),
        (2, "gpt", "int2", True, 0.1),
        (4, "mnist", "int2", False, 0.1),
        (4, "mnist", "none", False, None),
        (4, "gpt", "int4", True, 0.05),
        (4, "gpt", "int8", True, None),
        (4, "gpt", "bf16", False, 0.1),
        (3, "gpt", "int4", False, 0.1),
        (2, "wide gpt", "int4", True, None),
        (4, "gpt", "topk", None, 0.05),
        (2, "wide gpt", "topk;k=4;chunk=4096;bits=4", tw.DeepGradient(), None),
        (3, "mnist", "topk", tw.DeepGradient(nesterov=True, clip=0.01, warm_up_steps=4), 0.1),
        (4, "gpt", "int2/int4", True, 0.05),
        (2, "gpt", "*embed*=int8|blocks.1.*=int2/int4|*=int4;rounding=stochastic", True, 0.05),
        (4, "mnist", "auto:3.5;every=2", False, 0.1),
        (2, "gpt", "auto:4;every=2", True, 0.05),
    ],
)
def test_losses_and_weights_have_the_bits_of_real_ranks(text, ranks, name, codec, feedback, bucket_mb):
    job = (ranks, name, text, codec, feedback, bucket_mb)
    theirs = real.run(_real, ranks, *job)
    ((losses, weights, sent, identical),) = real.run(_simulated, 1, *job)
    assert identical
    assert losses == [one[0] for one in theirs]
    for _, other, _ in theirs:
        np.testing.assert_array_equal(weights.view(np.int32), other.view(np.int32))
    assert sent == [one[2] for one in theirs]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 30))


def loss_of(model: nn.Module, step: int = 0):
    def loss(rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + rank)
        return model(torch.randn(8, 30, generator=generator)).square().mean()

    return loss


def local_gradients(model: nn.Module, ranks: int, step: int = 0) -> list[torch.Tensor]:
    found = []
    for rank in range(ranks):
        twin = copy.deepcopy(model)
        loss_of(twin, step)(rank).backward()
        found.append(torch.cat([p.grad.view(-1) for p in twin.parameters()]))
    return found


def gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def test_deep_gradient_needs_a_sparse_codec_and_an_optimizer_without_momentum():
    model = network()
    with pytest.raises(ConfigError, match="not sparse"):
        Simulation(model, "int4", 2, tw.DeepGradient())
    simulation = Simulation(model, "topk", 2, tw.DeepGradient())
    simulation.backward(loss_of(model))
    with pytest.raises(ConfigError, match=r"momentum=0\.9"):
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()


@pytest.mark.parametrize("codec", ["none", "int2"])
def test_one_rank_has_its_own_gradient(codec):
    model = network()
    (expected,) = local_gradients(model, 1)
    simulation = Simulation(model, codec, 1, feedback=True)
    simulation.backward(loss_of(model))
    assert torch.equal(gradient(model), expected)
    assert simulation.nmse == 0
    assert simulation.identical
    assert simulation.stats()[0].bytes_sent == 0


@pytest.mark.parametrize("ranks", [2, 5])
def test_none_is_the_mean_to_the_rounding_of_its_additions(ranks):
    model = network()
    parts = torch.stack(local_gradients(model, ranks)).double()
    simulation = Simulation(model, "none", ranks)
    simulation.backward(loss_of(model))
    # Each of N - 1 additions rounds a partial sum by at most half an ulp, and the division the result.
    bound = ranks * 2**-24 * parts.abs().sum(0) / ranks
    assert ((gradient(model) - parts.mean(0)).abs() <= bound).all()
    assert simulation.nmse < 1e-12


def test_64_ranks():
    model = network()
    simulation = Simulation(model, "int4", 64, feedback=True)
    for step in range(3):
        losses = simulation.backward(loss_of(model, step))
    assert len(losses) == 64
    assert simulation.identical
    assert 0 < simulation.nmse < 0.2
    assert len({one.bytes_sent for one in simulation.stats()}) <= 3  # the last shards are shorter


def test_feedback_makes_up_for_what_was_lost():
    """The same gradients again and again: their mean over the steps comes near the truth with feedback, and not without."""
    distances = {}
    for feedback in (False, True):
        model = network()
        expected = torch.stack(local_gradients(model, 4)).mean(0)
        simulation = Simulation(model, "int2", 4, feedback)
        total = torch.zeros_like(expected)
        for _ in range(40):
            simulation.backward(loss_of(model))
            total += gradient(model) / 40
        distances[feedback] = float((total - expected).norm() / expected.norm())
    assert distances[True] < distances[False] / 5


def test_results_do_not_depend_on_the_link():
    found = []
    for link in (Link(rate=float("inf"), round_trip=0.0), Link(rate=1e6, round_trip=0.2)):
        torch.manual_seed(0)
        model = nn.Linear(700, 600)  # two segments a shard
        simulation = Simulation(model, "int4", 2, feedback=True, link=link)
        for step in range(2):
            inputs = [torch.randn(4, 700, generator=torch.Generator().manual_seed(step + 10 * rank)) for rank in range(2)]
            simulation.backward(lambda rank, model=model, inputs=inputs: model(inputs[rank]).square().mean())
        found.append(gradient(model))
    assert torch.equal(*found)


def test_buffers_end_as_those_of_rank_0():
    model = network()
    twin = copy.deepcopy(model)
    loss_of(twin)(0)
    Simulation(model, "int8", 3).backward(loss_of(model))
    assert torch.equal(model[1].running_var, twin[1].running_var)
    assert model[1].num_batches_tracked == 1


def test_a_nan_on_one_rank_leaves_residuals_alone():
    model = network()
    simulation = Simulation(model, "int4", 3, feedback=True)
    simulation.backward(loss_of(model))
    before = [one.residuals.state_dict() for one in simulation._reductions]
    assert simulation.finite
    simulation.backward(lambda rank: loss_of(model, 1)(rank) * (float("nan") if rank == 1 else 1))
    assert not simulation.finite
    for old, one in zip(before, simulation._reductions, strict=True):
        assert all(torch.equal(old[name], value) for name, value in one.residuals.state_dict().items())
    simulation.backward(loss_of(model, 2))
    assert simulation.finite
    assert gradient(model).isfinite().all()


class _Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(30, 40), nn.Linear(30, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: Simulation(network(), "int4", 0), ["ranks=0", "1 to"]),
        (lambda: Simulation(network(), "int4", True), ["ranks=True"]),
        (lambda: Simulation(network(), "int9", 2), ["'int9'"]),
        (lambda: Simulation(network().half(), "int4", 2), ["float16", "float32"]),
        (lambda: Simulation(network(), "int4", 2, min_elements=10_000), ["nothing", "10000"]),
        (lambda: Simulation(nn.ReLU(), "int4", 2), ["no parameter"]),
        (lambda: Simulation(model := _Half(), "int4", 2).backward(loss_of(model)), ["idle.weight", "rank 0"]),
    ],
)
def test_mistakes(act, words):
    with pytest.raises(ConfigError) as caught:
        act()
    assert all(word in str(caught.value) for word in words)


def test_a_rank_that_fails_ends_all_of_them():
    group = SimulatedGroup(4)

    def task(rank: int) -> None:
        if rank == 2:
            raise ValueError("rank 2 is ill")
        buffer = torch.zeros(3, dtype=torch.uint8)
        group.peers[rank].exchange(buffer, (rank + 1) % 4, buffer.clone(), (rank - 1) % 4).wait()
        group.peers[rank].all_reduce_sum(torch.zeros(3)).wait()

    with pytest.raises(ValueError, match="rank 2 is ill"):
        group.run(task)
    with pytest.raises(TransportError, match="failed before"):
        group.run(task)


def test_ring_sum_of_more_ranks_than_elements():
    parts = [torch.full((3,), float(rank)) for rank in range(7)]
    assert torch.equal(ring_sum(parts), torch.full((3,), 21.0))
