"""One rank of ``thinwire bench collective`` or ``train``: measures with the others; rank 0 shows what and prints the table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from thinwire.bench.collective import COLUMNS, measure
from thinwire.bench.train import COLUMNS as COLUMNS_TRAIN
from thinwire.bench.train import Goal, race
from thinwire.cli.output import console, print_table, write_json
from thinwire.codec.base import Codec
from thinwire.kernels.threads import set_num_threads
from thinwire.workloads.base import Workload
from thinwire.workloads.gpt import GptConfig, GptWorkload
from thinwire.workloads.mnist import Mnist, MnistConfig


def run_collective(
    codecs: Sequence[Codec], sizes: Sequence[int], repeat: int, streams: int | None, link_rate: float | None, json: Path | None
) -> None:
    """Join the process group that the environment describes and measure; rank 0 prints."""
    threads = _threads()
    dist.init_process_group("gloo")
    try:
        first = dist.get_rank() == 0
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console(stderr=True), transient=True, disable=not first) as bar:
            task = bar.add_task("connecting", total=None)
            rows = measure(codecs, sizes, repeat, streams, link_rate, lambda text: bar.update(task, description=text))
        if first:
            found = rows[0]
            title = (
                f"Mean over {found['ranks']} ranks, {threads} thread(s) each, {found['streams']} connection(s) a pair; "
                f"measured link {found['measured_link_gbps']:.3g} Gb/s each way, round trip {found['round_trip_ms']:.3g} ms"
            )
            print_table(rows, COLUMNS, title=title)
            write_json(json, rows)
    finally:
        dist.destroy_process_group()


def run_race(name: str, codecs: Sequence[Codec], goal: Goal, seed: int, json: Path | None) -> None:
    """Join the process group that the environment describes and race; rank 0 prints."""
    threads = _threads()
    workload: Workload = Mnist(None, MnistConfig()) if name == "mnist" else GptWorkload(None, GptConfig())
    dist.init_process_group("gloo")
    try:
        first = dist.get_rank() == 0
        columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console(stderr=True), transient=True, disable=not first) as bars:
            tasks: dict[str, TaskID] = {}

            def show(contestant: str, step: int) -> None:
                if contestant not in tasks:
                    tasks[contestant] = bars.add_task(contestant, total=goal.steps)
                bars.update(tasks[contestant], completed=step)

            rows = race(workload, codecs, goal, seed, show)
        if first:
            what = f"accuracy {goal.accuracy:g}" if goal.accuracy is not None else f"loss {goal.loss:g}"
            title = f"{name} to {what} on held-out data, {rows[0]['ranks']} ranks, {threads} thread(s) each, seed {seed}"
            print_table(rows, COLUMNS_TRAIN, title=title)
            write_json(json, rows)
    finally:
        dist.destroy_process_group()


def _threads() -> int:
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    set_num_threads(threads)
    return threads
