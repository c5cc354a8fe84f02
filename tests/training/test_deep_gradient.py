"""Deep Gradient Compression on real ranks against the paper's algorithm, computed slowly by one process."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from thinwire.bench.oracle import roundtrip
from thinwire.feedback.momenta import Momenta
from thinwire.training.optimizers import check_optimizer
from thinwire.workloads.loop import replicas_identical
from training.test_ddp import backward, local_gradients, network, parts


class Paper:
    """The algorithm for one rank, in NumPy: velocities and accumulations by name."""

    def __init__(self, rule: tw.DeepGradient, ranks: int) -> None:
        self.rule, self.ranks = rule, ranks
        self.u: dict[str, np.ndarray] = {}
        self.v: dict[str, np.ndarray] = {}

    def clipped(self, grads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A rank's part of the mean is g/N; the paper clips it to clip/sqrt(N)."""
        if self.rule.clip is None:
            return grads
        norm = np.sqrt(sum(np.square(g.astype(np.float64)).sum() for g in grads.values())) / self.ranks
        limit = self.rule.clip / np.sqrt(self.ranks)
        return {n: (g * np.float32(limit / norm) if norm > limit else g) for n, g in grads.items()}

    def velocity(self, name: str, g: np.ndarray) -> np.ndarray:
        """The step of the velocity, and what Nesterov or plain momentum adds up."""
        m = np.float32(self.rule.momentum)
        self.u[name] = m * self.u.get(name, np.float32(0)) + g
        return m * self.u[name] + g if self.rule.nesterov else self.u[name].copy()

    def send(self, names: tuple[str, ...], grads: dict[str, np.ndarray], codec: tw.Codec, large: list[str]) -> np.ndarray:
        """One bucket, what is not compressed zero."""
        pieces = []
        for n in names:
            if n in large:
                self.v[n] = self.v.get(n, np.float32(0)) + self.velocity(n, grads[n].ravel())
            pieces.append(self.v[n] if n in large else np.zeros(grads[n].size, np.float32))
        sent = roundtrip(codec, np.concatenate(pieces))
        for n, part in parts(names, {n: torch.from_numpy(grads[n]) for n in names}, sent):
            if n in large:
                self.v[n] = self.v[n] - part
                if self.rule.masking:
                    self.u[n] = np.where(part != 0, np.float32(0), self.u[n])
        return sent


def _trajectory(rank: int, ranks: int, rule: tw.DeepGradient, bucket_mb: float, exactly: bool) -> list[str]:
    """Every gradient that SGD gets, and what each rank keeps, over the warm-up and beyond."""
    wrong: list[str] = []
    model = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb)
    codec = tw.codec("topk", k=10, chunk=1024)
    handle = tw.compress(model, codec, feedback=rule)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    buckets: list[tuple[str, ...]] = []
    inner = handle._reduction.mean
    handle._reduction.mean = lambda payload, layout: (buckets.append(layout.names), inner(payload, layout))
    grads = dict(model.module.named_parameters())
    large = [n for n, p in grads.items() if p.dim() > 1 and p.numel() >= 256]
    everyone, small = [Paper(rule, ranks) for _ in range(ranks)], Paper(rule, ranks)
    for step in range(10):
        local = [
            one.clipped({n: g.numpy() for n, g in found.items()})
            for one, found in zip(everyone, local_gradients(model, ranks, step), strict=True)
        ]
        buckets.clear()
        backward(model, rank, step)
        expected: dict[str, np.ndarray] = {}
        for names in buckets:
            sent = [one.send(names, g, rule.codec_at(codec, step), large) for one, g in zip(everyone, local, strict=True)]
            expected |= dict(parts(names, grads, sum(sent[1:], sent[0]) / np.float32(ranks)))
        for n in grads:
            if n not in large:
                expected[n] = small.velocity(n, sum(g[n].ravel() for g in local) / np.float32(ranks))
        for n, p in grads.items():
            got = p.grad.numpy().ravel()
            same = np.array_equal(got, expected[n]) if exactly and n in large else np.allclose(got, expected[n], atol=1e-5)
            wrong += [] if same else [f"step {step} {n}: {np.abs(got - expected[n]).max()}"]
        optimizer.step()
    kept = handle.state_dict()["residuals"][f"rank{rank}"]
    for n in large:
        for key, own in ((n, everyone[rank].v[n]), (f"velocity of {n}", everyone[rank].u[n])):
            wrong += [] if np.allclose(kept[key].numpy().ravel(), own, atol=1e-5) and own.any() else [key]
    return wrong + ([] if replicas_identical(model) else ["replicas differ"])


@pytest.mark.parametrize(
    ("ranks", "rule", "bucket_mb", "exactly"),
    [
        (2, tw.DeepGradient(), 100, True),
        (2, tw.DeepGradient(warm_up_steps=6), 0.01, True),
        (3, tw.DeepGradient(momentum=0.5, masking=False), 100, True),
        (2, tw.DeepGradient(clip=0.4, warm_up_steps=4), 0.01, False),
        (2, tw.DeepGradient(nesterov=True), 0.01, False),
    ],
    ids=["plain", "warm-up", "no masking", "clipping", "Nesterov"],
)
def test_the_trajectory_is_the_papers(ranks, rule, bucket_mb, exactly):
    assert real.run(_trajectory, ranks, ranks, rule, bucket_mb, exactly) == [[]] * ranks


def _conserved(rank: int, ranks: int, k: int) -> list[str]:
    """Without masking and clipping, what was sent and what is kept are together the sum of local momentum SGD's updates."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    rule = tw.DeepGradient(momentum=0.9, masking=False)
    handle = tw.compress(model, tw.codec("topk", k=k, chunk=1024, bits=8), feedback=rule)
    steps, total = 12, {n: torch.zeros_like(p) for n, p in model.module.named_parameters()}
    for step in range(steps):
        backward(model, rank, step)
        for n, p in model.module.named_parameters():
            total[n] += p.grad
    kept = handle.state_dict()["residuals"][f"rank{rank}"]
    owed = {n: kept.get(n, torch.zeros_like(p)).clone() for n, p in total.items()}
    for part in owed.values():
        handle.transport.all_reduce_sum(part).wait()
        part.div_(ranks)
    expected, velocity = {n: torch.zeros_like(p) for n, p in total.items()}, {n: torch.zeros_like(p) for n, p in total.items()}
    for step in range(steps):
        local = local_gradients(model, ranks, step)
        for n in expected:
            velocity[n] = 0.9 * velocity[n] + sum(g[n] for g in local) / ranks
            expected[n] += velocity[n]
    wrong = [n for n in total if not torch.allclose(total[n] + owed[n], expected[n], atol=2e-5)]
    if k == 1024:
        # Everything is sent in 8 bits: what is kept is less than a step of that.
        wrong += [f"{n} kept" for n in total if owed[n].abs().max() > 0.01 * expected[n].abs().max()]
    return wrong


@pytest.mark.parametrize("k", [1024, 20])
def test_with_local_momentum_alone_the_updates_are_those_of_momentum_sgd(k):
    assert real.run(_conserved, 2, 2, k) == [[], []]


def test_one_rank_is_momentum_sgd():
    ours, plain = real.run(_one_rank, 1, True)[0], real.run(_one_rank, 1, False)[0]
    np.testing.assert_allclose(ours, plain, atol=1e-6)


def _one_rank(rank: int, ours: bool) -> np.ndarray:
    model = DistributedDataParallel(network())
    if ours:
        handle = tw.compress(model, "topk", feedback=tw.DeepGradient(momentum=0.9))
        assert handle.feedback
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.0 if ours else 0.9)
    for step in range(6):
        backward(model, rank, step)
        optimizer.step()
    return torch.cat([p.detach().view(-1) for p in model.parameters()]).numpy()


def test_the_warm_up_is_the_papers():
    rule, codec = tw.DeepGradient(warm_up_steps=8), tw.codec("topk", k=4)
    sparsity = [100 - 100 * rule.codec_at(codec, step).k / 4096 for step in range(0, 11, 2)]
    np.testing.assert_allclose(sparsity, [75, 93.75, 98.4375, 99.609375, 99.90234375, 99.90234375])
    assert rule.codec_at(codec, 7).k == 16
    assert tw.DeepGradient().codec_at(codec, 0) == codec
    assert [rule.codec_at(tw.codec("topk"), step).k for step in (0, 2, 3, 5, 6, 8)] == [1024, 1024, 256, 256, 64, 41]
    assert rule.codec_at(tw.codec("topk", k=2000), 0).k == 2000


def _warm_up_bytes(rank: int) -> list[int]:
    model = DistributedDataParallel(network(), bucket_cap_mb=100)
    handle = tw.compress(model, tw.codec("topk", k=1, chunk=1024), feedback=tw.DeepGradient(warm_up_steps=4))
    found = []
    for step in range(6):
        backward(model, rank, step)
        stats = handle.stats()
        found.append(stats.bytes_sent - 4 * stats.elements_uncompressed)
    return found


def test_the_warm_up_is_what_is_sent():
    found = real.run(_warm_up_bytes, 2)[0]
    assert found == sorted(found, reverse=True)
    assert found[0] > 10 * found[4] == 10 * found[5]


RULE = tw.DeepGradient(clip=0.5, warm_up_steps=6)


class Job:
    """A run whose whole state can be saved."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
        self.handle = tw.compress(self.model, tw.codec("topk", k=8, chunk=1024), feedback=RULE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, number: int, scale: float = 1.0) -> None:
        self.model.zero_grad()
        inputs = torch.randn(16, 33, generator=torch.Generator().manual_seed(100 * self.rank + number))
        (scale * self.model(inputs).square().mean()).backward()

    def run(self, numbers: range) -> torch.Tensor:
        for number in numbers:
            self.step(number)
            self.optimizer.step()
        return torch.cat([p.detach().view(-1) for p in self.model.parameters()])


def _resume(rank: int) -> list[str]:
    whole = Job(rank)
    whole.run(range(4))
    state = copy.deepcopy((whole.model.module.state_dict(), whole.handle.state_dict()))
    expected = whole.run(range(4, 9))
    resumed = Job(rank)
    resumed.model.module.load_state_dict(state[0])
    resumed.handle.load_state_dict(state[1])
    wrong = [] if torch.equal(resumed.run(range(4, 9)), expected) else ["another trajectory"]
    without = Job(rank)
    without.model.module.load_state_dict(state[0])
    wrong += ["the state makes no difference"] if torch.equal(without.run(range(4, 9)), expected) else []
    plain = tw.compress(DistributedDataParallel(network()), tw.codec("topk", k=8, chunk=1024))
    for handle, other in ((resumed.handle, plain.state_dict()), (plain, state[1])):
        try:
            handle.load_state_dict(other)
            wrong.append("a state of another feedback was taken")
        except tw.ConfigError as error:
            wrong += [] if "residuals of feedback" in str(error) else [str(error)]
    return wrong


def test_a_resumed_run_has_the_same_bits():
    assert real.run(_resume, 2) == [[], []]


def flat(state: dict, rank: int) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state["residuals"][f"rank{rank}"].items()}


def _nonfinite(rank: int) -> list[str]:
    """One rank's NaN: no rank keeps anything of that step, and the schedule does not count it."""
    job = Job(rank)
    job.run(range(3))
    before = flat(job.handle.state_dict(), rank)
    job.step(3, float("nan") if rank == 1 else 1.0)
    after = job.handle.state_dict()
    wrong = [n for n, value in before.items() if not torch.equal(value, flat(after, rank)[n])]
    wrong += [] if not job.handle.finite and after["feedback_steps"] == 3 else ["the step counts"]
    job.step(4)
    last = job.handle.state_dict()
    wrong += [] if job.handle.finite and last["feedback_steps"] == 4 else ["the next step does not count"]
    return wrong + [n for n, value in flat(last, rank).items() if not value.isfinite().all()]


def test_a_nonfinite_step_leaves_no_trace():
    assert real.run(_nonfinite, 2) == [[], []]


def _scaled(rank: int) -> list[str]:
    """A loss scale that changes midway: powers of two, so the run is that of no scale, bit for bit."""
    plain, scaled = Job(rank), Job(rank)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaled.handle.follow(scaler)
    expected = plain.run(range(6))
    for number in range(6):
        scaled.step(number, scaler.get_scale())
        scaler.scale(torch.ones(1))  # makes it ready
        scaler.unscale_(scaled.optimizer)
        scaler.step(scaled.optimizer)
        scaler.update(64.0 if number < 2 else 1024.0)
    got = torch.cat([p.detach().view(-1) for p in scaled.model.parameters()])
    return [] if torch.equal(got, expected) else [f"{(got - expected).abs().max()}"]


def test_the_loss_scale_is_followed():
    assert real.run(_scaled, 2) == [[], []]


def _optimizers(rank: int) -> list[str]:
    model = DistributedDataParallel(network())
    handle = tw.compress(model, "topk", feedback=tw.DeepGradient())
    backward(model, rank, 0)
    other = nn.Linear(3, 3)
    other(torch.ones(1, 3)).sum().backward()
    torch.optim.Adam(other.parameters()).step()  # nobody's business
    messages = []
    for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.Adam):
        try:
            make(model.parameters()).step()
            messages.append("no error")
        except tw.ConfigError as error:
            messages.append(str(error))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    handle.remove()
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()
    return messages


def test_an_optimizer_with_momentum_is_refused():
    for messages in real.run(_optimizers, 2):
        assert "momentum=0.9" in messages[0]
        assert "betas=" in messages[1]
        assert all("allowed" in message for message in messages)


def test_an_optimizer_that_cannot_be_checked_is_named(caplog):
    with caplog.at_level(logging.WARNING, "thinwire"):
        check_optimizer(torch.optim.Adagrad([torch.zeros(2, requires_grad=True)]))
    assert "Adagrad" in caplog.text


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"momentum": -0.1}, "momentum=-0.1"),
        ({"momentum": "much"}, "momentum='much'"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": float("nan")}, "clip=nan"),
        ({"warm_up_steps": -1}, "warm_up_steps=-1"),
        ({"warm_up_steps": 1.5}, "warm_up_steps=1.5"),
        ({"warm_up_steps": True}, "warm_up_steps=True"),
    ],
)
def test_numbers_out_of_range_are_named(fields, word):
    with pytest.raises(tw.ConfigError, match="allowed") as error:
        tw.DeepGradient(**fields)
    assert word in str(error.value)


def _bad_codec(rank: int) -> str:
    try:
        tw.compress(DistributedDataParallel(network()), "int4", feedback=tw.DeepGradient())
    except tw.ConfigError as error:
        return str(error)
    return ""


def test_a_codec_that_is_not_sparse_is_refused():
    assert "'int4'" in real.run(_bad_codec, 2)[0]


def test_what_no_rank_used_keeps_its_momentum():
    momenta = Momenta(tw.DeepGradient(), {"a": 2, "b": 2, "c": 2}, 2)
    names, exact = ("a", "b", "c"), [slice(4, 6)]

    def step(gradient: list[float], idle: list[slice]) -> torch.Tensor:
        payload = torch.tensor(gradient, dtype=torch.float32)
        mean = payload[4:].clone()
        payload[4:] = 0
        momenta.enter(payload, names, idle, exact)
        sent = payload.clone()
        momenta.following(names).copy_(sent)  # nothing got through
        momenta.leave(names, idle)
        payload[4:] = mean
        momenta.finish(payload, names, idle, exact, alone=False)
        assert momenta.commit([names])
        return torch.cat([sent[:4], payload[4:]])

    assert step([1.0] * 6, []).tolist() == [1.0] * 6
    torch.testing.assert_close(step([0, 0, 1, 1, 0, 0], [slice(0, 2), slice(4, 6)]), torch.tensor([0.0, 0, 2.9, 2.9, 0, 0]))
    torch.testing.assert_close(step([1.0] * 6, []), torch.tensor([2.9, 2.9, 5.61, 5.61, 1.9, 1.9]))
    torch.testing.assert_close(momenta.parts["velocity of "].of("a"), torch.tensor([1.9, 1.9]))
    assert not momenta.whole
