"""``thinwire bench converge``: how training ends with each codec, on ranks that are simulated in this process."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thinwire.cli.options import parse_choices
from thinwire.cli.output import check_json
from thinwire.codec import codec as resolve
from thinwire.errors import ConfigError

if TYPE_CHECKING:
    from thinwire.workloads.base import Workload

BASELINES = ("none", "bf16")


def converge(
    workload: Annotated[str, typer.Option(help="mnist or gpt.")] = "mnist",
    codecs: Annotated[str, typer.Option(help="Codecs beside none and bf16, separated by commas.")] = "int8,int4,int2",
    feedback: Annotated[str, typer.Option(help="off, plain, decay:0.95, average:0.9, dgc:0.9; separated by commas.")] = "off",
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum (mnist's), adamw (gpt's) or onebit-adam.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate at its peak; it falls linearly to zero.")] = None,
    warm_up: Annotated[int | None, typer.Option(help="Steps in which it rises; a tenth with Adam, 0 with SGD.")] = None,
    ranks: Annotated[int, typer.Option(help="Ranks to simulate.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps of a run.")] = 300,
    batch: Annotated[int | None, typer.Option(help="Samples a rank and step; the workload's default if not given.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each codec: seeds 0, 1, ...")] = 3,
    every: Annotated[int, typer.Option(help="Steps between two points of the curve.")] = 25,
    threads: Annotated[int | None, typer.Option(help="Threads; as many as processors if not given.")] = None,
    data: Annotated[Path | None, typer.Option(help="Text file (gpt) or folder of MNIST's idx files (mnist).")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the rows to this file, after each run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep finished runs of the file of --json, do the others.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves of the held-out loss: .png or .svg.")] = None,
) -> None:  # fmt: skip
    """Final loss of each codec against fp32 of the same seeds, in units of what another seed changes.

    One process plays all ranks: results have the bits that real ranks would give.
    """
    chosen = parse_choices(codecs)
    _check(ranks=ranks, steps=steps, seeds=seeds, every=every, threads=threads, batch=batch, lr=lr)
    if warm_up is not None and not 0 <= warm_up < steps:
        raise ConfigError(f"--warm-up {warm_up} is out of range; allowed: 0 to {steps - 1}, below --steps")
    check_json(json)
    if resume and (json is None or not json.is_file()):
        raise ConfigError(f"--resume with --json {json}; allowed: --json with the file of the study that is to go on")
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("thinwire bench converge needs torch: pip install 'thinwire[torch]'")
    from thinwire.bench import converge as study
    from thinwire.bench.converge_plot import check_plot
    from thinwire.cli.converge_run import rows_in, run, use_threads

    check_plot(plot)
    optimizer, usual = study.defaults(workload, optimizer)
    wanted = study.contestants(chosen, [resolve(name) for name in BASELINES], study.forms(feedback))
    study.check_optimizer(optimizer, wanted)
    job, size = _workload(workload, data, batch)
    settings = study.Settings(
        workload=workload,
        data=job.data,
        optimizer=optimizer,
        lr=usual if lr is None else lr,
        ranks=ranks,
        steps=steps,
        batch=size,
        every=every,
        threads=use_threads(threads),
        warm_up_steps=study.warm_up(optimizer, steps) if warm_up is None else warm_up,
    )
    run(job, settings, wanted, range(seeds), rows_in(json) if resume and json is not None else [], json, plot)


def _check(**options: float | int | None) -> None:
    for name, value in options.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"--{name} {value} is out of range; allowed: above 0, finite")


def _workload(name: str, data: Path | None, batch: int | None) -> tuple[Workload, int]:
    """The job, and how many samples a rank takes a step."""
    from thinwire.workloads.gpt import GptConfig, GptWorkload
    from thinwire.workloads.mnist import Mnist, MnistConfig

    if name == "mnist":
        digits = Mnist(data, MnistConfig() if batch is None else MnistConfig(batch=batch))
        return digits, digits.config.batch
    text = GptWorkload(data, GptConfig() if batch is None else GptConfig(batch=batch))
    return text, text.config.batch
