"""Runs a function on real ranks: processes with a gloo group over loopback.

The function is a module's own (it is imported again in each process) and takes the rank first. What ranks return is
collected in a list; an exception of any rank fails the test with its traceback.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _main(rank: int, function: Callable[..., Any], ranks: int, port: int, queue: Any, args: tuple[Any, ...]) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    try:
        queue.put((rank, function(rank, *args)))
    finally:
        dist.destroy_process_group()


def run(function: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
    """What ``function(rank, *args)`` returns on each of ``ranks`` ranks, by rank."""
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    processes = mp.spawn(_main, (function, ranks, free_port(), queue, args), nprocs=ranks, join=False)
    results: dict[int, Any] = {}
    while not processes.join(timeout=0.05):
        while not queue.empty():
            results.update([queue.get()])
    while not queue.empty():
        results.update([queue.get()])
    return [results[rank] for rank in range(ranks)]
