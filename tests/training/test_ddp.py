"""DDP with compressed gradients on real ranks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from thinwire.bench.oracle import all_reduced
from thinwire.training.assignment import Assignment
from thinwire.training.bucket import layout_of
from thinwire.workloads.loop import replicas_identical


def network(seed: int = 0) -> nn.Module:
    """A few layers of odd sizes; in the order of backward, large and small parameters alternate."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(33, 70), nn.LayerNorm(70), nn.ReLU(), nn.Linear(70, 51), nn.ReLU(), nn.Linear(51, 10))


def residuals_of(state: dict) -> dict[str, torch.Tensor]:
    """Of the one rank whose state it is."""
    (found,) = state["residuals"].values()
    return found


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(16, 33, generator=generator), torch.randint(10, (16,), generator=generator)


def backward(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs, targets = batch(rank, step)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    model.zero_grad()
    loss.backward()
    return loss.detach()


def local_gradients(model: nn.Module, ranks: int, step: int) -> list[dict[str, torch.Tensor]]:
    """What each rank's gradients are before any reduction, for the model's present weights."""
    found = []
    for rank in range(ranks):
        twin = copy.deepcopy(model.module)
        backward(twin, rank, step)
        found.append({name: p.grad.clone() for name, p in twin.named_parameters()})
    return found


def parts(names, parameters, flat):
    """Each parameter's piece of a flat bucket."""
    sizes = [parameters[n].numel() for n in names]
    return zip(names, np.split(flat, np.cumsum(sizes)[:-1]), strict=True)


def _gradients(rank: int, ranks: int, name: str, bucket_mb: float) -> list[str]:
    """Compressed gradients equal the oracle on each bucket; small ones are the exact mean."""
    wrong = []
    model = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb)
    codec = tw.codec(name)
    handle = tw.compress(model, codec)
    buckets: list[tuple[str, ...]] = []
    inner = handle._reduction.mean
    handle._reduction.mean = lambda payload, layout: (buckets.append(layout.names), inner(payload, layout))
    grads = dict(model.module.named_parameters())
    large = [n for n, p in grads.items() if p.dim() > 1 and p.numel() >= 256]
    for step in range(4):
        local = local_gradients(model, ranks, step)
        buckets.clear()
        backward(model, rank, step)
        # What is sent has zeros in place of the small parameters.
        sent = [{n: g[n].numpy() if n in large else np.zeros(g[n].shape, np.float32) for n in g} for g in local]
        for names in buckets:
            mean = all_reduced([np.concatenate([g[n].ravel() for n in names]) for g in sent], codec, "mean")
            got = {n: p.grad.numpy().ravel() for n, p in grads.items()}
            wrong += [f"{step} {n}" for n, part in parts(names, grads, mean) if n in large and not np.array_equal(got[n], part)]
        if sorted(n for names in buckets for n in names if n in large) != sorted(large):
            wrong.append(f"step {step}: compressed were {buckets}")
        for n, p in grads.items():
            if n not in large and not torch.allclose(p.grad, sum(g[n] for g in local) / ranks, atol=1e-6):
                wrong.append(f"step {step}: {n}")
    share = handle.share
    if share.compressed != 33 * 70 + 70 * 51 + 51 * 10 or share.uncompressed != 70 * 3 + 51 + 10:
        wrong.append(str(share))
    if f"{share.compressed:,} of" not in handle.summary() or "256" not in handle.summary():
        wrong.append(handle.summary())
    if handle.stats().error is not None:
        wrong.append("an error was measured without feedback")
    return wrong


@pytest.mark.parametrize(
    ("ranks", "name", "bucket_mb"), [(2, "int8", 100), (2, "int4", 0.01), (3, "int4", 100), (2, "bf16", 0.005)]
)
def test_gradients_equal_the_oracle(ranks, name, bucket_mb):
    assert real.run(_gradients, ranks, ranks, name, bucket_mb) == [[]] * ranks


def _train(
    rank: int,
    name: str | None,
    feedback: bool | None = None,
    bucket_mb: float = 0.01,
    steps: int = 8,
    backend: str = "numba",
):
    """Weights after some steps of SGD with momentum, whether replicas agree, and the statistics."""
    from thinwire.kernels import ops

    ops.set_backend(backend)
    model = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb)
    handle = tw.compress(model, name, feedback=feedback) if name else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        backward(model, rank, step)
        optimizer.step()
    same = replicas_identical(model)
    stats = handle.stats() if handle else None
    return torch.cat([p.detach().view(-1) for p in model.parameters()]).numpy(), same, stats


def test_codec_none_is_plain_ddp_bit_by_bit():
    plain = real.run(_train, 2, None)
    ours = real.run(_train, 2, "none")
    np.testing.assert_array_equal(ours[0][0], plain[0][0])
    stats = ours[0][2]
    elements = plain[0][0].size
    assert stats.steps == 8
    assert stats.bytes_sent == 8 * 4 * elements
    assert stats.elements_compressed == 0


def _compare(rank: int, bucket_mb: float) -> list[str]:
    """Replicas stay identical, near the uncompressed run, and the same with either backend."""
    exact = _train(rank, None)[0]
    wrong = []
    for name, tolerance in (("int8", 0.01), ("int4", 0.15)):
        weights, same, _ = _train(rank, name, None, bucket_mb)
        distance = np.linalg.norm(weights - exact) / np.linalg.norm(exact)
        if not same or not 0 < distance < tolerance:
            wrong.append(f"{name}: replicas identical {same}, distance {distance}")
        if not np.array_equal(weights, _train(rank, name, None, bucket_mb, backend="reference")[0]):
            wrong.append(f"{name}: the reference gives another trajectory")
    return wrong


@pytest.mark.parametrize(("ranks", "bucket_mb"), [(2, 0.005), (3, 100)])
def test_replicas_are_identical_close_to_uncompressed_and_the_same_on_every_backend(ranks, bucket_mb):
    assert real.run(_compare, ranks, bucket_mb) == [[]] * ranks


def test_bytes_on_the_wire():
    stats = real.run(_train, 2, "int8")[0][2]
    per_step = 8 * stats.bytes_sent / stats.steps
    payload = stats.elements_compressed / stats.steps
    plain = stats.elements_uncompressed / stats.steps
    # Small messages: padding of each row to 16 bytes is visible, but nothing more than that.
    messages = 2 * 4
    assert per_step <= 8.125 * (payload + plain) + 32 * plain + 8 * 16 * 2 * messages
    assert per_step >= 8.125 * payload + 32 * plain
    assert stats.encode_seconds > 0
    assert stats.decode_seconds > 0
    assert stats.wire_seconds > 0
    assert stats.exposed_seconds > 0


def _feedback(rank: int, ranks: int, feedback: bool) -> tuple[float, dict]:
    """The distance of the mean of many reduced gradients from the truth, with the weights held fixed."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    handle = tw.compress(model, "int2", feedback=feedback)
    total: dict[str, torch.Tensor] = {}
    steps = 40
    for _ in range(steps):
        backward(model, rank, 0)
        for n, p in model.module.named_parameters():
            total[n] = total.get(n, 0) + p.grad / steps
    local = local_gradients(model, ranks, 0)
    exact = {n: sum(g[n] for g in local) / ranks for n in total}
    lost = sum((total[n] - exact[n]).square().sum() for n in total) / sum(e.square().sum() for e in exact.values())
    assert (handle.stats().error or 0) > 0.05 if feedback else True
    return float(lost.sqrt()), {n: r.norm().item() for n, r in residuals_of(handle.state_dict()).items()}


def test_feedback_returns_what_the_wire_lost():
    """Fails when feedback is off, counts twice, or goes to another parameter."""
    with_feedback = real.run(_feedback, 2, 2, True)
    without = real.run(_feedback, 2, 2, False)
    assert without[0][0] > 0.1
    assert with_feedback[0][0] < without[0][0] / 8
    assert set(with_feedback[0][1]) == {"0.weight", "3.weight", "5.weight"}
    assert all(norm > 0 for norm in with_feedback[0][1].values())
    assert without[0][1] == {}


def _resume(rank: int) -> list[str]:
    """Residuals survive a checkpoint, also into another bucket layout, and go to the right parameters."""
    wrong = []
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    handle = tw.compress(model, "int2", feedback=True)
    for step in range(4):
        backward(model, rank, step)
    saved = copy.deepcopy(handle.state_dict())
    for bucket_mb in (0.01, 100):
        resumed = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb)
        other = tw.compress(resumed, "int2", feedback=True)
        other.load_state_dict(saved)
        state = residuals_of(other.state_dict())
        wrong += [f"{n} after loading" for n in state if not torch.equal(state[n], residuals_of(saved)[n])]
        # With gradients of zero, what is sent is the residual alone: each parameter must get the mean of its own.
        for parameter in resumed.parameters():
            parameter.requires_grad_(True)
        inputs, _ = batch(rank, 0)
        (resumed(inputs).sum() * 0.0).backward()
        for n, p in resumed.module.named_parameters():
            if n in state:
                mean = state[n].clone().view(-1)
                tw.all_reduce(mean, "none")
                if torch.nn.functional.cosine_similarity(mean, p.grad.view(-1), dim=0) < 0.8:
                    wrong.append(f"{n} got another parameter's residual ({bucket_mb} MB)")
    bad = {**saved, "residuals": {f"rank{rank}": {"0.weight": torch.zeros(3)}}}
    for state, word in ((bad, "3 elements"), ({**saved, "version": 9}, "9"), ({**saved, "codec": "int8"}, "'int8'")):
        try:
            handle.load_state_dict(state)
            wrong.append(f"{word}: no error")
        except tw.ConfigError as error:
            wrong += [] if word in str(error) else [str(error)]
    return wrong


def test_residuals_survive_a_checkpoint_and_another_bucket_layout():
    assert real.run(_resume, 2) == [[], []]


def _nonfinite(rank: int) -> list[str]:
    """A NaN on one rank reaches all ranks, leaves residuals alone, and the next step is clean."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    handle = tw.compress(model, "int4", feedback=True)
    for step in range(3):
        backward(model, rank, step)
    before = residuals_of(handle.state_dict())
    inputs, targets = batch(rank, 3)
    if rank == 1:
        inputs[0, 0] = float("nan")
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    wrong = [] if any(p.grad.isnan().any() for p in model.parameters()) else ["the NaN was lost"]
    after = residuals_of(handle.state_dict())
    wrong += [f"residual of {n}" for n in before if not torch.equal(before[n], after[n])]
    backward(model, rank, 4)
    wrong += [n for n, p in model.named_parameters() if not p.grad.isfinite().all()]
    moved = residuals_of(handle.state_dict())
    return wrong + [f"{n} got no feedback" for n in before if torch.equal(before[n], moved[n])]


def test_a_nonfinite_step_never_enters_a_residual():
    assert real.run(_nonfinite, 2) == [[], []]


def _remove(rank: int) -> list[str]:
    wrong = []
    model = DistributedDataParallel(network())
    handle = tw.compress(model, "int2")
    try:
        tw.compress(model, "int8")
        wrong.append("compressed twice")
    except tw.ConfigError as error:
        wrong += [] if "already" in str(error) else [str(error)]
    backward(model, rank, 0)
    handle.remove()
    handle.remove()
    local = local_gradients(model, 2, 1)
    backward(model, rank, 1)
    for n, p in model.module.named_parameters():
        if not torch.allclose(p.grad, (local[0][n] + local[1][n]) / 2, atol=1e-6):
            wrong.append(f"{n} is not the exact mean after remove()")
    again = tw.compress(model, "int8")
    backward(model, rank, 2)
    return wrong + ([] if again.stats().elements_compressed else ["a second handle does nothing"])


def test_remove_goes_back_to_exact_means():
    assert real.run(_remove, 2) == [[], []]


class _Tied(nn.Module):
    """Tied, frozen and unused parameters, an empty one, a scalar, and bf16 ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(40, 40)
        self.tied = nn.Linear(40, 40, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(40, 40).requires_grad_(False)
        self.unused = nn.Linear(40, 40)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.column = nn.Parameter(torch.randn(40, 8).t())
        self.narrow = nn.Linear(40, 40, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.tied(torch.relu(self.first(x)))) * self.scale
        return self.narrow(x.bfloat16()).float() @ self.column.t()


def _odd_model(rank: int) -> list[str]:
    model = DistributedDataParallel(_Tied(), find_unused_parameters=True, gradient_as_bucket_view=True)
    tw.compress(model, "int8", feedback=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return [] if replicas_identical(model) else ["replicas differ"]


def test_tied_frozen_unused_scalar_and_bf16_parameters():
    assert real.run(_odd_model, 2) == [[], []]


def _bad_input(rank: int) -> list[str]:
    def message(call) -> str:
        try:
            call()
        except tw.ConfigError as error:
            return str(error)
        return "no error"

    wrapped = DistributedDataParallel(network())
    hooked = DistributedDataParallel(network())
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    hooked.register_comm_hook(None, allreduce_hook)
    double = DistributedDataParallel(nn.Linear(4, 4).double())
    return [
        message(lambda: tw.compress(network(), "int8")),
        message(lambda: tw.compress(wrapped, "int9")),
        message(lambda: tw.compress(wrapped, "int8", feedback="yes")),
        message(lambda: tw.compress(wrapped, "int8", min_elements=-1)),
        message(lambda: tw.compress(hooked, "int8")),
        message(lambda: tw.compress(double, "int8")),
    ]


def test_bad_input():
    words = ["Sequential", "'int9'", "'yes'", "-1", "hook already", "float64"]
    for messages in real.run(_bad_input, 2):
        for message, word in zip(messages, words, strict=True):
            assert word in message, message
            assert "llowed" in message, message


def _disagree(rank: int) -> list[str]:
    messages = []
    for make in (
        lambda m: tw.compress(m, "int8" if rank else "int4"),
        lambda m: tw.compress(m, "int8", feedback=bool(rank)),
        lambda m: tw.compress(m, "int8", min_elements=100 + rank),
    ):
        from torch import distributed as dist

        try:
            make(DistributedDataParallel(network(), process_group=dist.new_group([0, 1])))
            messages.append("no error")
        except tw.DisagreementError as error:
            messages.append(str(error))
    return messages


def test_ranks_that_disagree_fail_at_construction():
    for messages in real.run(_disagree, 2):
        for message, word in zip(messages, ["codec", "feedback", "min_elements"], strict=True):
            assert f"disagree on {word}" in message, message
            assert "rank 0:" in message
            assert "rank 1:" in message


def test_layout_joins_neighbours():
    parameters = [torch.zeros(300, 2), torch.zeros(5), torch.zeros(0), torch.zeros(7), torch.zeros(400, 1), torch.zeros(20)]
    large = Assignment(codecs=dict.fromkeys("ae", tw.codec("int4")), alike=True)
    layout = layout_of("abcdef", parameters, large)
    assert layout.names == tuple("abcdef")
    assert layout.exact == (slice(600, 612), slice(1012, 1032))
    assert layout.compressed
    assert not layout_of("b", [torch.zeros(5)], large).compressed
