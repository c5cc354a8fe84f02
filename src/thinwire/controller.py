"""The step boundary of a policy: measure, gather, decide, apply; the same on all ranks.

Every rank measures its own gradients. Rank 0 decides from what all of them saw and says so, because floating-point sums of two
kinds of processor need not agree to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch

from thinwire.codec.base import Codec
from thinwire.errors import ConfigError
from thinwire.policy.allocate import F64
from thinwire.policy.auto import Auto, Decision

_CHUNK: Final = 1 << 19
"""Elements that are encoded at once to measure them."""


class Controller:
    """``auto``'s decision on one rank, and what leads to the next one."""

    def __init__(self, auto: Auto, layers: Mapping[str, int]) -> None:
        """``layers`` have so many elements each. Raises ConfigError if the budget is too small for them."""
        self.auto, self.layers = auto, dict(layers)
        self.decision: Decision = auto.init(layers)
        self.steps = 0
        """Steps that have ended."""
        self._numbers = {name: number for number, name in enumerate(layers)}
        self._seen = self._blank()

    @property
    def measuring(self) -> bool:
        """Whether the step that is under way ends with a decision."""
        return (self.steps + 1) % self.auto.every == 0

    def sent(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Measure what this rank is about to send: flat fp32 by name. Names that are no layer are left out."""
        for name, x in gradients.items():
            if name in self._numbers:
                row = self._seen[self._numbers[name]]
                row[0] = _squares(x)
                row[2:] = [_lost(codec, x) if row[0] else 0.0 for codec in self.auto.candidates]

    def came(self, means: Mapping[str, torch.Tensor]) -> None:
        """Note the size of what came back, the same on all ranks."""
        for name, x in means.items():
            if name in self._numbers:
                self._seen[self._numbers[name], 1] = _squares(x)

    def end_step(self) -> bytes | None:
        """End the step: what this rank saw if a decision is due, of the same size on all ranks; else None."""
        due = self.measuring
        self.steps += 1
        if not due:
            return None
        data, self._seen = self._seen.astype("<f8").tobytes(), self._blank()
        return data

    def decide(self, seen: Sequence[bytes]) -> str:
        """The next decision as text, from what every rank saw: rank 0's to make."""
        every = np.array([np.frombuffer(one, dtype="<f8").reshape(self._seen.shape) for one in seen])
        sent, came, lost = every[:, :, 0].sum(0), every[0, :, 1], every[:, :, 2:]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            relative = np.where(sent > 0, came / sent, 0.0)
            errors = lost.mean(0) + relative[:, None] * lost.sum(0)
        table = {name: errors[number].tolist() for name, number in self._numbers.items()}
        return json.dumps(list(self._named(self.auto.update(self.layers, table) or self.decision).values()))

    def apply(self, text: str) -> bool:
        """Take over what :meth:`decide` said; whether it is another decision than the last one."""
        before, numbers = self.decision, json.loads(text)
        self.decision = {name: self.auto.candidates[number] for name, number in zip(self.layers, numbers, strict=True)}
        return self.decision != before

    def state(self) -> str:
        """Steps and decision as text, for a checkpoint."""
        return json.dumps({"steps": self.steps, "decision": self._named(self.decision)})

    def load(self, text: str) -> None:
        """Take over :meth:`state`. Raises ConfigError for one of other layers."""
        try:
            state, candidates = json.loads(text), dict(enumerate(self.auto.candidates))
            steps, numbers = int(state["steps"]), dict[str, int](state["decision"])
            decision = {name: candidates[numbers.pop(name)] for name in self.layers}
            if numbers:
                raise KeyError(next(iter(numbers)))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"the decision in the state does not fit ({type(error).__name__}: {error}); allowed: one for these "
                f"{len(self.layers)} layers with {self.auto.spec()}"
            ) from None
        self.steps, self.decision = steps, decision

    def _named(self, decision: Decision) -> dict[str, int]:
        """The number of each layer's candidate."""
        return {name: self.auto.candidates.index(codec) for name, codec in decision.items()}

    def _blank(self) -> F64:
        """A row a layer: squares sent, squares of the mean, and squares lost with each candidate."""
        return np.zeros((len(self.layers), 2 + len(self.auto.candidates)))


def _squares(x: torch.Tensor) -> float:
    """In fp64, where squares of small numbers are not zero."""
    wide = torch.empty(min(_CHUNK, x.numel()), dtype=torch.float64)
    return sum(float(part.dot(part)) for piece in x.split(_CHUNK) for part in [wide[: piece.numel()].copy_(piece)])


def _lost(codec: Codec, x: torch.Tensor) -> float:
    """The squared error of one quantization, in messages of a usual size."""
    total, error = 0.0, torch.empty(1, min(_CHUNK, x.numel()))
    for part in x.split(_CHUNK):
        codec.encode(part[None], error=error[:, : part.numel()])
        total += _squares(error[0, : part.numel()])
    return total
