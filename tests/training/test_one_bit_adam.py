"""OneBitAdam against a slow oracle, alone, and its arguments."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.collective.simulated import SimulatedGroup
from thinwire.optim import OneBitAdam, ZeroOne
from thinwire.optim.schedule import schedule_of
from thinwire.optim.simulated import SimulatedOneBitAdam

OPTIONS = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 30))


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 30, generator=torch.Generator().manual_seed(100 * step + rank))


def run(simulation: SimulatedOneBitAdam, steps: range, factors: dict | None = None) -> None:
    for step in steps:
        factor = (factors or {}).get(step, {})
        simulation.backward(
            lambda rank, step=step, factor=factor: (
                simulation.models[rank](inputs(rank, step)).square().mean() * factor.get(rank, 1.0)
            )
        )
        simulation.step()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_schedules():
    warm, zero_one = schedule_of("warm_up"), schedule_of(ZeroOne(scaler=3))
    assert all(warm.updates(step) for step in range(1, 50))
    assert [step for step in range(1, 50) if zero_one.updates(step)] == [1, 2, 3, 5, 7, 9, 13, 17, 21, 29, 37, 45]
    assert sum(schedule_of("zero_one").updates(step) for step in range(1, 10_001)) < 160


@pytest.mark.parametrize("decoupled", [True, False])
def test_the_warm_up_is_torchs_adam_bit_for_bit(decoupled):
    model, twin = network(), network()
    simulation = SimulatedOneBitAdam(model, 1, freeze_step=100, decoupled=decoupled, **OPTIONS)
    theirs = (torch.optim.AdamW if decoupled else torch.optim.Adam)(twin.parameters(), **OPTIONS, foreach=False)
    for step in range(12):
        run(simulation, range(step, step + 1))
        theirs.zero_grad()
        twin(inputs(0, step)).square().mean().backward()
        theirs.step()
    assert torch.equal(flat(model), flat(twin))
    assert simulation.optimizer.exact


class Oracle:
    """The paper's algorithm for two ranks, every formula written out, on the same codec."""

    def __init__(self, codec: str, beta_of_feedback: float, floor: float) -> None:
        self.model, self.codec, self.floor, self.beta = network(), tw.codec(codec), floor, beta_of_feedback
        self.m = [torch.zeros_like(p) for p in self.model.parameters()]
        self.v = [torch.zeros_like(p) for p in self.model.parameters()]
        sizes = [p.numel() for p in self.model.parameters() if p.dim() > 1]
        self.e = [torch.zeros(sum(sizes)) for _ in range(2)]
        self.t = self.k = 0

    def mean(self, sent: list[torch.Tensor]) -> torch.Tensor:
        n = sent[0].numel()
        half, out = -(-n // 256) * 128, torch.empty(n)
        for owner, span in enumerate((slice(0, half), slice(half, n))):
            other = sent[1 - owner][span]
            arrived = self.codec.decode(self.codec.encode(other[None]), other.numel())[0]
            self.e[1 - owner][span] = (other - arrived) * self.beta
            mean = (sent[owner][span] + arrived) / 2
            out[span] = self.codec.decode(self.codec.encode(mean[None]), mean.numel())[0]
            self.e[owner][span] = (mean - out[span]) * 2 * self.beta
        return out

    @torch.no_grad()
    def step(self, gradients: list[list[torch.Tensor]], exact: bool) -> None:
        (b1, b2), rate, decay = OPTIONS["betas"], OPTIONS["lr"], OPTIONS["weight_decay"]
        self.t += 1
        self.k += exact
        if exact:
            means = [(a + b) / 2 for a, b in zip(*gradients, strict=True)]
            for m, v, g in zip(self.m, self.v, means, strict=True):
                m.lerp_(g, 1 - b1)
                v.mul_(b2).addcmul_(g, g, value=1 - b2)
        else:
            local = [[(g * (1 - b1)).add(m, alpha=b1) for g, m in zip(one, self.m, strict=True)] for one in gradients]
            large = [torch.cat([x.view(-1) for x in one if x.dim() > 1]) + e for one, e in zip(local, self.e, strict=True)]
            parts = list(self.mean(large).split([m.numel() for m in self.m if m.dim() > 1]))
            for number, m in enumerate(self.m):
                m.copy_(parts.pop(0).view_as(m) if m.dim() > 1 else (local[0][number] + local[1][number]) / 2)
        for p, m, v in zip(self.model.parameters(), self.m, self.v, strict=True):
            root = v.sqrt() / math.sqrt(1 - b2**self.k)
            if not exact:
                root.clamp_(min=math.sqrt(self.floor**2 * float(v.mean()) / (1 - b2**self.k)))
            p.mul_(1 - rate * decay).addcdiv_(m, root + 1e-8, value=-rate / (1 - b1**self.t))


@pytest.mark.parametrize(
    ("codec", "variance_update", "feedback", "floor"),
    [
        ("int2", "warm_up", "plain", 0.1),
        ("sign1", "warm_up", "plain", 0.1),
        ("int4", "zero_one", "plain", 0.0),
        ("int2", ZeroOne(scaler=2), "decay:0.5", 0.5),
    ],
)
def test_two_ranks_have_the_bits_of_the_oracle(codec, variance_update, feedback, floor):
    oracle = Oracle(codec, 0.5 if feedback == "decay:0.5" else 1.0, floor)
    simulation = SimulatedOneBitAdam(
        network(), 2, codec=codec, freeze_step=6, variance_update=variance_update, feedback=feedback, floor=floor, **OPTIONS
    )
    for step in range(14):
        gradients = []
        for rank in range(2):
            oracle.model.zero_grad()
            oracle.model(inputs(rank, step)).square().mean().backward()
            gradients.append([p.grad.clone() for p in oracle.model.parameters()])
        exact = step + 1 <= 6 and schedule_of(variance_update).updates(step + 1)
        assert simulation.optimizer.exact == exact
        oracle.step(gradients, exact)
        run(simulation, range(step, step + 1))
        assert simulation.identical
        assert torch.equal(flat(simulation.models[0]), flat(oracle.model)), step
    kept = simulation.optimizers[1].state_dict()["thinwire"]["residuals"]["rank1"]
    assert torch.equal(torch.cat([kept[n].view(-1) for n in sorted(kept)]), oracle.e[1])


def test_one_rank_is_adam_with_a_frozen_variance():
    model = network()
    simulation = SimulatedOneBitAdam(model, 1, freeze_step=3, codec="int2", floor=0.0, **OPTIONS)
    run(simulation, range(3))
    frozen = [simulation.optimizer.state[p]["exp_avg_sq"].clone() for p in model.parameters()]
    twin, momenta = copy.deepcopy(model), [simulation.optimizer.state[p]["exp_avg"].clone() for p in model.parameters()]
    run(simulation, range(3, 6))
    for step in range(3, 6):
        twin.zero_grad()
        twin(inputs(0, step)).square().mean().backward()
        with torch.no_grad():
            for p, m, v in zip(twin.parameters(), momenta, frozen, strict=True):
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                root = (v / (1 - 0.99**3)).sqrt() + 1e-8
                p.mul_(1 - 0.01 * 0.1).sub_(0.01 / (1 - 0.9 ** (step + 1)) * m / root)
    torch.testing.assert_close(flat(model), flat(twin), rtol=1e-5, atol=1e-6)
    assert all(
        torch.equal(v, simulation.optimizer.state[p]["exp_avg_sq"]) for v, p in zip(frozen, model.parameters(), strict=True)
    )


def test_feedback_makes_up_for_what_was_lost():
    """With the same gradients again and again, weights go where exact averages take them with feedback, and not without."""

    def weights(**options) -> torch.Tensor:
        simulation = SimulatedOneBitAdam(network(), 3, freeze_step=5, lr=1e-5, **options)
        for _ in range(150):
            simulation.backward(lambda rank: simulation.models[rank](inputs(rank, 0)).square().mean())
            simulation.step()
        return flat(simulation.models[0])

    exact = weights(codec="none")
    moved = (exact - flat(network())).norm()
    without, fed_back = ((weights(codec="int2", feedback=on) - exact).norm() / moved for on in (False, True))
    assert fed_back < without / 5
    assert fed_back < 0.1


@pytest.mark.parametrize("bad", [1, 8])
def test_a_nan_on_one_rank_is_a_step_that_no_rank_takes(bad):
    simulation = SimulatedOneBitAdam(network(), 3, freeze_step=4, codec="int2", **OPTIONS)
    run(simulation, range(bad))
    before = [copy.deepcopy(one.state_dict()) for one in simulation.optimizers]
    weights = flat(simulation.models[0])
    run(simulation, range(bad, bad + 1), {bad: {1: float("nan")}})
    assert not any(one.finite for one in simulation.optimizers)
    assert torch.equal(flat(simulation.models[2]), weights)
    for old, one in zip(before, simulation.optimizers, strict=True):
        new = one.state_dict()
        assert new["thinwire"]["step"] == old["thinwire"]["step"] == bad
        for key, value in old["state"].items():
            assert all(torch.equal(torch.as_tensor(value[n]), torch.as_tensor(new["state"][key][n])) for n in value)
        for rank, kept in old["thinwire"]["residuals"].items():
            assert all(torch.equal(value, new["thinwire"]["residuals"][rank][n]) for n, value in kept.items())
    run(simulation, range(bad + 1, bad + 3))
    assert simulation.identical
    assert all(one.finite for one in simulation.optimizers)
    assert flat(simulation.models[0]).isfinite().all()


class Parts(nn.Module):
    """A part that all ranks use, one that only the first does, and one that nobody does."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.first, self.idle = nn.Linear(30, 40), nn.Linear(30, 40), nn.Linear(30, 40)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        return self.used(x) + (self.first(x) if rank == 0 else 0)


def test_what_no_rank_uses_is_left_alone():
    torch.manual_seed(0)
    model = Parts()
    start = copy.deepcopy(model)
    simulation = SimulatedOneBitAdam(model, 3, freeze_step=3, codec="int2", **OPTIONS)
    for step in range(8):
        simulation.backward(lambda rank, step=step: simulation.models[rank](inputs(rank, step), rank).square().mean())
        simulation.step()
    assert simulation.identical
    assert torch.equal(model.idle.weight, start.idle.weight)
    assert not torch.equal(model.first.weight, start.first.weight)
    names = [n for n, _ in model.named_parameters()]
    for rank, one in enumerate(simulation.optimizers):
        kept = one.state_dict()["thinwire"]["residuals"][f"rank{rank}"]
        assert not kept[str(names.index("idle.weight"))].any()
        assert kept[str(names.index("first.weight"))].any()
    assert simulation.optimizer.state[model.idle.weight]["step"] == 0


def test_an_element_without_variance_does_not_blow_up():
    """A row that the warm-up never saw: without the floor it would move by lr times its momentum over eps."""
    moved = {}
    for floor in (0.1, 0.0):
        torch.manual_seed(0)
        model = nn.Embedding(40, 32)
        start = model.weight.detach().clone()
        simulation = SimulatedOneBitAdam(model, 2, freeze_step=10, codec="int2", lr=1e-3, floor=floor)
        for step in range(16):
            rows = torch.arange(39) if step < 10 else torch.arange(40)
            simulation.backward(lambda rank, rows=rows, one=simulation: one.models[rank](rows).square().mean())
            simulation.step()
        assert simulation.identical
        moved[floor] = float((model.weight.detach() - start)[39].abs().max())
    assert moved[0.1] < 0.1
    assert moved[0.0] > 1


def test_groups_schedules_and_closures():
    model = network()
    groups = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias, model[2].bias], "lr": 0.0}]
    (peers,) = SimulatedGroup(1).peers
    optimizer = OneBitAdam(groups, 0.01, freeze_step=2, group=peers)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 4 else 0.0)
    start, losses = copy.deepcopy(model), []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs(0, 0)).square().mean()
        loss.backward()
        return loss

    for step in range(6):
        if step == 4:
            held = flat(model)
        losses.append(optimizer.step(closure).item())
        schedule.step()
    assert torch.equal(flat(model), held)
    assert torch.equal(model[0].bias, start[0].bias)
    assert losses[4] < losses[0]
    with pytest.raises(tw.ConfigError, match="add_param_group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_weights_have_state_in_fp32(dtype):
    model = network().to(dtype)
    simulation = SimulatedOneBitAdam(model, 2, freeze_step=2, codec="int4", lr=0.01, feedback="average:0.5")
    for step in range(5):
        simulation.backward(lambda rank, step=step: simulation.models[rank](inputs(rank, step).to(dtype)).square().mean())
        simulation.step()
    assert model[0].weight.dtype == dtype
    saved = copy.deepcopy(simulation.optimizer.state_dict())
    fresh = SimulatedOneBitAdam(copy.deepcopy(model), 2, freeze_step=2, codec="int4", lr=0.01, feedback="average:0.5")
    fresh.optimizer.load_state_dict(saved)
    for p, q in zip(model.parameters(), fresh.models[0].parameters(), strict=True):
        mine, theirs = simulation.optimizer.state[p], fresh.optimizer.state[q]
        assert theirs["exp_avg_sq"].dtype == torch.float32
        assert all(torch.equal(mine[n], theirs[n]) for n in ("exp_avg", "exp_avg_sq"))
        assert (theirs["step"], theirs["variance_step"]) == (5, 2)


def made(**fields) -> OneBitAdam:
    (peers,) = SimulatedGroup(1).peers
    options = {"freeze_step": 3, "group": peers} | fields
    return OneBitAdam(network().parameters(), **options)


def sparse() -> None:
    (peers,) = SimulatedGroup(1).peers
    model = nn.Embedding(40, 32, sparse=True)
    optimizer = OneBitAdam(model.parameters(), freeze_step=3, group=peers)
    model(torch.arange(3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: made(freeze_step=0), ["freeze_step=0", "1 or more"]),
        (lambda: made(freeze_step=True), ["freeze_step=True"]),
        (lambda: made(freeze_step=2.5), ["freeze_step=2.5"]),
        (lambda: made(lr=-1.0), ["lr=-1.0"]),
        (lambda: made(betas=(0.9, 1.0)), ["betas=(0.9, 1.0)", "below 1"]),
        (lambda: made(betas=0.9), ["betas=0.9"]),
        (lambda: made(eps=float("nan")), ["eps=nan"]),
        (lambda: made(weight_decay="much"), ["weight_decay='much'"]),
        (lambda: made(floor=-0.1), ["floor=-0.1"]),
        (lambda: made(decoupled=1), ["decoupled=1"]),
        (lambda: made(codec="int9"), ["'int9'"]),
        (lambda: made(feedback="maybe"), ["'maybe'"]),
        (lambda: made(variance_update="zero_two"), ["'zero_two'", "zero_one"]),
        (lambda: made(variance_update=ZeroOne(scaler=0)), ["scaler=0"]),
        (lambda: made(min_elements=10_000), ["would compress nothing"]),
        (lambda: made(model=network()), ["Sequential", "DistributedDataParallel"]),
        (lambda: made(group=None), ["no process group"]),
        (lambda: made().load_state_dict({"state": {}, "param_groups": []}), ["not one of OneBitAdam"]),
        (lambda: made().load_state_dict([]), ["not one of OneBitAdam"]),
        (lambda: made(codec="int4").load_state_dict(made(codec="int2").state_dict()), ["int2", "int4"]),
        (lambda: made(feedback=False).load_state_dict(made().state_dict()), ["'plain'", "'off'"]),
        (lambda: made().follow(3), ["int", "GradScaler"]),
        (sparse, ["sparse"]),
    ],
)
def test_mistakes(act, words):
    with pytest.raises(tw.ConfigError) as caught:
        act()
    assert all(word in str(caught.value) for word in words), caught.value
