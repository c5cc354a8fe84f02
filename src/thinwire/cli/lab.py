"""``thinwire lab``: any command on the hosts of an emulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from thinwire.cli import links
from thinwire.cli.launch import RunEnded
from thinwire.cli.output import check_json, console, print_table, write_json
from thinwire.errors import ConfigError
from thinwire.lab.topology import MTU

app = typer.Typer(help="A cluster on this machine: hosts with shaped links between them.", no_args_is_help=True)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    ranks: Annotated[int, typer.Option(help="Copies of the command; RANK, WORLD_SIZE and MASTER_ADDR tell them apart.")] = 2,
    link: Annotated[str, typer.Option(help="Rate of each host's link, each way: 100mbit, 1gbit, 2.5gbit.")] = "1gbit",
    delay: links.Delay = "0",
    jitter: links.Jitter = "0",
    loss: links.Loss = "0",
    hosts: links.Hosts = None,
    schedule: links.Schedule = None,
    mtu: links.Mtu = MTU,
) -> None:
    """Run a command once a rank, each rank on its host, with every line behind the rank's number.

    Any torch.distributed script runs unchanged. A rank that fails ends the others; the exit code is the worst rank's.
    Nothing is left behind: hosts and links end with this command, however it ends.
    """
    made = links.topology(ranks, link, delay, jitter, loss, hosts, schedule, mtu)
    assert made is not None
    result = links.run_to_end(made, command, on_event=links.show(made))
    links.finished(result, show_logs=ranks > 1)


@app.command()
def check(
    seconds: Annotated[float, typer.Option(help="Length of each measurement.")] = 2.5,
    json: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:
    """What this kernel offers to a lab, and whether a link does what was asked of it. Exit code 1 if a lab cannot run here."""
    from thinwire.lab.check import check as rows_of

    if not 0.1 <= seconds <= 60:
        raise ConfigError(f"--seconds {seconds} is out of range; allowed: 0.1 to 60")
    check_json(json)
    rows: list[dict[str, Any]] = []
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console(), transient=True) as progress:
        task = progress.add_task("trying what the kernel has")
        for row in rows_of(seconds):
            rows.append(row)
            progress.update(task, description=f"after {row['what']}")
    print_table(rows, {"what": "what", "works": "works", "detail": "detail"}, title="The lab on this machine")
    write_json(json, rows)
    if not any(row["works"] for row in rows if row["what"].startswith("namespaces")):
        raise RunEnded("no lab can run here", 1)


@app.command()
def clean() -> None:
    """End what a lab left behind: processes with its mark whose owner has gone. Labs that are running are left alone."""
    from thinwire.lab.clean import clean as ended
    from thinwire.lab.clean import members

    gone = ended()
    for one in gone:
        print(f"ended process {one.pid}: {one.program}")
    running = [one for one in members() if one.owned]
    print(f"{len(gone)} processes ended; {len(running)} belong to labs that are running and were left alone")
