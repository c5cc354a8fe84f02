"""What the checks cost: steps of the gpt workload with all of them on, and with all of them off, in turns.

Usage: torchrun --nproc_per_node 2 scripts/overhead.py STEPS. Prints the ratio of median step times, with a bootstrap interval.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire.feedback import Residuals
from thinwire.workloads.gpt import GptConfig, GptWorkload
from thinwire.workloads.loop import replicas_identical


class Off(Residuals):
    """Residuals that do not look for a NaN."""

    def seen(self, mean: torch.Tensor) -> None:
        pass


def made(workload: GptWorkload, checks: bool):
    torch.manual_seed(0)
    model = DistributedDataParallel(workload.model())
    handle = tw.compress(model, "int8", feedback=True, verify_every=100 if checks else None)
    if not checks:
        handle._residuals.__class__ = Off
        del vars(model)["_pre_forward"]
    return model, workload.optimizer(model)


def main(steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    workload = GptWorkload(None, GptConfig())
    pair = [made(workload, checks) for checks in (True, False)]
    times: list[list[float]] = [[], []]
    batches = [batch for epoch in range(1 + steps // 100) for batch in workload.batches(epoch, 0, rank, ranks)]
    for step, (inputs, targets) in enumerate(batches[:steps]):
        for which in (0, 1) if step % 2 else (1, 0):
            model, optimizer = pair[which]
            start = time.perf_counter()
            loss = workload.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step > 4:
                times[which].append(time.perf_counter() - start)
    same = [replicas_identical(model) for model, _ in pair]
    if rank == 0:
        ratios = [a / b for a, b in zip(*times, strict=True)]
        draws = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
        on, off = (1e3 * statistics.median(one) for one in times)
        print(f"on {on:.1f} ms, off {off:.1f} ms, ratio {statistics.median(ratios):.4f} ({draws[50]:.4f} to {draws[-50]:.4f})")
        print(f"replicas identical: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
