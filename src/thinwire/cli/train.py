"""``thinwire train``: the same job with several codecs, side by side.

Outside of torchrun it starts local ranks itself, with torch's elastic launcher; under torchrun it is one of the ranks.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from thinwire.cli import links
from thinwire.cli.options import parse_choices
from thinwire.cli.output import check_json
from thinwire.cli.ranks import is_rank, start_ranks
from thinwire.errors import ConfigError
from thinwire.lab import Topology
from thinwire.policy.choice import Choice

app = typer.Typer(help="Train a small, real job with several codecs and compare them.", no_args_is_help=True)

Ranks = Annotated[int, typer.Option(help="Local ranks to start; ignored under torchrun.")]
Codecs = Annotated[str, typer.Option("--codec", help="Codecs to compare, separated by commas.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data; the workload's default if not given.")]
Seed = Annotated[int, typer.Option(help="Initial weights and the order of the data.")]
Steps = Annotated[int | None, typer.Option(help="Stop each run after so many steps.")]
Threads = Annotated[int | None, typer.Option(help="Threads a rank; the processors divided by the ranks if not given.")]
Feedback = Annotated[bool | None, typer.Option("--feedback/--no-feedback", help="Error feedback; the codec's default.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")]
Lr = Annotated[float | None, typer.Option(help="Learning rate; the workload's default if not given.")]
Batch = Annotated[int | None, typer.Option(help="Samples a rank and step; the workload's default if not given.")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What all workloads take. Raises ConfigError for anything that would stop the ranks later."""

    ranks: int
    epochs: int | None
    seed: int
    steps: int | None
    threads: int | None
    feedback: bool | None
    json: Path | None

    def __post_init__(self) -> None:
        for name in ("ranks", "epochs", "steps", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} {value} is out of range; allowed: 1 or more")
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise ConfigError(f"--seed {self.seed} is out of range; allowed: integers of 64 bits, -2^63 to 2^63 - 1")
        # Rank 0 alone writes: other machines need no such folder.
        if os.environ.get("RANK", "0") == "0":
            check_json(self.json)
        if importlib.util.find_spec("torch") is None:
            raise ConfigError("thinwire train needs torch: pip install 'thinwire[torch]'")


@app.command()
def mnist(
    ranks: Ranks = 2,
    codec: Codecs = "none,bf16,int8,int4",
    epochs: Epochs = None,
    seed: Seed = 0,
    data: Annotated[Path | None, typer.Option(help="Folder of MNIST's four idx files, plain or .gz.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch full MNIST (11 MB) and use it.")] = False,
    lr: Lr = None,
    batch: Batch = None,
    steps: Steps = None,
    threads: Threads = None,
    feedback: Feedback = None,
    link: links.LinkRate = None,
    delay: links.Delay = "0",
    jitter: links.Jitter = "0",
    loss: links.Loss = "0",
    hosts: links.Hosts = None,
    schedule: links.Schedule = None,
    json: Json = None,
) -> None:
    """Handwritten digits, a convolutional network of 216,650 parameters, SGD with momentum."""
    options = Options(ranks=ranks, epochs=epochs, seed=seed, steps=steps, threads=threads, feedback=feedback, json=json)
    lab = links.topology(ranks, link, delay, jitter, loss, hosts, schedule, precise=True)
    codecs = parse_choices(codec)
    from thinwire.workloads import download as fetch
    from thinwire.workloads.mnist import Mnist, MnistConfig

    if data is not None and download:
        raise ConfigError("--data and --download together; allowed: one of them")
    folder = fetch.mnist() if download else data
    workload = Mnist(folder, MnistConfig(**_given(lr=lr, batch=batch)))
    _go(workload, codecs, options, lab)


@app.command()
def gpt(
    ranks: Ranks = 2,
    codec: Codecs = "none,bf16,int8,int4",
    epochs: Epochs = None,
    seed: Seed = 0,
    data: Annotated[Path | None, typer.Option(help="Text file; the standard library's source if not given.")] = None,
    lr: Lr = None,
    batch: Batch = None,
    steps: Steps = None,
    threads: Threads = None,
    feedback: Feedback = None,
    link: links.LinkRate = None,
    delay: links.Delay = "0",
    jitter: links.Jitter = "0",
    loss: links.Loss = "0",
    hosts: links.Hosts = None,
    schedule: links.Schedule = None,
    json: Json = None,
) -> None:
    """Bytes of text, a transformer of 3.3 million parameters, AdamW. An epoch is 100 steps."""
    options = Options(ranks=ranks, epochs=epochs, seed=seed, steps=steps, threads=threads, feedback=feedback, json=json)
    lab = links.topology(ranks, link, delay, jitter, loss, hosts, schedule, precise=True)
    codecs = parse_choices(codec)
    from thinwire.workloads.gpt import GptConfig, GptWorkload

    workload = GptWorkload(data, GptConfig(**_given(lr=lr, batch=batch)))
    _go(workload, codecs, options, lab)


def _given(**options: float | int | None) -> dict[str, Any]:
    for name, value in options.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"--{name} {value} is out of range; allowed: above 0, finite")
    return {name: value for name, value in options.items() if value is not None}


def _go(workload: object, codecs: list[Choice], options: Options, lab: Topology | None) -> None:
    if not is_rank():
        start_ranks(lab, options.ranks, options.threads)
        return
    from thinwire.cli.train_rank import run_rank
    from thinwire.workloads.base import Workload
    from thinwire.workloads.loop import Run

    assert isinstance(workload, Workload)
    epochs, seed, steps = options.epochs or workload.epochs, options.seed, options.steps
    runs = [Run(codec=one, epochs=epochs, seed=seed, steps=steps, feedback=options.feedback) for one in codecs]
    run_rank(workload, runs, options.threads, options.json)
