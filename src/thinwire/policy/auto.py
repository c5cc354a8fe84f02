"""``auto:B``: bits by layer, so that the squared error of the gradients is small and the average is at most B bits an element.

Every ``every`` steps, each rank encodes its gradients with all candidates and measures what they lose. The error of layer l with
candidate c is

    mean over ranks |x - Q_c(x)|^2  +  |m|^2 * sum over ranks |x - Q_c(x)|^2 / sum over ranks |x|^2

with x what a rank sends and m the mean that came back: what the first shot loses at most, and what the second loses if the mean
is as hard to encode as its parts. The choice is that of allocate.py; it holds until the next one. Until the first, all layers
have the largest candidate that is within the budget.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np

from thinwire.codec import REGISTRY, codec
from thinwire.codec.base import Codec
from thinwire.codec.cast import Raw
from thinwire.errors import ConfigError
from thinwire.policy.allocate import F64, I64, allocate

NAMES: Final = ("int8", "int7", "int6", "int5", "int4", "gauss4", "int3", "gauss3", "int2", "gauss2", "sign1")
"""The candidates where no others are given: those of these codecs that are registered."""

CANDIDATES: Final = tuple(REGISTRY[name] for name in NAMES if name in REGISTRY)
PREFIX: Final = "auto:"
Decision = dict[str, Codec]
"""A codec for each layer, by name."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Auto:
    """At most ``bits`` effective bits an element on average, chosen among ``candidates`` anew every ``every`` steps."""

    bits: float
    every: int = 100
    candidates: tuple[Codec, ...] = CANDIDATES

    def __post_init__(self) -> None:
        number: Any = self.bits
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ConfigError(f"auto: bits={number!r} is out of range; allowed: above 0, finite")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ConfigError(f"auto: every={self.every!r} is out of range; allowed: 1 or more steps")
        object.__setattr__(self, "candidates", tuple(_candidate(one) for one in self.candidates))
        if not self.candidates or len(set(self.candidates)) < len(self.candidates):
            raise ConfigError(f"auto: candidates={[one.spec() for one in self.candidates]!r}; allowed: one or more, each once")

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.bits:.15g}"

    def spec(self) -> str:
        """All fields as one line, which :func:`parse` reads."""
        return f"{self.name};every={self.every};candidates={'+'.join(one.spec() for one in self.candidates)}"

    def init(self, layers: Mapping[str, int]) -> Decision:
        """The decision before the first measurement, for layers of so many elements: one codec for all.

        Raises ConfigError if no candidate is within the budget.
        """
        sizes, budget = self.sizes(layers).sum(0), self.budget(layers)
        fitting = [number for number, size in enumerate(sizes.tolist()) if size <= budget]
        if not fitting:
            number, elements = int(sizes.argmin()), sum(layers.values())
            raise ConfigError(
                f"{self.name} is out of reach: {self.candidates[number].name}, the smallest candidate, takes "
                f"{8 * sizes[number] / elements:.3f} bits an element of this model; allowed: that or more, or smaller candidates"
            )
        best = self.candidates[max(fitting, key=lambda number: sizes[number])]
        return dict.fromkeys(layers, best)

    def update(self, layers: Mapping[str, int], errors: Mapping[str, Sequence[float]]) -> Decision | None:
        """The next decision from each layer's error with each candidate; None, to keep the last one, if one is not finite.

        A layer of which nothing was seen, because its gradient was zero, is taken for an average one.
        """
        table = np.array([errors[name] for name in layers], dtype=np.float64)
        if not np.isfinite(table).all():
            return None
        choice = allocate(_filled(table, np.array(list(layers.values()))), self.sizes(layers), self.budget(layers))
        return {name: self.candidates[option] for name, option in zip(layers, choice, strict=True)}

    def sizes(self, layers: Mapping[str, int]) -> I64:
        """Bytes of each layer with each candidate, as a row of its own: (layers, candidates)."""
        return np.array([[one.wire_bytes(n) for one in self.candidates] for n in layers.values()], dtype=np.int64)

    def budget(self, layers: Mapping[str, int]) -> int:
        """Bytes of all layers together that are allowed."""
        return math.floor(self.bits * sum(layers.values()) / 8)


def parse(text: str) -> Auto:
    """``auto:BITS;every=K;candidates=CODEC+CODEC...``, the fields as far as wanted. Raises ConfigError for anything else."""
    head, given, listed = text.partition(";candidates=")
    bits, *fields = head.removeprefix(PREFIX).split(";")
    try:
        found: dict[str, Any] = {"bits": float(bits)}
        for field in fields:
            key, _, value = field.partition("=")
            if key != "every" or key in found:
                raise ValueError
            found[key] = int(value)
    except ValueError:
        raise ConfigError(
            f"codec={text!r} cannot be read; allowed: auto:BITS, such as auto:3.5, and after it ;every=STEPS and then "
            ";candidates=CODEC+CODEC..."
        ) from None
    if given:
        found["candidates"] = tuple(listed.split("+"))
    return Auto(**found)


def _candidate(one: Any) -> Codec:
    made = codec(one)
    if isinstance(made, Raw):
        raise ConfigError("auto: none is not allowed as a candidate; allowed: codecs that compress")
    if made.variable or made.sums != "two_shot":
        # A budget in bytes of rows says nothing where rows vary, or go to all ranks instead of one.
        why = "rows vary in size" if made.variable else "rows go to all ranks"
        raise ConfigError(
            f"auto: {made.name} is not allowed as a candidate, since its {why}; allowed: codecs of fixed size with two shots"
        )
    return made


def _filled(errors: F64, elements: I64) -> F64:
    unseen = np.logical_not(errors.any(1))
    average = errors.sum(0) / max(1, int(elements[np.logical_not(unseen)].sum()))
    return np.where(unseen[:, None], average * elements[:, None], errors)
