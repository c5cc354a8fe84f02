"""Runs a function on real ranks: processes with a gloo group over loopback, started once and kept for all tests.

The function is a module's own (ranks import it by name) and takes the rank first. What ranks return comes back by rank; an
exception of any rank fails the test with its traceback, and the ranks are started afresh for the next one.
"""

from __future__ import annotations

import atexit
import socket
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_pools: dict[int, list[tuple[Any, Connection]]] = {}
_TIMEOUT = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _main(rank: int, ranks: int, port: int, pipe: Connection) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    address, limit = f"tcp://127.0.0.1:{port}", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks, timeout=limit)
    from thinwire.kernels import ops

    while (work := pipe.recv()) is not None:
        function, args = work
        ops.set_backend("numba")
        try:
            pipe.send((True, function(rank, *args)))
        except Exception:  # the test shows it
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


def _start(ranks: int) -> list[tuple[Any, Connection]]:
    context = mp.get_context("spawn")
    port, pool = free_port(), []
    for rank in range(ranks):
        here, there = context.Pipe()
        process = context.Process(target=_main, args=(rank, ranks, port, there), daemon=True)
        process.start()
        there.close()
        pool.append((process, here))
    return pool


def _stop(ranks: int, kill: bool = False) -> None:
    for process, pipe in _pools.pop(ranks, []):
        if kill:
            process.kill()
        else:
            pipe.send(None)
        process.join(10)


def run(function: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
    """What ``function(rank, *args)`` returns on each of ``ranks`` ranks, by rank."""
    if ranks not in _pools:
        if not _pools:
            atexit.register(lambda: [_stop(number) for number in list(_pools)])
        _pools[ranks] = _start(ranks)
    pipes = [pipe for _, pipe in _pools[ranks]]
    for pipe in pipes:
        pipe.send((function, args))
    results: dict[int, Any] = {}
    while len(results) < ranks:
        ready = wait([p for i, p in enumerate(pipes) if i not in results], _TIMEOUT)
        if not ready:
            _stop(ranks, kill=True)
            raise AssertionError(f"ranks {sorted(set(range(ranks)) - set(results))} did not answer in {_TIMEOUT} s")
        for pipe in ready:
            rank = pipes.index(pipe)
            good, value = pipe.recv()
            if not good:
                _stop(ranks, kill=True)
                raise AssertionError(f"rank {rank} failed:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(ranks)]
