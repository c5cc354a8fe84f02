"""One rank of ``thinwire train``: runs every codec, and on rank 0 shows progress and the table."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from thinwire.cli.output import console, print_table, write_json
from thinwire.workloads.base import Workload
from thinwire.workloads.loop import Progress as Report
from thinwire.workloads.loop import Result, Run, train

COLUMNS = {
    "codec": "codec",
    "bits_per_element": "bits/ element",
    "wire_bytes_per_step": "bytes sent/ rank/step",
    "encode_ms": "encode ms",
    "wire_ms": "wire ms",
    "decode_ms": "decode ms",
    "exposed_ms": "exposed ms",
    "step_ms": "step ms",
    "loss": "test loss",
    "accuracy_percent": "accuracy %",
    "accuracy_difference": "to none",
    "replicas_identical": "replicas identical",
}


def run_rank(workload: Workload, runs: list[Run], threads: int | None, json: Path | None) -> None:
    """Join the process group that torchrun's environment describes, train, and print on rank 0."""
    torch.set_num_threads(threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    try:
        first = dist.get_rank() == 0
        if first:
            print(_heading(workload, runs[0], dist.get_world_size()), flush=True)
        results = [_one(workload, run, first) for run in runs]
        if first:
            rows = _rows(results)
            print_table(rows, COLUMNS)
            write_json(json, rows)
    finally:
        dist.destroy_process_group()


def _heading(workload: Workload, run: Run, ranks: int) -> str:
    length = f"{run.epochs} epochs" if run.steps is None else f"at most {run.steps} steps"
    return f"{workload.name}: {ranks} ranks, {length}, seed {run.seed}; {workload.data}"


def _one(workload: Workload, run: Run, first: bool) -> Result:
    if not first:
        return train(workload, run)
    with _progress(run.codec.name, workload.steps(dist.get_world_size())) as report:
        return train(workload, run, report, say=lambda line: print(f"  {line}", flush=True))


@contextlib.contextmanager
def _progress(name: str, steps_per_epoch: int) -> Generator[Report]:
    """A bar in a terminal; elsewhere a line an epoch."""
    screen = console()
    if not screen.is_terminal:

        def line(step: int, total: int, loss: float) -> None:
            if step % steps_per_epoch == 0 or step == total:
                print(f"  {name}: step {step} of {total}, training loss {loss:.4f}", flush=True)

        yield line
        return
    columns = (
        TextColumn("{task.description:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=screen) as bar:
        task = bar.add_task(name, loss=float("nan"))
        yield lambda step, total, loss: bar.update(task, completed=step, total=total, loss=loss)


def _rows(results: list[Result]) -> list[dict[str, Any]]:
    baseline = next((one.accuracy for one in results if one.codec == "none"), None)
    rows: list[dict[str, Any]] = []
    for one in results:
        row: dict[str, Any] = dataclasses.asdict(one)
        row["step_ms"] = None if one.step_ms != one.step_ms else one.step_ms
        row["accuracy_percent"] = 100 * one.accuracy
        row["accuracy_difference"] = None if baseline is None else 100 * (one.accuracy - baseline)
        rows.append(row)
    return rows
