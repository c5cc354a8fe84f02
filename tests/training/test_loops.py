"""Forms of training loops: accumulation, uneven inputs, scalers, several models, sparse gradients, compiled models, drift."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ranks as real
import thinwire as tw
from heard import heard
from thinwire.workloads.loop import replicas_identical


def network(width: int = 40) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, width), nn.ReLU(), nn.Linear(width, 30))


def inputs(rank: int, step: int, rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, 30, generator=torch.Generator().manual_seed(100 * step + rank))


def _accumulation(rank: int, as_view: bool) -> list[str]:
    """With no_sync, three micro-steps make one reduction and one step of feedback."""
    model = DistributedDataParallel(network(), gradient_as_bucket_view=as_view)
    handle = tw.compress(model, "int8", feedback=True)
    twin = copy.deepcopy(model.module)
    model(inputs(rank, 0)).square().mean().backward()
    before = {n: v.clone() for n, v in handle.state_dict()["residuals"][f"rank{rank}"].items()}
    handle.stats()
    model.zero_grad()
    with model.no_sync():
        for step in (1, 2):
            model(inputs(rank, step)).square().mean().backward()
    held = handle.state_dict()["residuals"][f"rank{rank}"]
    wrong = [f"feedback of {n} in no_sync" for n in before if not torch.equal(before[n], held[n])]
    if handle.stats().steps:
        wrong.append("reduced in no_sync")
    model(inputs(rank, 3)).square().mean().backward()
    if handle.stats().steps != 1:
        wrong.append("not one reduction")
    total = {n: torch.zeros_like(p) for n, p in twin.named_parameters()}
    for other in range(2):
        for step in (1, 2, 3):
            twin.zero_grad()
            twin(inputs(other, step)).square().mean().backward()
            for n, p in twin.named_parameters():
                total[n] += p.grad / 2
    for n, p in model.module.named_parameters():
        if (p.grad - total[n]).norm() > 0.02 * total[n].norm():
            wrong.append(f"{n} is not the mean of what was gathered")
    return wrong


@pytest.mark.parametrize("as_view", [False, True])
def test_accumulation_with_no_sync(as_view):
    assert real.run(_accumulation, 2, as_view) == [[], []]


def _no_sync_around_backward(rank: int) -> list[str]:
    model = DistributedDataParallel(network())
    tw.compress(model, "int8")
    with heard(logging.WARNING) as lines:
        for step in range(3):
            loss = model(inputs(rank, step)).square().mean()
            with model.no_sync():
                loss.backward()
    return lines


def test_no_sync_around_backward_only_is_said_once():
    for lines in real.run(_no_sync_around_backward, 2):
        assert len(lines) == 1
        assert "no_sync" in lines[0]


def _join(rank: int) -> list[str]:
    """Rank 1 has fewer inputs; join() lets the other go on, and replicas end the same."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(network())
    handle = tw.compress(model, "int8", feedback=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model]):
        for step in range(6 if rank == 0 else 3):
            optimizer.zero_grad()
            model(inputs(rank, step)).square().mean().backward()
            optimizer.step()
    steps = handle.stats().steps
    return ([] if replicas_identical(model) else ["replicas differ"]) + ([] if steps == 6 else [f"{steps} steps"])


def test_join_with_uneven_inputs():
    assert real.run(_join, 2) == [[], []]


def _join_divides(rank: int) -> list[str]:
    """By the ranks that still have inputs, where that is asked for: the last step has the gradient of rank 0 alone."""
    from torch.distributed.algorithms.join import Join

    wrong = []
    for initial, share in ((True, 0.5), (False, 1.0)):
        model = DistributedDataParallel(network())
        tw.compress(model, "int8")
        twin = copy.deepcopy(model.module)
        with Join([model], divide_by_initial_world_size=initial):
            for step in range(3 if rank == 0 else 1):
                model.zero_grad()
                model(inputs(rank, step)).square().mean().backward()
        if rank == 0:
            twin(inputs(0, 2)).square().mean().backward()
            for (n, p), q in zip(model.module.named_parameters(), twin.parameters(), strict=True):
                if (p.grad - share * q.grad).norm() > 0.02 * (share * q.grad).norm():
                    wrong.append(f"{n} with divide_by_initial_world_size={initial}")
    return wrong


def test_join_divides_as_it_is_told():
    assert real.run(_join_divides, 2) == [[], []]


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always, self.sometimes = nn.Linear(30, 40), nn.Linear(30, 40)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        return self.always(x) + (self.sometimes(x) if both else 0)


def _never_touched(rank: int) -> list[str]:
    """A parameter that no rank used in a step keeps its residual: DDP would throw away what was sent of it."""
    model = DistributedDataParallel(_Branches(), find_unused_parameters=True)
    handle = tw.compress(model, "int2", feedback=True)
    key, wrong = f"rank{rank}", []
    model(inputs(rank, 0), True).square().mean().backward()
    before = handle.state_dict()["residuals"][key]
    model.zero_grad()
    model(inputs(rank, 1), False).square().mean().backward()
    after = handle.state_dict()["residuals"][key]
    wrong += [] if torch.equal(before["sometimes.weight"], after["sometimes.weight"]) else ["a residual was thrown away"]
    wrong += ["no feedback"] if torch.equal(before["always.weight"], after["always.weight"]) else []
    model(inputs(rank, 2), True).square().mean().backward()
    last = handle.state_dict()["residuals"][key]
    return wrong + (["it stays for ever"] if torch.equal(last["sometimes.weight"], after["sometimes.weight"]) else [])


def test_parameters_that_no_rank_used_keep_their_residual():
    assert real.run(_never_touched, 2) == [[], []]


class _Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(200, 32, sparse=True)
        self.out = nn.Linear(32, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(x).mean(1))


def _sparse(rank: int) -> list[str]:
    """The embedding's sparse gradient is the exact mean, uncompressed, and said to be."""
    model = DistributedDataParallel(_Embedded())
    handle = tw.compress(model, "int8", feedback=True)
    wrong = [] if "table.weight" in handle.share.names_uncompressed else ["the share does not say it"]
    total = torch.zeros(200, 32)
    twin = copy.deepcopy(model.module)
    for other in range(2):
        twin.zero_grad()
        twin(torch.arange(12).view(3, 4) + 5 * other).square().sum().backward()
        total += twin.table.weight.grad.to_dense() / 2
    for _ in range(2):
        model.zero_grad()
        model(torch.arange(12).view(3, 4) + 5 * rank).square().sum().backward()
        grad = model.module.table.weight.grad
        if not grad.is_sparse or not torch.allclose(grad.to_dense(), total, atol=1e-5):
            wrong.append("not the mean")
    return wrong


def test_sparse_embedding_gradients():
    assert real.run(_sparse, 2) == [[], []]


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self._reentrant = nn.Linear(30, 40), nn.Linear(40, 30), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(lambda y: torch.relu(self.first(y)), x, use_reentrant=self._reentrant)
        return checkpoint(self.second, x, use_reentrant=self._reentrant)


def _forms(rank: int) -> list[str]:
    """Each form trains as plain DDP does, replicas are identical, and gradients really went compressed."""

    def made(form: str) -> tuple[nn.Module, DistributedDataParallel]:
        if form == "static":
            model = DistributedDataParallel(network(), static_graph=True)
        elif form.startswith("checkpoint"):
            model = DistributedDataParallel(_Checkpointed(form.endswith("reentrant")), static_graph=form.endswith("reentrant"))
        elif form == "inner compiled":
            model = DistributedDataParallel(torch.compile(network(), backend="eager"))
        elif form == "outer compiled":
            model = DistributedDataParallel(network())
            return torch.compile(model, backend="eager"), model
        else:
            model = DistributedDataParallel(network().to(torch.bfloat16) if form == "bf16" else network())
        return model, model

    wrong = []
    for form in ("static", "checkpoint", "checkpoint reentrant", "inner compiled", "outer compiled", "bf16", "late"):
        ends = []
        for codec in (None, "int8"):
            outer, model = made(form)
            handle = tw.compress(outer, codec, feedback=True) if codec and form != "late" else None
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for step in range(4):
                if step == 2 and codec and form == "late":
                    handle = tw.compress(outer, codec)
                x = inputs(rank, step).requires_grad_()
                optimizer.zero_grad()
                outer(x.bfloat16() if form == "bf16" else x).float().square().mean().backward()
                optimizer.step()
            if not replicas_identical(model):
                wrong.append(f"{form} {codec}: replicas differ")
            if handle is not None and (stats := handle.stats()).compressed_share < 0.9:
                wrong.append(f"{form}: {stats}")
            ends.append(torch.cat([p.detach().float().view(-1) for p in model.parameters()]))
        distance = ((ends[0] - ends[1]).norm() / ends[0].norm()).item()
        if not 0 < distance < 0.01:
            wrong.append(f"{form}: {distance} from plain DDP")
    return wrong


@pytest.mark.filterwarnings("default")
def test_static_graphs_checkpointing_compiled_models_and_late_compression():
    assert real.run(_forms, 2) == [[], []]


def _frozen(rank: int) -> list[str]:
    """A parameter that was frozen after DDP wrapped it is still in a bucket."""
    model = DistributedDataParallel(network(), find_unused_parameters=True)
    model.module[0].weight.requires_grad_(False)
    handle = tw.compress(model, "int8", feedback=True)
    for step in range(3):
        model.module[0].weight.requires_grad_(step == 1)
        model.zero_grad()
        model(inputs(rank, step)).square().mean().backward()
    return [] if replicas_identical(model) and handle.stats().steps == 3 else ["replicas differ"]


def test_parameters_that_are_frozen_and_thawed():
    assert real.run(_frozen, 2) == [[], []]


def _two_models(rank: int) -> list[str]:
    """A generator and a critic that take turns, each with its own codec."""
    pair = [DistributedDataParallel(network(width)) for width in (40, 60)]
    handles = [tw.compress(model, codec) for model, codec in zip(pair, ("int8", "int4"), strict=True)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in pair]
    for step in range(4):
        made = pair[0](inputs(rank, step))
        optimizers[1].zero_grad()
        pair[1](made.detach()).square().mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (made - 1).square().mean().backward()
        optimizers[0].step()
    good = all(replicas_identical(model) for model in pair) and [one.stats().steps for one in handles] == [4, 4]
    return [] if good else ["replicas or steps differ"]


def test_two_models_in_one_process():
    assert real.run(_two_models, 2) == [[], []]


def _one_rank(rank: int) -> list[str]:
    import torch.distributed as dist

    alone = [dist.new_group([other]) for other in range(2)]
    if rank == 1:
        return []
    model = DistributedDataParallel(network(), process_group=alone[0])
    handle = tw.compress(model, "int8", feedback=True)
    twin = copy.deepcopy(model.module)
    model(inputs(0, 0)).square().mean().backward()
    twin(inputs(0, 0)).square().mean().backward()
    pairs = zip(model.module.parameters(), twin.parameters(), strict=True)
    return [] if all(torch.equal(a.grad, b.grad) for a, b in pairs) and handle.stats().steps == 1 else ["gradients changed"]


def test_a_model_on_one_rank_only():
    assert real.run(_one_rank, 2) == [[], []]


def _drift(rank: int) -> list[str]:
    model = DistributedDataParallel(network())
    handle = tw.compress(model, "int8", verify_every=2)
    said = []
    for step in range(4):
        if step == 2 and rank == 1:
            with torch.no_grad():
                model.module[2].weight[0, 0] += 1e-6
                model.module[2].bias[0] += 1
        try:
            model(inputs(rank, step)).square().mean().backward()
        except tw.DisagreementError as error:
            said.append(f"{step}: {error}")
            break
    handle.remove()
    return said


def test_verify_every_names_the_first_parameter_that_drifted():
    for said in real.run(_drift, 2):
        assert len(said) == 1
        assert said[0].startswith("3: replicas differ before step 4: parameter 2.weight is the first"), said


def _first_parameter(rank: int) -> str:
    import torch.distributed as dist

    model = nn.ParameterDict({("b" if rank else "c") if k == 1 else f"a{k}": nn.Parameter(torch.zeros(20, 20)) for k in range(4)})
    module = nn.Module()
    module.held = model
    try:
        tw.compress(DistributedDataParallel(module, process_group=dist.new_group([0, 1])), "int8")
    except tw.DisagreementError as error:
        return str(error)
    return "no error"


def test_a_disagreement_on_parameters_names_the_first():
    for said in real.run(_first_parameter, 2):
        assert "held.c" in said
        assert "held.b" in said
        assert "held.a3" not in said, said


def _silence(rank: int) -> list[str]:
    said = []
    for make in (
        lambda: tw.compress(DistributedDataParallel(nn.Linear(3, 4)), "int8"),
        lambda: tw.compress(DistributedDataParallel(network()), "int8", verify_every=0),
        lambda: tw.compress(DistributedDataParallel(network()), "int8", timeout=0),
    ):
        try:
            make()
            said.append("no error")
        except tw.ConfigError as error:
            said.append(str(error))
    with heard(logging.WARNING) as lines:
        parts = nn.ParameterList([nn.Parameter(torch.zeros(20, 20)), nn.Parameter(torch.zeros(500))])
        module = nn.Module()
        module.parts = parts
        module.forward = lambda x: sum((p * x).sum() for p in parts)
        model = DistributedDataParallel(module)
        handle = tw.compress(model, "int8")
        for _ in range(3):
            model(torch.tensor(2.0)).backward()
        share = handle.stats().compressed_share
    return [*said, *lines, str(np.round(share, 3))]


def test_what_cannot_be_compressed_raises_and_a_small_share_is_said_once():
    first, second = real.run(_silence, 2)
    for messages, warned in ((first, 1), (second, 0)):
        assert len(messages) == 4 + warned, messages
        assert "would compress nothing" in messages[0]
        assert "verify_every=0" in messages[1]
        assert "timeout=0" in messages[2]
        assert messages[-1] == "0.444"
    assert "only 44 %" in first[3]
