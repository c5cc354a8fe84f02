"""``thinwire inspect gpt`` and ``mnist``: training steps of a built-in workload."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from thinwire.cli.inspect_output import Found, progress
from thinwire.codec.base import Codec
from thinwire.inspect.layers import Collection
from thinwire.inspect.simulated import gradients, workload_of


def workload(
    name: str, codecs: Sequence[Codec], ranks: int, steps: int, after: int, seed: int, data: Path | None
) -> Found:  # fmt: skip
    """Raises DataError if the workload's data cannot be read."""
    made = workload_of(name, data)
    collection = Collection(codecs)
    last: dict[str, list[npt.NDArray[Any]]] = {}
    with progress("training steps", steps + after) as advance:
        for number, last in enumerate(itertools.islice(gradients(made, ranks, steps + after, seed), steps + after)):
            if number >= after:
                for layer, tensors in last.items():
                    collection.add(layer, tensors)
            advance()
    title = f"{made.name}: {steps} steps after the first {after}, {ranks} simulated ranks, seed {seed}; {made.data}"
    return Found(title=title, layers=collection.layers(), values=lambda layer: last[layer][0])
