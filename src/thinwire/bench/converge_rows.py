"""The rows of a convergence study: runs of several seeds as one line each, and the way back for a study that goes on."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from thinwire.bench.converge import Contestant, Run, Settings
from thinwire.errors import ConfigError
from thinwire.policy.choice import from_spec, short

Runs = dict[Contestant, dict[int, Run]]
"""Finished runs by contestant and seed."""

COLUMNS: Final = {
    "codec": "codec",
    "feedback": "feedback",
    "bits_per_element": "bits/element",
    "seeds": "seeds",
    "loss": "loss",
    "loss_difference": "to fp32",
    "difference_in_noise": "in noise",
    "accuracy_percent": "accuracy %",
    "nmse": "NMSE",
    "replicas_identical": "replicas identical",
}

FORMATS: Final = {"loss": ".4f", "loss_difference": "+.4f", "difference_in_noise": "+.2f", "accuracy_percent": ".2f"}


def rows_of(runs: Runs, settings: Settings) -> list[dict[str, Any]]:
    """A row a contestant that has a finished run. Differences are to ``none`` of the same seeds, in mean and in units of
    the standard deviation of ``none``'s loss over its seeds."""
    exact = next((found for one, found in runs.items() if one.codec.name == "none"), {})
    noise = _deviation([run.loss for run in exact.values()])
    return [_row(one, list(found.values()), exact, noise, settings) for one, found in runs.items() if found]


def _row(
    contestant: Contestant, found: Sequence[Run], exact: Mapping[int, Run], noise: float | None, settings: Settings
) -> dict[str, Any]:
    differences = [run.loss - exact[run.seed].loss for run in found if run.seed in exact]
    difference = statistics.fmean(differences) if differences else None
    accuracy = statistics.fmean(run.accuracy for run in found)
    return {
        "codec": short(contestant.codec),
        "spec": contestant.codec.spec(),
        "feedback": contestant.feedback,
        "bits_per_element": statistics.fmean(run.bits_per_element for run in found),
        "wire_bytes_per_step": statistics.fmean(run.wire_bytes_per_step for run in found),
        **dataclasses.asdict(settings),
        "seeds": len(found),
        "loss": statistics.fmean(run.loss for run in found),
        "loss_difference": difference,
        "loss_difference_deviation": _deviation(differences),
        "noise": noise,
        "difference_in_noise": difference / noise if difference is not None and noise else None,
        "accuracy": accuracy,
        "accuracy_percent": 100 * accuracy,
        "train_loss": statistics.fmean(run.train_loss for run in found),
        "nmse": statistics.fmean(run.nmse for run in found),
        "replicas_identical": all(run.replicas_identical for run in found),
        "runs": [dataclasses.asdict(run) for run in found],
    }


def _deviation(values: Sequence[float]) -> float | None:
    """The sample's standard deviation; None of fewer than two values, or if one is not finite."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def restored(rows: object, settings: Settings) -> Runs:
    """The finished runs in what :func:`rows_of` made. Raises ConfigError for other settings, or if it is something else."""
    runs: Runs = {}
    wanted = dataclasses.asdict(settings)
    try:
        for row in _objects(rows):
            row.setdefault("warm_up_steps", 0)  # of studies from before there was one
            other = [name for name in wanted if row[name] != wanted[name]]
            if other:
                name = other[0]
                raise ConfigError(f"the study in the file has {name}={row[name]!r}; allowed here: {wanted[name]!r}, as asked for")
            contestant = Contestant(codec=from_spec(row["spec"]), feedback=row["feedback"])
            runs[contestant] = {run.seed: run for run in map(_run, _objects(row["runs"]))}
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the file is no convergence study ({type(error).__name__}: {error})") from None
    return runs


def _objects(values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in cast(list[object], values)):
        raise TypeError(f"a list of objects is missing, there is {type(values).__name__}")
    return cast(list[dict[str, Any]], values)


def _run(fields: Mapping[str, Any]) -> Run:
    """JSON has null for what is not finite."""
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in fields.items()}
    values["curve_loss"] = [math.nan if value is None else value for value in fields["curve_loss"]]
    return Run(**values)
