"""Histograms of layers in units of their blocks' scales, with the levels of the suggested codec as lines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from thinwire.codec import codec
from thinwire.inspect.levels import UNITS, Levels, block_of, in_units, levels
from thinwire.inspect.statistics import F32, finite, flat

SUFFIXES: Final = (".png", ".svg")
_MOST_BINS: Final = 200
_MOST_LINES: Final = 64
"""More than that are drawn fainter, so that the histogram stays visible."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """One layer: its values on one rank, and the name of the codec whose levels are drawn."""

    layer: str
    values: F32
    codec: str


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Write the picture, a panel a layer. Needs matplotlib; raises OSError if the file cannot be written."""
    from matplotlib.figure import Figure

    across = math.ceil(math.sqrt(len(panels)))
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(6.4 * across, 4 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis, panel in zip(axes, panels, strict=False):
        _panel(axis, panel)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.savefig(path, dpi=120)


def _panel(axis: Any, panel: Panel) -> None:
    made = codec(panel.codec)
    values = finite(flat(panel.values))
    plain = Levels(unit=next(iter(UNITS)), block=block_of(made), positions=np.empty(0))
    found = plain if panel.codec == "none" else levels(made, values)
    scaled = in_units(values, found.block, found.unit)
    if not scaled.size:
        axis.set_title(f"{panel.layer}\nall blocks constant", fontsize=10)
        return
    axis.hist(scaled, bins=min(_MOST_BINS, 20 + math.isqrt(scaled.size)), color="tab:blue", log=True)
    many = len(found.positions) > _MOST_LINES
    for position in found.positions:
        axis.axvline(position, color="tab:red", linewidth=0.4 if many else 0.8, alpha=0.35 if many else 0.8)
    what = f"{len(found.positions)} levels" if len(found.positions) else "no levels"
    axis.set_title(f"{panel.layer}\n{'uncompressed' if panel.codec == 'none' else panel.codec + ': ' + what}", fontsize=10)
    axis.set_xlabel(f"value / {found.unit} ({found.block} elements)")
    axis.set_ylabel("elements")
