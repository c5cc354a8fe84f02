"""What :class:`~thinwire.feedback.deep_gradient.DeepGradient` keeps of a model: velocity and accumulation by parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch

from thinwire.codec.topk import TopK
from thinwire.collective.legs import Wire
from thinwire.feedback.deep_gradient import DeepGradient, require_sparse
from thinwire.feedback.residuals import Residuals

VELOCITY: Final = "velocity of "
"""What a parameter's velocity is called in a state, before its name."""


class Momenta:
    """Velocity and accumulation of each parameter, and the step of the schedule: what :class:`DeepGradient` keeps of a model.

    It stands where :class:`~thinwire.feedback.Residuals` do, and is committed as a whole like those.
    """

    def __init__(self, rule: DeepGradient, sizes: Mapping[str, int], ranks: int) -> None:
        self.rule, self.steps = rule, 0
        self._ranks = ranks
        self._velocity, self._accumulated = Residuals(sizes), Residuals(sizes)
        self._alone: list[tuple[str, ...]] = []
        self._sent = torch.empty(0)
        self._factor = 1.0

    @property
    def whole(self) -> bool:
        """Whether a step must see all buckets before it sends one."""
        return self.rule.clip is not None

    def codec_of(self, codec: Wire) -> TopK:
        """What this step sends in place of ``codec``."""
        return self.rule.codec_at(require_sparse(codec), self.steps)

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
            self.steps += 1
        return finite

    def rescale(self, factor: float) -> None:
        """Multiply all numbers, as when the loss scale changes by ``factor``."""
        for part in self.parts.values():
            part.rescale(factor)
