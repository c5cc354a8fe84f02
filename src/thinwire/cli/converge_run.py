"""Runs the convergence study of ``thinwire bench converge``: progress, the table, and files that hold what is finished."""

from __future__ import annotations

import contextlib
import json as library
import signal
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from thinwire.bench.converge import Contestant, Run, Settings, train
from thinwire.bench.converge_plot import plot as draw
from thinwire.bench.converge_rows import COLUMNS, FORMATS, Runs, restored, rows_of
from thinwire.cli.launch import RunEnded
from thinwire.cli.output import console, print_table, write_json
from thinwire.errors import ConfigError
from thinwire.kernels.threads import set_num_threads
from thinwire.workloads.base import Workload

_Task = tuple[int, Contestant]


def run(
    workload: Workload, settings: Settings, wanted: Sequence[Contestant], seeds: Sequence[int], before: object,
    json: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Train what ``before``, the rows of an earlier study, does not have yet, and show all.

    Files are written after each run. SIGINT ends it after the step that is under way: RunEnded, with everything written that was
    finished.
    """
    earlier = restored(before, settings)
    runs: Runs = {one: earlier.get(one, {}) for one in wanted} | earlier
    tasks = [(seed, one) for seed in seeds for one in wanted if seed not in runs[one]]
    print(_heading(settings, tasks), flush=True)
    stopped = False
    with _interrupts() as look:
        try:
            for seed, one, made in _trained(workload, settings, tasks, look):
                runs[one][seed] = made
                write_json(json, rows_of(runs, settings))
        except _Stopped:
            stopped = True
    rows = rows_of(runs, settings)
    write_json(json, rows)
    if rows:
        print_table(rows, COLUMNS, formats=FORMATS)
    if plot is not None and rows:
        draw(plot, runs, settings)
    if stopped:
        done = sum(seed in runs[one] for seed, one in tasks)
        where = f"; they are in {json}, and --resume does the others" if json is not None else ""
        raise RunEnded(f"ended by SIGINT after {done} of {len(tasks)} runs{where}", 130)


def rows_in(json: Path) -> object:
    """The rows of a JSON file. Raises ConfigError for a file that has none."""
    try:
        return library.loads(json.read_text())["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--resume: {json} cannot be read as a study ({type(error).__name__}: {error})") from None


def use_threads(count: int | None) -> int:
    """Have torch and the kernels use so many threads, or as many as torch takes; the number."""
    if count is not None:
        torch.set_num_threads(count)
    set_num_threads(torch.get_num_threads())
    return torch.get_num_threads()


class _Stopped(Exception):
    """SIGINT has come."""


@contextlib.contextmanager
def _interrupts() -> Generator[Callable[[], None]]:
    """What to call between steps: it raises _Stopped once SIGINT has come.

    A KeyboardInterrupt would be raised anywhere, also within a callback of torch's, which swallows it or makes another error
    of it. A second SIGINT raises it after all.
    """
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    def look() -> None:
        if came:
            raise _Stopped

    before = signal.signal(signal.SIGINT, note)
    try:
        yield look
    finally:
        signal.signal(signal.SIGINT, before)


def _trained(
    workload: Workload, settings: Settings, tasks: Sequence[_Task], look: Callable[[], None]
) -> Generator[tuple[int, Contestant, Run]]:  # fmt: skip
    with _progress(settings, tasks) as (started, step, said):
        for seed, one in tasks:
            name = f"seed {seed}, {one.label}"
            started(name)

            def after(number: int) -> None:
                step(number)
                if number < settings.steps:  # a run that is whole is kept
                    look()

            look()
            made = train(workload, settings, one, seed, after)
            said(f"  {name}: loss {made.loss:.4f}, accuracy {100 * made.accuracy:.2f} %, {made.seconds:.0f} s")
            yield seed, one, made


@contextlib.contextmanager
def _progress(
    settings: Settings, tasks: Sequence[_Task]
) -> Generator[tuple[Callable[[str], None], Callable[[int], None], Callable[[str], None]]]:
    """What to call with a run's name at its start, with each step of it, and with a line at its end; bars on a terminal."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bars:
        everything = bars.add_task("all steps", total=len(tasks) * settings.steps)
        one = bars.add_task("", total=settings.steps)
        finished = 0

        def started(name: str) -> None:
            bars.reset(one, description=name)

        def step(number: int) -> None:
            bars.update(one, completed=number)
            bars.update(everything, completed=finished * settings.steps + number)

        def said(line: str) -> None:
            nonlocal finished
            finished += 1
            bars.print(line) if screen.is_terminal else print(line, flush=True)

        yield started, step, said


def _heading(settings: Settings, tasks: Sequence[_Task]) -> str:
    rise = f" after {settings.warm_up_steps} steps of warm-up" if settings.warm_up_steps else ""
    how = f"{settings.optimizer} with learning rate {settings.lr:g}{rise}, batch {settings.batch} a rank"
    size = f"{settings.ranks} simulated ranks, {settings.threads} thread(s), {settings.steps} steps"
    return f"{settings.workload}: {len(tasks)} runs, {size}, {how}; {settings.data}"
