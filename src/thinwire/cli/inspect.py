"""``thinwire inspect``: is 8 bits fine for this layer? Figures of real gradients, and what each codec loses of them."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from thinwire.cli.inspect_output import Found, check_plot, report
from thinwire.cli.options import parse_codecs
from thinwire.cli.output import check_json
from thinwire.codec.base import Codec
from thinwire.errors import ConfigError, DataError, unknown_name
from thinwire.inspect.files import SUFFIXES
from thinwire.inspect.suggestion import TOLERANCE, default_codecs

WORKLOADS: Final = ("gpt", "mnist")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What all sources take. Raises ConfigError for anything that would stop the work later."""

    steps: int
    after: int
    ranks: int | None
    seed: int
    data: Path | None
    keep: Path | None
    codecs: list[Codec]
    tolerance: float
    layer: str | None
    plot: Path | None
    json: Path | None

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("after", 0), ("ranks", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name} {value} is out of range; allowed: {least} or more")
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise ConfigError(f"--seed {self.seed} is out of range; allowed: integers of 64 bits, -2^63 to 2^63 - 1")
        if not (self.tolerance >= 0 and math.isfinite(self.tolerance)):
            raise ConfigError(f"--tolerance {self.tolerance} is out of range; allowed: 0 or more, finite")
        # Rank 0 alone writes: other machines need no such folder.
        if os.environ.get("RANK", "0") == "0":
            check_json(self.json)
            check_plot(self.plot)

    def show(self, found: Found) -> None:
        """Print, write and draw what was found."""
        report(found, self.tolerance, self.layer, self.plot, self.json)


def inspect(
    sources: Annotated[
        list[str],
        typer.Argument(help="gpt, mnist, FILE.npz or FILE.safetensors (one a rank), or SCRIPT.py and after -- its arguments."),
    ],
    steps: Annotated[int, typer.Option(help="Training steps of a workload or a script to look at.")] = 3,
    after: Annotated[int, typer.Option(help="Training steps before the first that is looked at.")] = 0,
    ranks: Annotated[int | None, typer.Option(help="Simulated ranks of a workload (default 4), or local ones to start.")] = None,
    codecs: Annotated[str | None, typer.Option(help="Codecs to try, separated by commas; if not given, all with blocks.")] = None,
    tolerance: Annotated[float, typer.Option(help="Largest NMSE of a suggested codec, also of the mean over ranks.")] = TOLERANCE,
    layer: Annotated[str | None, typer.Option(help="Layers to plot, such as 'blocks.*.up.weight'; else the largest.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw histograms and levels into this .png or .svg.")] = None,
    seed: Annotated[int, typer.Option(help="Of a workload: initial weights and the order of the data.")] = 0,
    data: Annotated[Path | None, typer.Option(help="Of a workload: its data, as thinwire train takes it.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Of a script: keep the gradients in this new folder, as .npz.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:  # fmt: skip
    """Look at real gradients, a row a layer: their statistics, what each codec loses of them, and the codec that is enough."""
    if not sources:
        raise ConfigError("inspect has nothing to look at; allowed: gpt, mnist, FILE.npz, FILE.safetensors, SCRIPT.py")
    look = _way(sources)
    options = Options(
        steps=steps, after=after, ranks=ranks, seed=seed, data=data, keep=keep, layer=layer, plot=plot, json=json,
        codecs=parse_codecs(codecs if codecs is not None else ",".join(default_codecs())), tolerance=tolerance,
    )  # fmt: skip
    look(sources, options)


def _way(sources: list[str]) -> Callable[[list[str], Options], None]:
    """What looks at sources of this kind. Raises ConfigError for an unknown kind."""
    first = sources[0]
    if first in WORKLOADS and len(sources) == 1:
        return _workload
    if Path(first).suffix == ".py":
        return _script
    if Path(first).suffix in SUFFIXES:
        return _files
    if first in WORKLOADS:
        raise ConfigError(f"{first} with {sources[1]!r} behind it; allowed: {first} alone, and options")
    if Path(first).exists():
        raise ConfigError(f"{first} is of no known kind; allowed: {', '.join(SUFFIXES)}, .py")
    raise unknown_name("source", first, [*WORKLOADS, *(f"FILE{suffix}" for suffix in SUFFIXES), "SCRIPT.py"])


def _workload(sources: list[str], options: Options) -> None:
    _need_torch("a workload")
    from thinwire.cli.inspect_run import workload

    found = workload(
        sources[0], options.codecs, options.ranks or 4, options.steps, options.after, options.seed, options.data
    )  # fmt: skip
    options.show(found)


def _files(sources: list[str], options: Options) -> None:
    from thinwire.cli.inspect_files import files

    options.show(files([Path(one) for one in sources], options.codecs))


def _script(sources: list[str], options: Options) -> None:
    path = Path(sources[0])
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    _need_torch("a script")
    from thinwire.cli.ranks import is_rank, start_ranks

    if (options.ranks or 1) > 1 and not is_rank():
        start_ranks(None, options.ranks or 1, None)
        return
    from thinwire.cli.inspect_script import Job, script

    job = Job(
        path=path, arguments=sources[1:], codecs=options.codecs, steps=options.steps, after=options.after, keep=options.keep
    )  # fmt: skip
    script(job, options.show)


def _need_torch(what: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"thinwire inspect of {what} needs torch: pip install 'thinwire[torch]'")
