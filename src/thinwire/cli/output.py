"""Rows for people and for programs: one table renderer, one JSON writer, one way to say that something went wrong."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from thinwire.errors import ConfigError

Row = Mapping[str, Any]


def console(stderr: bool = False) -> Console:
    """Standard output or error; where that is no terminal, wide enough that no table is cut."""
    made = Console(highlight=False, stderr=stderr)
    return made if made.is_terminal else Console(highlight=False, width=140, stderr=stderr)


def print_table(
    rows: Sequence[Row], columns: Mapping[str, str], title: str | None = None, formats: Mapping[str, str] | None = None
) -> None:
    """A table with one line a row; ``columns`` maps keys to headings, ``formats`` some keys to a format of their numbers.

    Missing values show as a dash.
    """
    table = Table(title=title, title_justify="left")
    for key, heading in columns.items():
        numbers = all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(row.get(key), (formats or {}).get(key)) for key in columns))
    console().print(table)


def _text(value: Any, form: str | None = None) -> str:
    if value is None:
        return "-"
    if form is not None:
        return format(value, form)
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 10_000):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 0.1 else f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)


def check_json(path: Path | None) -> None:
    """Raises ConfigError before any work if the JSON could not be written afterwards."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--json {path} cannot be written; allowed: a file in a folder that exists and can be written to")


def write_json(path: Path | None, rows: Sequence[Row]) -> None:
    """``{"rows": [...]}``, or nothing for None. JSON has no NaN and no infinity: null stands for them.

    Raises ConfigError if the file cannot be written.
    """
    if path is None:
        return
    try:
        path.write_text(json.dumps({"rows": _finite(rows)}, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path} cannot be written: {error.strerror}") from None


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in cast(Row, value).items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
