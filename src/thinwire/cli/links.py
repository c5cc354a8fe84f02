"""The options of a link, the same for every verb that runs in a lab."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from thinwire.cli.launch import RunEnded
from thinwire.cli.output import console
from thinwire.errors import ConfigError
from thinwire.lab import Topology, link, run, schedule
from thinwire.lab.run import Event, Result
from thinwire.lab.topology import BURST, MTU, PRECISE_BURST

LinkRate = Annotated[str | None, typer.Option("--link", help="Run in a lab whose hosts have links of this rate: 100mbit, 1gbit.")]
Delay = Annotated[str, typer.Option(help="One way between two hosts, such as 20ms; a round trip takes twice that.")]
Jitter = Annotated[str, typer.Option(help="Spread of the delay to both sides, such as 2ms; packets keep their order.")]
Loss = Annotated[str, typer.Option(help="Share of packets lost, such as 0.1%.")]
Hosts = Annotated[int | None, typer.Option(help="Machines that the ranks share evenly; one a rank if not given.")]
Schedule = Annotated[str | None, typer.Option(help="Links that change: 0s:1gbit/1ms,30s:100mbit/250ms.")]
Mtu = Annotated[int, typer.Option(help="Largest packet of the links in bytes.")]

_FAST = 4e9
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


def topology(
    ranks: int, rate: str | None, delay: str = "0", jitter: str = "0", loss: str = "0",
    hosts: int | None = None, changes: str | None = None, mtu: int = MTU, precise: bool = False,
) -> Topology | None:  # fmt: skip
    """The lab that the options ask for; None if none. ``precise``: a small burst, for measurements.

    Raises ConfigError for options that need a link without one.
    """
    if rate is None:
        for name, value in (("delay", delay), ("jitter", jitter), ("loss", loss)):
            if value != "0":
                raise ConfigError(f"--{name} {value} without --link; allowed: --link RATE --{name} {value}")
        for name, value in (("hosts", hosts), ("schedule", changes)):
            if value is not None:
                raise ConfigError(f"--{name} {value} without --link; allowed: --link RATE --{name} {value}")
        return None
    base = link(rate, delay, jitter, loss)
    steps = () if changes is None else schedule(changes, base)
    return Topology(ranks=ranks, link=base, hosts=hosts, changes=steps, mtu=mtu, burst=PRECISE_BURST if precise else BURST)


def announce(lab: Topology, event: Event) -> str | None:
    """A line for people about what happens to the lab's network, or None."""
    if event["event"] == "started":
        fast = "; thinwire lab check tells whether this machine keeps up with it" if lab.first_link.rate > _FAST else ""
        return (
            f"lab: {lab.ranks} ranks on {lab.num_hosts} hosts, links of {event['link']} each way "
            f"(shaped by {'token bucket' if event['how'] == 'rate' else event['how']}){fast}"
        )
    if event["event"] == "link":
        return f"lab: {event['at']:.1f} s: links are now {event['link']}"
    return None


def show(lab: Topology) -> Any:
    """A listener that prints every rank's lines behind its number, and what happens to the network."""
    screens = {"stdout": console(), "stderr": console(stderr=True)}
    width = len(str(lab.ranks - 1))

    def hear(event: Event) -> None:
        if event["event"] == "line":
            colour = _COLOURS[event["rank"] % len(_COLOURS)]
            prefix = f"[{colour}]\\[{event['rank']:>{width}}][/] "
            screens[event["stream"]].print(prefix + escape(event["text"]), soft_wrap=True)
        elif (line := announce(lab, event)) is not None:
            screens["stderr"].print(line, markup=False, soft_wrap=True)

    return hear


def run_again(lab: Topology, arguments: list[str], threads: int | None = None) -> None:
    """Run ``thinwire ARGUMENTS`` as the ranks of a lab; rank 0 prints as if it were this process.

    Raises RunEnded if a rank fails, with what it printed.
    """
    chosen = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    screen = console(stderr=True)

    def hear(event: Event) -> None:
        if (line := announce(lab, event)) is not None:
            screen.print(line, markup=False, soft_wrap=True)

    command = [sys.executable, "-m", "thinwire", *arguments]
    finished(run_to_end(lab, command, on_event=hear, environment=chosen, passthrough=[0]), show_logs=True)


def run_to_end(lab: Topology, command: list[str], **options: Any) -> Result:
    """:func:`thinwire.lab.run`, with Ctrl-C as RunEnded."""
    try:
        return run(lab, command, **options)
    except KeyboardInterrupt:
        raise RunEnded("ended by SIGINT", 130) from None


def finished(result: Result, show_logs: bool = False) -> None:
    """Raises RunEnded if a rank failed by itself; shows the last lines of those that did."""
    failed = result.failed()
    if not failed:
        return
    screen = console(stderr=True)
    for rank in failed:
        lines = result.output.get(rank, [])[-20:]
        if show_logs and lines:
            screen.print(f"last lines of rank {rank}:", markup=False)
        for line in lines if show_logs else []:
            screen.print(f"  {line}", markup=False, soft_wrap=True)
    ends = ", ".join(
        f"rank {rank} {'by signal ' + str(-code) if code < 0 else f'with exit code {code}'}" for rank, code in failed.items()
    )
    raise RunEnded(f"the run ended early: {ends}", result.exit_code)
