"""``thinwire bench``: speed beside correctness."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli import links
from thinwire.cli.converge import converge
from thinwire.cli.options import parse_codecs
from thinwire.cli.output import check_json, print_table, write_json
from thinwire.cli.ranks import is_rank, start_ranks
from thinwire.codec import REGISTRY
from thinwire.codec import codec as resolve
from thinwire.codec.base import Codec
from thinwire.errors import ConfigError, unknown_name

app = typer.Typer(help="Measure speed, with correctness beside it.", no_args_is_help=True)


app.command()(converge)


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
    chosen = [resolve(name.strip()) for name in codec.split(",")] if codec != "all" else list(REGISTRY.values())
    _kernels(chosen, size, threads, repeat, None, json)


def _kernels(
    chosen: list[Codec], size: float, threads: int, repeat: int, hivemind_python: str | None, json: Path | None
) -> None:  # fmt: skip
    for name, value in (("size", size), ("threads", threads), ("repeat", repeat)):
        if value <= 0:
            raise ConfigError(f"--{name} {value} is out of range; allowed: above 0")
    check_json(json)
    from thinwire.bench.kernel import columns_of, measure, missing_peers

    rows = measure(chosen, int(size * 1e6) // 4, threads, repeat, hivemind_python)
    print_table(rows, columns_of(rows), title=f"{size:g} MB of fp32, {threads} thread(s), medians of {repeat} rounds")
    for line in missing_peers(hivemind_python):
        print(line)
    write_json(json, rows)


@app.command()
def accuracy(
    codecs: Annotated[str, typer.Option(help="Codecs separated by commas, fields behind semicolons; or all.")] = "all",
    elements: Annotated[int, typer.Option(help="Numbers of each distribution.", min=1)] = 1 << 22,
    seed: Annotated[int, typer.Option(help="Of the numbers.", min=0)] = 0,
    json: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:
    """What every codec loses of Gaussian, Laplace and Student-t(3) numbers, and the bits that it takes."""
    check_json(json)
    chosen = list(REGISTRY.values()) if codecs == "all" else [resolve(name.strip()) for name in codecs.split(",")]
    from thinwire.bench.accuracy import COLUMNS, measure

    rows = measure(chosen, elements, seed)
    print_table(rows, COLUMNS, title=f"Squared error by squared number, {elements:,} numbers a distribution")
    write_json(json, rows)


@app.command()
def peers(
    hivemind_python: Annotated[str | None, typer.Option(help="A Python that has hivemind, which needs numpy < 2.4.")] = None,
    codecs: Annotated[str, typer.Option(help="Our codecs to stand beside, separated by commas.")] = "fp16,int8,minmax8,int4",
    size: Annotated[float, typer.Option(help="MB of fp32 input.")] = 25.0,
    threads: Annotated[int, typer.Option(help="Threads that kernels may use.")] = 1,
    repeat: Annotated[int, typer.Option(help="Timed rounds; medians are shown.")] = 9,
    json: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:
    """The quantizers of other packages on the same input: pypiquant where it is installed, hivemind in its own environment."""
    chosen = [one for one in parse_codecs(codecs) if one.name != "none"]
    _kernels(chosen, size, threads, repeat, hivemind_python, json)


@app.command()
def collective(
    ranks: Annotated[int, typer.Option(help="Local ranks to start; ignored under torchrun.")] = 2,
    sizes: Annotated[str, typer.Option(help="Sizes of the fp32 tensor, separated by commas.")] = "1MB,16MB,64MB",
    codecs: Annotated[str, typer.Option(help="Codecs separated by commas.")] = "none,bf16,int8,int4",
    link: links.LinkRate = None,
    delay: links.Delay = "0",
    jitter: links.Jitter = "0",
    loss: links.Loss = "0",
    hosts: links.Hosts = None,
    streams: Annotated[int | None, typer.Option(help="Connections between two ranks; a probe chooses if not given.")] = None,
    repeat: Annotated[int, typer.Option(help="Timed rounds; medians are shown. At least 3, fewer than asked for if slow.")] = 7,
    link_rate: Annotated[str | None, typer.Option(help="Of your real network, for the share of it that is used: 10gbit.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:
    """Mean of a tensor over ranks: time, share of the link and error of each codec, beside torch's fp32 and bf16 all-reduce."""
    chosen, wanted = parse_codecs(codecs), [parse_size(one) for one in sizes.split(",")]
    if repeat < 1:
        raise ConfigError(f"--repeat {repeat} is out of range; allowed: 1 or more")
    if ranks < 2:
        raise ConfigError(f"--ranks {ranks} has no link to measure; allowed: 2 or more")
    lab = links.topology(ranks, link, delay, jitter, loss, hosts, precise=True)
    check_json(json)
    if not is_rank():
        start_ranks(lab, ranks, None)
        return
    from thinwire.cli.bench_rank import run_collective
    from thinwire.lab.units import parse_rate

    rate = lab.link.rate if lab is not None else None if link_rate is None else parse_rate(link_rate, "link-rate")
    run_collective(chosen, wanted, repeat, streams, rate, json)


@app.command()
def train(
    workload: Annotated[str, typer.Argument(help="mnist or gpt.")] = "mnist",
    ranks: Annotated[int, typer.Option(help="Local ranks to start; ignored under torchrun.")] = 2,
    codecs: Annotated[str, typer.Option(help="Our codecs, separated by commas.")] = "bf16,int8,int4",
    accuracy: Annotated[float | None, typer.Option(help="Train to this accuracy on held-out data; mnist: 0.9.")] = None,
    loss: Annotated[float | None, typer.Option(help="Or to this loss on held-out data; gpt: 3.")] = None,
    every: Annotated[int, typer.Option(help="Steps between two looks at held-out data, which are not timed.")] = 10,
    steps: Annotated[int, typer.Option(help="Give up after so many.")] = 300,
    seed: Annotated[int, typer.Option(help="Initial weights and the order of the data.")] = 0,
    link: links.LinkRate = None,
    delay: links.Delay = "0",
    jitter: links.Jitter = "0",
    loss_rate: Annotated[str, typer.Option("--packet-loss", help="Share of packets lost, such as 0.1%.")] = "0",
    hosts: links.Hosts = None,
    threads: Annotated[int | None, typer.Option(help="Threads a rank; the processors divided by the ranks if not given.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:
    """Seconds to an accuracy or a loss: our codecs beside DDP and PyTorch's fp16, bf16, PowerSGD and 8-bit hooks."""
    if workload not in ("mnist", "gpt"):
        raise unknown_name("workload", workload, ("mnist", "gpt"))
    for name, value in (("ranks", ranks), ("every", every), ("steps", steps)):
        if value < 1:
            raise ConfigError(f"--{name} {value} is out of range; allowed: 1 or more")
    if accuracy is not None and not 0 < accuracy <= 1:
        raise ConfigError(f"--accuracy {accuracy} is out of range; allowed: above 0, at most 1")
    chosen = [one for one in parse_codecs(codecs) if one.name != "none"]
    lab = links.topology(ranks, link, delay, jitter, loss_rate, hosts, precise=True)
    check_json(json)
    if not is_rank():
        start_ranks(lab, ranks, threads)
        return
    from thinwire.bench.train import Goal
    from thinwire.cli.bench_rank import run_race

    if accuracy is None and loss is None:
        accuracy, loss = (0.9, None) if workload == "mnist" else (None, 3.0)
    run_race(workload, chosen, Goal(accuracy=accuracy, loss=loss, every=every, steps=steps), seed, json)


def parse_size(text: str) -> int:
    """Bytes from ``16MB``, ``64KB``, ``1GiB``. Raises ConfigError for anything else, or for what is not a whole fp32 number."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMG]?)(i?)B\s*", text)
    size = 0.0
    if match is not None:
        size = float(match[1]) * (1024 if match[3] else 1000) ** " KMG".index(match[2].upper() or " ")
    if match is None or not 4 <= size <= 1 << 36:
        raise ConfigError(f"--sizes has {text!r}; allowed: sizes from 4B to 64GiB such as 64KB, 16MB, 1GiB, separated by commas")
    return int(size) // 4 * 4
