"""One rank of ``thinwire bench collective``: measures with the others, and on rank 0 shows what and prints the table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from thinwire.bench.collective import COLUMNS, measure
from thinwire.cli.output import console, print_table, write_json
from thinwire.codec.base import Codec
from thinwire.kernels.threads import set_num_threads


def run_collective(
    codecs: Sequence[Codec], sizes: Sequence[int], repeat: int, streams: int | None, link_rate: float | None, json: Path | None
) -> None:
    """Join the process group that the environment describes and measure; rank 0 prints."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    set_num_threads(threads)
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
