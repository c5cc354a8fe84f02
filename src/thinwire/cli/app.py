"""``thinwire``: the verbs, and what a user's mistake looks like."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinwire._version import __version__
from thinwire.cli import bench, lab, train
from thinwire.cli.inspect import inspect
from thinwire.cli.launch import RunEnded
from thinwire.cli.output import check_json, print_table, write_json
from thinwire.codec import describe
from thinwire.errors import ConfigError, DataError, ThinwireError

app = typer.Typer(
    help="Tensors of distributed PyTorch training in few bits per element.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(train.app, name="train")
app.add_typer(bench.app, name="bench")
app.add_typer(lab.app, name="lab")
app.command()(inspect)


def _version(value: bool) -> None:
    if value:
        print(f"thinwire {__version__}")
        raise typer.Exit


@app.callback()
def root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    """Tensors of distributed PyTorch training in few bits per element."""


@app.command()
def codecs(
    elements: Annotated[int, typer.Option(help="Elements of a row, for the effective bits.", min=1)] = 1 << 20,
    json: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:
    """Every codec: effective bits an element, fields with their defaults, and the source of its formula."""
    check_json(json)
    rows = describe(elements)
    columns = {"codec": "codec", "bits_per_element": "bits/element", "fields": "fields", "source": "source"}
    print_table(rows, columns, title=f"Codecs, rows of {elements:,} elements")
    write_json(json, rows)


def main() -> None:
    """Run the command line. Exit code 2 and one line for a user's mistake, 1 for what went wrong later, 128 + n for signal n."""
    try:
        app()
    except (ConfigError, DataError) as error:
        _complain(error)
        sys.exit(2)
    except RunEnded as error:
        _complain(error)
        sys.exit(error.exit_code)
    except ThinwireError as error:
        _complain(error)
        sys.exit(1)


def _complain(error: Exception) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"thinwire: {error}", markup=False)
