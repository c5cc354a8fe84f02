"""What ``thinwire inspect`` shows: two tables that fit 120 characters, JSON, and the picture."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.util
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from thinwire.cli.output import console, print_table, write_json
from thinwire.errors import ConfigError, unknown_name
from thinwire.inspect.layers import Layer, choose, rows, total
from thinwire.inspect.plot import SUFFIXES, Panel, draw
from thinwire.inspect.suggestion import compressible, error

COLUMNS: Final = {
    "layer": "layer",
    "elements": "elements",
    "absmax": "absmax",
    "rms": "RMS",
    "kurtosis": "kurt.",
    "block_kurtosis": "in 64",
    "zeros": "zeros",
    "nonfinite": "NaN, Inf",
    "correlation": "corr.",
    "codec": "codec",
    "bits_per_element": "bits",
    "error": "NMSE",
}
_CODECS_A_TABLE: Final = 8
_PANELS: Final = 4
_MOST_PANELS: Final = 36


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Layers, a line that says what they are of, and how to get the values of one again."""

    title: str
    layers: list[Layer]
    values: Callable[[str], npt.NDArray[Any]]
    """One rank's, of one step."""
    notes: Sequence[str] = ()


def check_plot(path: Path | None) -> None:
    """Raises ConfigError before any work if the picture could not be drawn afterwards."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path} ends in {path.suffix!r}; allowed: {', '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--plot {path} cannot be written; allowed: a file in a folder that exists and can be written to")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'thinwire[plot]'")


@contextmanager
def progress(what: str, count: int) -> Generator[Callable[[], None]]:
    """A bar on standard error, where that is a terminal, and what advances it by one."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bars:
        task = bars.add_task(what, total=count)
        yield lambda: bars.advance(task)


def report(found: Found, tolerance: float, pattern: str | None, plot: Path | None, json: Path | None) -> None:
    """Print, write and draw. Raises ConfigError for a pattern that no layer has, before anything is printed."""
    chosen = _chosen(found.layers, pattern)
    made = [*rows(found.layers, tolerance), total(found.layers, tolerance)]
    _print_layers(made, found.title)
    _print_codecs(found.layers, tolerance)
    for note in found.notes:
        console().print(note, markup=False)
    write_json(json, made)
    if plot is not None:
        _draw(found, chosen, tolerance, plot)


def _print_layers(made: Sequence[dict[str, Any]], title: str) -> None:
    spoiled = any(row["nonfinite"] for row in made)
    columns = {key: heading for key, heading in COLUMNS.items() if spoiled or key != "nonfinite"}
    print_table([{key: _short(row.get(key)) for key in columns} for row in map(_shown, made)], columns, title=title)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the table has it: of the two errors the larger, as the rule takes it."""
    return row | {"error": max(row["nmse"], row["mean_nmse"] or 0.0)}


def _print_codecs(layers: Sequence[Layer], tolerance: float) -> None:
    """The errors of all codecs by layer, in as many tables as their width takes."""
    names = list(layers[0].losses) if layers else []
    made = [
        {"layer": layer.name, "suggested": choose(layer, tolerance).codec}
        | {name: _short(error(loss)) for name, loss in layer.losses.items()}
        for layer in layers
    ]
    ranks = max(layer.ranks for layer in layers)
    what = "NMSE of one encoding, or of the mean if larger" if ranks > 1 else "Twice the NMSE of one encoding"
    for start in range(0, len(names), _CODECS_A_TABLE):
        part = names[start : start + _CODECS_A_TABLE]
        columns = {"layer": "layer", **{name: name for name in part}, "suggested": "suggested"}
        print_table(made, columns, title=f"{what}; suggested: the fewest bits with {tolerance:g} or less")


def _short(value: Any) -> Any:
    """Three digits are what these figures are worth, and what fits."""
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _chosen(layers: Sequence[Layer], pattern: str | None) -> list[Layer]:
    """The layers that ``pattern`` names, or the few largest."""
    if pattern is None:
        # What is compressed first.
        order = sorted(layers, key=lambda one: (not compressible(one.shape, one.elements), -one.elements))
        largest = {one.name for one in order[:_PANELS]}
        return [one for one in layers if one.name in largest]
    matching = [one for one in layers if one.name == pattern or fnmatch.fnmatchcase(one.name, pattern)]
    if not matching:
        raise unknown_name("layer", pattern, [one.name for one in layers])
    if len(matching) > _MOST_PANELS:
        raise ConfigError(f"--layer {pattern} names {len(matching)} layers; allowed: up to {_MOST_PANELS}")
    return matching


def _draw(found: Found, chosen: Sequence[Layer], tolerance: float, path: Path) -> None:
    panels = [Panel(layer=layer.name, values=found.values(layer.name), codec=choose(layer, tolerance).codec) for layer in chosen]
    try:
        draw(panels, path)
    except OSError as problem:
        raise ConfigError(f"--plot {path} cannot be written: {problem.strerror}") from None
    console().print(f"drawn: {path}", markup=False)
