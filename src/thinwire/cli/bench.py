"""``thinwire bench``: speed beside correctness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.output import check_json, print_table, write_json
from thinwire.codec import REGISTRY
from thinwire.codec import codec as resolve
from thinwire.errors import ConfigError

app = typer.Typer(help="Measure speed, with correctness beside it.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Measure speed, with correctness beside it."""


@app.command()
def kernel(
    codec: Annotated[str, typer.Option(help="Codecs separated by commas, or all.")] = "all",
    size: Annotated[float, typer.Option(help="MB of fp32 input.")] = 25.0,
    threads: Annotated[int, typer.Option(help="Threads that kernels may use.")] = 1,
    repeat: Annotated[int, typer.Option(help="Timed rounds; medians are shown.")] = 15,
    json: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:
    """GB/s of fp32 input of every codec's encode, decode and decode-and-add, beside a plain copy of the same input."""
    for name, value in (("size", size), ("threads", threads), ("repeat", repeat)):
        if value <= 0:
            raise ConfigError(f"--{name} {value} is out of range; allowed: above 0")
    check_json(json)
    chosen = [resolve(name.strip()) for name in codec.split(",")] if codec != "all" else list(REGISTRY.values())
    from thinwire.bench.kernel import COLUMNS, measure, missing_peers

    rows = measure(chosen, elements=int(size * 1e6) // 4, threads=threads, repeat=repeat)
    print_table(rows, COLUMNS, title=f"{size:g} MB of fp32, {threads} thread(s), medians of {repeat} rounds")
    for line in missing_peers():
        print(line)
    write_json(json, rows)
