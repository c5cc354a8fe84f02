"""Loss scales, overflows on one rank only, and what they leave in residuals."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from thinwire.workloads.loop import replicas_identical
from training.test_loops import inputs, network


def _scaler(rank: int, dtype: torch.dtype) -> list[str]:
    """One rank overflows once: all skip that step, and the run is that of one that never had it."""

    def run(bad: bool) -> tuple[torch.Tensor, list[float], bool]:
        model = DistributedDataParallel(network())
        handle = tw.compress(model, "int4", feedback=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        # A power of two as factor keeps mantissas, so that the scale changes no bit of the rest.
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10_000)
        handle.follow(scaler)
        finite = True
        for step in range(8):
            overflow = step == 4
            if overflow and not bad:
                scaler.update(scaler.get_scale() / 2)
                continue
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = model(inputs(rank, step)).float().square().mean()
            if overflow and rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if overflow:
                finite = handle.finite
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        weights = torch.cat([p.detach().view(-1) for p in model.parameters()])
        return weights, [scaler.get_scale()], finite and replicas_identical(model)

    skipped, scales, _ = run(False)
    weights, others, finite = run(True)
    wrong = [] if scales == others == [512.0] else [f"scales {scales} {others}"]
    wrong += ["the step counted as finite"] if finite else []
    return wrong + ([] if torch.equal(weights, skipped) else [f"{(weights - skipped).abs().max()} from the run that skipped"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_overflow_on_one_rank_is_a_step_that_all_skip(dtype):
    assert real.run(_scaler, 2, dtype) == [[], []]


def _bias_only(rank: int) -> list[str]:
    """A NaN in a parameter that travels uncompressed leaves all residuals as they were, too."""
    model = DistributedDataParallel(network())
    handle = tw.compress(model, "int4", feedback=True)
    model(inputs(rank, 0)).square().mean().backward()
    before = handle.state_dict()["residuals"][f"rank{rank}"]
    if rank == 1:
        model.module[2].bias.register_hook(lambda grad: grad * float("nan"))
    model(inputs(rank, 1)).square().mean().backward()
    after = handle.state_dict()["residuals"][f"rank{rank}"]
    return [n for n in before if not torch.equal(before[n], after[n])] + (["finite"] if handle.finite else [])


def test_a_nan_in_an_uncompressed_parameter_leaves_residuals_alone():
    assert real.run(_bias_only, 2) == [[], []]


def _rescale(rank: int) -> list[str]:
    model = DistributedDataParallel(network())
    handle = tw.compress(model, "int4", feedback=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    handle.follow(scaler)
    scaler.scale(model(inputs(rank, 0)).square().mean()).backward()
    before = handle.state_dict()["residuals"][f"rank{rank}"]
    scaler.update(64.0)
    handle._follow_scale()
    after = handle.state_dict()["residuals"][f"rank{rank}"]
    wrong = [n for n in before if not torch.equal(after[n], before[n] / 4)]
    for bad in (lambda: handle.follow(3), lambda: handle.rescale(0.0), lambda: handle.rescale(float("nan"))):
        with pytest.raises(tw.ConfigError, match="allowed"):
            bad()
    return wrong


def test_residuals_follow_the_loss_scale():
    assert real.run(_rescale, 2) == [[], []]
