"""Deep Gradient Compression (Lin, Han, Mao, Wang and Dally 2018, arXiv:1712.01887): momentum before the wire, for sparse codecs.

A rank that sends 1 in 1,000 elements sums the others up for many steps. If the optimizer had momentum, it would be missing for
all that time; so each rank has it itself, and the optimizer is SGD without. With the local gradient g, on each of N ranks:

    g <- g min(1, clip sqrt(N) / |g|)          local clipping: g/N, a rank's part of the mean, to the paper's clip / sqrt(N)
    u <- m u + g                               momentum correction: the velocity
    v <- v + u     (Nesterov: v + m u + g)     accumulation
    send Q(v), the largest entries of v        v <- v - Q(v)
    u <- 0 where Q(v) is not 0                 momentum factor masking: what is sent late must not push in an old direction

The paper sets v to 0 where it is sent; here what rounding took stays. Its threshold is a layer's; here every chunk of a bucket
has its own k entries. In the warm-up the density is 1/4 (75 % sparsity), and a quarter of that at each following stage
(93.75 %, 98.4375 %, 99.6 %), until the codec's own is reached (99.9 % is ``topk`` with k=4). Parameters that travel
uncompressed get the same momentum, after their mean.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, final

import torch

from thinwire.codec.base import Codec
from thinwire.codec.topk import TopK
from thinwire.errors import ConfigError
from thinwire.feedback import Residuals

VELOCITY: Final = "velocity of "
"""What a parameter's velocity is called in a state, before its name."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepGradient:
    """Use as ``compress(model, tw.codec("topk", k=4), feedback=DeepGradient(momentum=0.9))``, with SGD without momentum.

    ``clip`` is the norm of the mean of all gradients that local clipping is to keep to, None for no clipping: with it, no bucket
    is sent before the last one is ready. ``warm_up_steps`` are the steps until the codec's own density is reached, 0 for
    none. Raises ConfigError for numbers out of range.
    """

    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None
    warm_up_steps: int = 0
    masking: bool = True

    def __post_init__(self) -> None:
        _check("momentum", self.momentum, 0 <= _number(self.momentum) < 1, "0 or more, below 1")
        _check("clip", self.clip, self.clip is None or 0 < _number(self.clip) < math.inf, "above 0, finite, or None")
        steps = self.warm_up_steps
        _check("warm_up_steps", steps, isinstance(steps, int) and _number(steps) >= 0, "0 or more")

    def codec_at(self, codec: TopK, step: int) -> TopK:
        """What is sent at a step: ``codec``, or in the warm-up the same with more entries."""
        densities = [codec.chunk >> (2 * stage) for stage in range(1, 8)]
        stages = [k for k in densities if k > codec.k]
        if step >= self.warm_up_steps or not stages:
            return codec
        return dataclasses.replace(codec, k=stages[step * len(stages) // self.warm_up_steps])


def _number(value: object) -> float:
    """A number, or NaN, which is in no range."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def _check(name: str, value: object, good: bool, allowed: str) -> None:
    if not good:
        raise ConfigError(f"{name}={value!r} is out of range; allowed: {allowed}")


def require_sparse(codec: Codec) -> TopK:
    """The codec, if :class:`DeepGradient` can be used with it. Raises ConfigError if not."""
    if not isinstance(codec, TopK):
        raise ConfigError(f"codec={codec.name!r} is not sparse, which feedback=DeepGradient(...) needs; allowed: 'topk'")
    return codec


class Momenta:
    """Velocity and accumulation of each parameter, and the step of the schedule: what :class:`DeepGradient` keeps of a model.

    It stands where :class:`~thinwire.feedback.Residuals` do, and is committed as a whole like those.
    """

    def __init__(self, rule: DeepGradient, sizes: Mapping[str, int], codec: Codec, ranks: int) -> None:
        """Raises ConfigError for a codec that is not sparse."""
        self.rule, self.step = rule, 0
        self._codec, self._ranks = require_sparse(codec), ranks
        self._velocity, self._accumulated = Residuals(sizes), Residuals(sizes)
        self._alone: list[tuple[str, ...]] = []
        self._sent = torch.empty(0)
        self._factor = 1.0

    @property
    def whole(self) -> bool:
        """Whether a step must see all buckets before it sends one."""
        return self.rule.clip is not None

    @property
    def codec(self) -> Codec:
        """What this step sends with."""
        return self.rule.codec_at(self._codec, self.step)

    @property
    def parts(self) -> dict[str, Residuals]:
        """What a state has, by what stands before a parameter's name."""
        return {"": self._accumulated, VELOCITY: self._velocity}

    def begin(self, gradients: Iterable[torch.Tensor], loss_scale: float) -> None:
        """Find the factor of local clipping from all ``gradients`` of this rank, which are ``loss_scale`` times too large."""
        if self.rule.clip is None:
            return
        values = [one.coalesce().values() if one.is_sparse else one for one in gradients]
        norm = math.hypot(*(float(torch.linalg.vector_norm(one, dtype=torch.float64)) for one in values))
        limit = self.rule.clip * loss_scale * math.sqrt(self._ranks)
        # One that is not finite stays as it is, so that all ranks see it and drop the step.
        self._factor = limit / norm if limit < norm < math.inf else 1.0

    def prepare(self, payload: torch.Tensor) -> None:
        """Clip a bucket's gradients."""
        if self._factor != 1.0:
            payload.mul_(self._factor)

    def enter(
        self, payload: torch.Tensor, names: tuple[str, ...], idle: Sequence[slice], exact: Sequence[slice]
    ) -> None:  # fmt: skip
        """Turn gradients into what is to be sent; nothing at the spans ``idle`` and ``exact``."""
        m, velocity = self.rule.momentum, self._velocity.following(names)
        torch.mul(self._velocity.current(names), m, out=velocity).add_(payload)
        if self.rule.nesterov:
            payload.add_(velocity, alpha=m)
        else:
            payload.copy_(velocity)
        payload.add_(self._accumulated.current(names))
        for span in (*idle, *exact):
            payload[span] = 0
        self._sent = payload.clone()

    def following(self, names: tuple[str, ...]) -> torch.Tensor:
        """Where the step writes what it did not send."""
        return self._accumulated.following(names)

    def leave(self, names: tuple[str, ...], idle: Sequence[slice]) -> None:
        """Forget the velocity of what was sent; spans ``idle`` stay as they were."""
        velocity, kept = self._velocity.following(names), self._accumulated.following(names)
        # One rank sends everything as it is, and would have no momentum at all.
        if self.rule.masking and self._ranks > 1:
            velocity.mul_(kept == self._sent)
        for span in idle:
            velocity[span] = self._velocity.current(names)[span]
            kept[span] = self._accumulated.current(names)[span]

    def finish(
        self, payload: torch.Tensor, names: tuple[str, ...], idle: Sequence[slice], exact: Sequence[slice], alone: bool
    ) -> None:  # fmt: skip
        """Momentum of the spans ``exact``, which have their mean now; ``alone`` if they are the whole bucket.

        What no rank used, which ``idle`` has too, keeps its velocity for later.
        """
        m, before, velocity = self.rule.momentum, self._velocity.current(names), self._velocity.following(names)
        for span in exact:
            torch.mul(before[span], m, out=velocity[span]).add_(payload[span])
            payload[span] = payload[span].add(velocity[span], alpha=m) if self.rule.nesterov else velocity[span]
        for span in idle:
            if any(one.start <= span.start and span.stop <= one.stop for one in exact):
                payload[span] = 0
                velocity[span] = before[span]
        if alone:
            self._accumulated.following(names).copy_(self._accumulated.current(names))
            self._alone.append(names)

    def seen(self, mean: torch.Tensor) -> None:
        """See :meth:`Residuals.seen`."""
        self._accumulated.seen(mean)

    def commit(self, layouts: Iterable[tuple[str, ...]]) -> bool:
        """See :meth:`Residuals.commit`; a step that was dropped does not count for the schedule either."""
        every, self._alone, self._factor = [*layouts, *self._alone], [], 1.0
        finite = self._accumulated.commit(every)
        if finite:
            self._velocity.commit(every)
            self.step += 1
        return finite

    def rescale(self, factor: float) -> None:
        """Multiply all numbers, as when the loss scale changes by ``factor``."""
        for part in self.parts.values():
            part.rescale(factor)
