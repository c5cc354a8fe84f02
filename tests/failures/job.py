"""A training job on one rank in which one rank fails at a moment that was drawn beforehand; prints one JSON line if it survives.

Arguments: the seed, the rank that fails, how, after how many milliseconds of training, and the timeout in seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw

STEPS = 100_000


def fail(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "cut":
        from pyroute2 import IPRoute

        with IPRoute() as route:
            for link in route.get_links():
                if link.get_attr("IFLA_IFNAME") != "lo":
                    route.link("set", index=link["index"], state="down")


def main(seed: int, victim: int, how: str, milliseconds: int, timeout: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 400), nn.ReLU(), nn.Linear(400, 10))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.3)
    if how == "late" and rank == victim:
        time.sleep(2 * timeout + 10)
    said: dict[str, object] = {"rank": rank, "error": None}
    start = time.time()
    raised = threading.Event()
    try:
        tw.compress(model, "int4", feedback=True, timeout=timeout)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        start = time.time()
        if rank == victim and how in ("kill", "freeze", "cut"):
            threading.Timer(milliseconds / 1000, fail, [how]).start()
        for step in range(STEPS):
            if rank == victim and how == "raise" and time.time() - start > milliseconds / 1000:
                raised.set()
                raise ValueError("the training script's own")
            generator = torch.Generator().manual_seed(step * 64 + rank)
            optimizer.zero_grad()
            model(torch.randn(8, 300, generator=generator)).square().mean().backward()
            optimizer.step()
    except tw.TransportError as error:
        said |= {"error": type(error).__name__, "text": str(error), "ranks": error.ranks, "operation": error.operation}
    said["seconds"] = time.time() - start - milliseconds / 1000
    print(json.dumps(said), flush=True)
    sys.exit(7)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
