"""One option for each layer, so that the sum of errors is small and the sum of bytes within a budget. Arithmetic only.

This is a multiple-choice knapsack. Three answers are made, and the best of them is taken:

    greedy     from the cheapest options up the lower convex hull of each layer's (bytes, error), the steps of most error a byte
               first, until one does not fit. Its error is above the optimum by at most what that step would have saved, which
               is little if there are many layers (the Lagrangian solution of Shoham and Gersho 1988).
    dynamic    the optimum of bytes rounded up to a grid of 2^13 steps, as in L-GreCo (Markov et al., arXiv:2210.17357): nearly
               exact for few layers, where a step of the greedy answer may be most of the model.
    uniform    the same option for all layers, so that the answer is never worse than that.

None of them gets worse with a larger budget, so the best does not either.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Choice = tuple[int, ...]
_GRID: Final = 1 << 13


def allocate(errors: F64, sizes: I64, budget: int) -> Choice:
    """The option of each layer. ``errors`` (layers, options) is finite, ``sizes`` (layers, options) and ``budget`` are bytes.

    The cheapest options must fit.
    """
    assert sizes.min(1).sum() <= budget, "the cheapest options do not fit"
    layers, options = errors.shape
    found = [_greedy(errors, sizes, budget), _dynamic(errors, sizes, budget)]
    found += [(option,) * layers for option in range(options) if sizes[:, option].sum() <= budget]
    return min(found, key=lambda choice: (total(errors, choice), total(sizes, choice)))


def total(values: F64 | I64, choice: Sequence[int]) -> float:
    """The sum of ``values`` (layers, options) over the chosen options."""
    return float(values[np.arange(len(choice)), list(choice)].sum())


def _greedy(errors: F64, sizes: I64, budget: int) -> Choice:
    hulls = [_hull(errors[layer], sizes[layer]) for layer in range(len(errors))]
    choice = [hull[0] for hull in hulls]
    steps: list[tuple[float, int, int]] = []
    for layer, hull in enumerate(hulls):
        for cheap, dear in itertools.pairwise(hull):
            gain = (errors[layer, cheap] - errors[layer, dear]) / (sizes[layer, dear] - sizes[layer, cheap])
            steps.append((-float(gain), layer, dear))
    left = budget - int(total(sizes, choice))
    for _, layer, option in sorted(steps, key=lambda step: step[:2]):  # a layer's own steps are in order: a hull's gains fall
        left -= int(sizes[layer, option] - sizes[layer, choice[layer]])
        if left < 0:
            break
        choice[layer] = option
    return tuple(choice)


def _hull(errors: F64, sizes: I64) -> list[int]:
    """The options on the lower convex hull of (bytes, error), from the cheapest one to that of least error."""
    kept: list[int] = []
    for option in np.lexsort((errors, sizes)).tolist():
        if kept and errors[option] >= errors[kept[-1]]:
            continue
        while len(kept) > 1 and _gain(errors, sizes, kept[-2], kept[-1]) <= _gain(errors, sizes, kept[-1], option):
            kept.pop()
        kept.append(option)
    return kept


def _gain(errors: F64, sizes: I64, cheap: int, dear: int) -> float:
    return float((errors[cheap] - errors[dear]) / (sizes[dear] - sizes[cheap]))


def _dynamic(errors: F64, sizes: I64, budget: int) -> Choice:
    extra = sizes - sizes.min(1, keepdims=True)
    # The grid does not depend on the budget: what fits into one fits into every larger one.
    unit = max(1, -(-int(extra.max(1).sum()) // _GRID))
    steps = -(-extra // unit)
    room = min((budget - int(sizes.min(1).sum())) // unit, int(steps.max(1).sum()))
    best = np.zeros(room + 1)
    """Least error of the layers so far within so many steps."""
    taken = np.zeros((len(errors), room + 1), dtype=np.int64)
    for layer in range(len(errors)):
        after = np.full(room + 1, np.inf)
        for option in np.argsort(sizes[layer], kind="stable").tolist():
            cost = int(steps[layer, option])
            if cost <= room:
                candidate = best[: room + 1 - cost] + errors[layer, option]
                better = candidate < after[cost:]
                after[cost:][better] = candidate[better]
                taken[layer, cost:][better] = option
        best = after
    return _traced(taken, steps, room)


def _traced(taken: I64, steps: I64, room: int) -> Choice:
    choice: list[int] = []
    for layer in reversed(range(len(taken))):
        option = int(taken[layer, room])
        choice.append(option)
        room -= int(steps[layer, option])
    return tuple(reversed(choice))
