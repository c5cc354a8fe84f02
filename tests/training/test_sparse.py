"""``compress(model, "topk")``: feedback by default, the same replicas, and every byte counted."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from thinwire.workloads.loop import replicas_identical
from training.test_ddp import backward, local_gradients, network


def _mean_of_many(rank: int, ranks: int, feedback: bool | None) -> tuple[float, bool, bool]:
    """How far the mean of many reduced gradients is from the truth, the weights held fixed; feedback; bytes as they must be."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    codec = tw.codec("topk", k=32, chunk=512)
    handle = tw.compress(model, codec, feedback=feedback)
    large = [n for n, p in model.module.named_parameters() if p.dim() > 1]
    total, steps = {n: torch.zeros(()) for n in large}, 40
    sizes: list[int] = []
    inner = handle._reduction.mean
    handle._reduction.mean = lambda payload, layout: (sizes.append(payload.numel()), inner(payload, layout))
    for _ in range(steps):
        backward(model, rank, 0)
        for n, p in model.module.named_parameters():
            if n in large:
                total[n] = total[n] + p.grad / steps
    stats = handle.stats()
    plain = 2 * (ranks - 1) * 4 * stats.elements_uncompressed // ranks
    counted = abs(stats.bytes_sent - plain - (ranks - 1) * sum(codec.wire_bytes(n) for n in sizes)) <= 4 * len(sizes) * ranks
    exact = {n: sum(g[n] for g in local_gradients(model, ranks, 0)) / ranks for n in large}
    lost = sum((total[n] - exact[n]).square().sum() for n in large) / sum(e.square().sum() for e in exact.values())
    return float(lost.sqrt()), bool(handle.feedback), counted and replicas_identical(model)


@pytest.mark.parametrize("ranks", [2, 3])
def test_feedback_is_the_default_and_brings_everything_in_the_end(ranks):
    found = real.run(_mean_of_many, ranks, ranks, None)
    without = real.run(_mean_of_many, ranks, ranks, False)
    assert all(feedback and fine for _, feedback, fine in found)
    assert not any(feedback for _, feedback, _ in without)
    assert without[0][0] > 0.5
    assert found[0][0] < without[0][0] / 3


def _differ(rank: int) -> str:
    try:
        tw.compress(DistributedDataParallel(network()), "topk", feedback=tw.DeepGradient(momentum=0.9 if rank else 0.5))
    except tw.DisagreementError as error:
        return str(error)
    return ""


def test_ranks_with_other_momentum_fail_before_the_first_byte():
    for message in real.run(_differ, 2):
        assert "dgc:0.9" in message
        assert "dgc:0.5" in message
