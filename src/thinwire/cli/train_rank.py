"""One rank of ``thinwire train``: trains with every codec, and on rank 0 shows progress and the table."""

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
from thinwire.policy.choice import short
from thinwire.workloads.base import Workload
from thinwire.workloads.loop import Report, Result, Run, train

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
        if not first:
            train(workload, runs)
            return
        print(_heading(workload, runs, dist.get_world_size()), flush=True)
        with _reports([short(run.codec) for run in runs], workload.steps(dist.get_world_size())) as reports:
            results = train(workload, runs, reports)
        rows = _rows(results)
        print_table(rows, COLUMNS)
        write_json(json, rows)
    finally:
        dist.destroy_process_group()


def _heading(workload: Workload, runs: list[Run], ranks: int) -> str:
    run, names = runs[0], ", ".join(short(one.codec) for one in runs)
    length = f"{run.epochs} epochs" if run.steps is None else f"at most {run.steps} steps"
    size = f"{ranks} ranks, {torch.get_num_threads()} thread(s) each"
    return f"{workload.name}: {size}, {length}, seed {run.seed}, each with {names}; {workload.data}"


class _Lines(Report):
    """A line an epoch, where there is no terminal."""

    def __init__(self, name: str, every: int) -> None:
        self._name, self._every = name, every

    def started(self, summary: str) -> None:
        print(f"  {summary}", flush=True)

    def step(self, step: int, total: int, loss: float) -> None:
        if step % self._every == 0 or step == total:
            print(f"  {self._name}: step {step} of {total}, training loss {loss:.4f}", flush=True)


class _Bar(Report):
    """A progress bar in a terminal."""

    def __init__(self, name: str, bars: Progress) -> None:
        self._bars, self._task = bars, bars.add_task(name, loss=float("nan"))

    def started(self, summary: str) -> None:
        self._bars.console.print(f"  {summary}")

    def step(self, step: int, total: int, loss: float) -> None:
        self._bars.update(self._task, completed=step, total=total, loss=loss)


@contextlib.contextmanager
def _reports(names: list[str], steps_per_epoch: int) -> Generator[list[Report]]:
    """One report a run."""
    screen = console()
    if not screen.is_terminal:
        yield [_Lines(name, steps_per_epoch) for name in names]
        return
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.4f}"))
    with Progress(*columns, TimeRemainingColumn(), console=screen) as bars:
        yield [_Bar(name, bars) for name in names]


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
