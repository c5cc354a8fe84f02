"""Held-out loss over the steps, a curve a contestant: the mean over the seeds, and the range of them behind it."""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path
from typing import Any, Final

from thinwire.bench.converge import Settings
from thinwire.bench.converge_rows import Runs
from thinwire.errors import ConfigError

SUFFIXES: Final = (".png", ".svg")
STYLES: Final = ("-", "--", ":", "-.")
"""A colour a codec, a style a form of feedback."""


def check_plot(path: Path | None) -> None:
    """Raises ConfigError before any work if the picture could not be made afterwards."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path} has suffix {path.suffix!r}; allowed: {', '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--plot {path} cannot be written; allowed: a file in a folder that exists and can be written to")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'thinwire[plot]'")


def plot(path: Path, runs: Runs, settings: Settings) -> None:
    """Draw the finished runs into ``path``."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes: Any = figure.add_subplot()
    codecs = list(dict.fromkeys(one.codec for one in runs))
    forms = list(dict.fromkeys(one.feedback for one in runs))
    for contestant, found in runs.items():
        steps, means, lows, highs = _curve([(run.curve_steps, run.curve_loss) for run in found.values()])
        if steps:
            color = f"C{codecs.index(contestant.codec) % 10}"
            style = STYLES[forms.index(contestant.feedback) % len(STYLES)]
            axes.plot(steps, means, style, label=contestant.label, color=color, linewidth=1.4)
            axes.fill_between(steps, lows, highs, color=color, alpha=0.1, linewidth=0)
    axes.set(xlabel="step", ylabel="held-out loss")
    axes.set_title(f"{settings.workload}, {settings.ranks} ranks, {settings.optimizer}, learning rate {settings.lr:g}")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    # The same study gives the same bytes.
    with rc_context({"svg.hashsalt": "thinwire"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _curve(curves: list[tuple[list[int], list[float]]]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Steps with a finite loss in at least one run, and of those losses the mean, the smallest and the largest."""
    at: dict[int, list[float]] = {}
    for steps, losses in curves:
        for step, loss in zip(steps, losses, strict=True):
            if math.isfinite(loss):
                at.setdefault(step, []).append(loss)
    found = sorted(at.items())
    means = [sum(losses) / len(losses) for _, losses in found]
    return [step for step, _ in found], means, [min(losses) for _, losses in found], [max(losses) for _, losses in found]
