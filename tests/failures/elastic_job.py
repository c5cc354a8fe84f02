"""A job under torchrun that saves every few steps and goes on from the newest complete checkpoint; one rank is killed once.

Arguments: a folder, the steps, the rank that is killed in the first attempt (-1: none), at which step, and how
many microseconds into it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw

EVERY = 4


def newest(folder: Path, ranks: int) -> int:
    """The last step that all ranks have saved; 0 if there is none."""
    steps = {int(path.stem.split("-")[0]) for path in folder.glob("*-*.pt")}
    return max((n for n in steps if all((folder / f"{n}-{rank}.pt").exists() for rank in range(ranks))), default=0)


def main(folder: Path, steps: int, victim: int, moment: int, microseconds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(40, 90), nn.Dropout(0.1), nn.ReLU(), nn.Linear(90, 70), nn.ReLU(), nn.Linear(70, 10))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.02)
    handle = tw.compress(model, "int4", feedback=True, timeout=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    dist.barrier()
    start = newest(folder, ranks)
    dist.barrier()
    if start:
        saved = torch.load(folder / f"{start}-{rank}.pt", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        handle.load_state_dict(saved["handle"])
        torch.set_rng_state(saved["random"])
    for step in range(start, steps):
        if rank == victim and step == moment and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            threading.Timer(microseconds / 1e6, os.kill, [os.getpid(), signal.SIGKILL]).start()
        generator = torch.Generator().manual_seed(step * 64 + rank)
        inputs, targets = torch.randn(16, 40, generator=generator), torch.randint(10, (16,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if (step + 1) % EVERY == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "handle": handle.state_dict()}
            part = folder / f"{step + 1}-{rank}.part"
            torch.save(state | {"random": torch.get_rng_state()}, part)
            part.rename(folder / f"{step + 1}-{rank}.pt")
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (folder / f"end-{rank}.txt").write_text(f"{loss.item()!r} {weights} {start} {attempt}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *map(int, sys.argv[3:]))
