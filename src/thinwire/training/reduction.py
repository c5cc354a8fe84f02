"""A bucket's mean over the ranks: residuals added, small parameters set aside, the rest through the codecs.

DDP's hook (ddp.py) and the ranks of one process (simulate.py) both reduce with this, so that their results are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from thinwire.controller import Controller
from thinwire.feedback.deep_gradient import DeepGradient
from thinwire.feedback.forms import Feedback, Form
from thinwire.feedback.momenta import Momenta
from thinwire.feedback.residuals import Residuals
from thinwire.reducer import Reducer
from thinwire.training.assignment import Assignment, Part
from thinwire.training.bucket import Layout, put_back, set_aside, untouched


def residuals_for(
    feedback: Feedback | None, assignment: Assignment, sizes: Mapping[str, int], ranks: int
) -> Residuals | Momenta | None:  # fmt: skip
    """What ``feedback`` keeps of parameters with so many elements, or None for no feedback."""
    if isinstance(feedback, DeepGradient):
        return Momenta(feedback, sizes, ranks)
    return Residuals(sizes, feedback) if isinstance(feedback, Form) and assignment.codecs else None


class Reduction:
    """The means of one rank's buckets, step by step; all ranks reduce the same buckets in the same order."""

    def __init__(
        self, reducer: Reducer, residuals: Residuals | Momenta | None, finds_unused: bool = False,
        controller: Controller | None = None,
    ) -> None:  # fmt: skip
        """With ``finds_unused``, a gradient that is zero throughout keeps its residual for later. ``controller`` measures."""
        self.reducer, self.residuals, self.controller = reducer, residuals, controller
        self.momenta = residuals if isinstance(residuals, Momenta) else None
        self._finds_unused = finds_unused
        self._layouts: list[tuple[str, ...]] = []

    @property
    def whole(self) -> bool:
        """Whether :meth:`clip` must see all buckets of a step before one is reduced."""
        return self.momenta is not None and self.momenta.whole

    def clip(self, gradients: Iterable[torch.Tensor], loss_scale: float = 1.0) -> None:
        """Where local clipping is on, find its factor from all buckets, whose numbers are ``loss_scale`` times too large."""
        if self.momenta is not None:
            self.momenta.begin(gradients, loss_scale)

    def mean(self, payload: torch.Tensor, layout: Layout) -> None:
        """Mean of ``payload``, a bucket's gradients as flat fp32 on the CPU, over the ranks, in place."""
        if self.momenta is not None:
            self.momenta.prepare(payload)
        if not layout.compressed:
            self.reducer.all_reduce_uncompressed(payload)
            return
        # What no rank used is not the model's to get: DDP drops its mean, and with it a residual that was sent along.
        idle = untouched(payload, layout) if self._finds_unused and self.residuals is not None else []
        exact = set_aside(payload, layout.exact)
        finish = None if exact is None else self.reducer.start_uncompressed(exact)
        if self.residuals is not None:
            self.residuals.enter(payload, layout.names, idle, layout.exact)
        measured = self.controller if self.controller is not None and self.controller.measuring else None
        if measured is not None:
            measured.sent(layout.pieces(payload))
        if self.residuals is None:
            self._reduce(payload, layout.parts, None)
        else:
            self._with_feedback(payload, layout, self.residuals, idle)
        if exact is not None and finish is not None:
            finish()
            put_back(payload, layout.exact, exact)
        if measured is not None:
            measured.came(layout.pieces(payload))

    def _reduce(self, payload: torch.Tensor, parts: Sequence[Part], lost: torch.Tensor | None) -> None:
        """Reduce each codec's tensor, in an order that is the same on all ranks; ``lost`` gets what the wire lost."""
        for part in parts:
            self.reducer.recorder.add(elements_compressed=part.elements - part.size)  # less the zeros in place of others
            if len(part.spans) == 1:
                (span,) = part.spans
                self._send(payload[span], part, None if lost is None else lost[span])
                continue
            x = torch.cat([payload[span] for span in part.spans])
            error = None if lost is None else torch.empty_like(x)
            self._send(x, part, error)
            put_back(payload, part.spans, x)
            if lost is not None and error is not None:
                put_back(lost, part.spans, error)

    def _send(self, x: torch.Tensor, part: Part, lost: torch.Tensor | None) -> None:
        """One tensor; in the warm-up of DeepGradient with the codec of its stage, since all ranks count the same steps."""
        codec = part.codec if self.momenta is None else self.momenta.codec_of(part.codec)
        self.reducer.all_reduce(x, "mean", lost, codec)
        if lost is not None and isinstance(self.residuals, Residuals) and not self.residuals.form.second_shot:
            lost[self.reducer.own_shard(x.numel(), codec)] = 0

    def _with_feedback(
        self, payload: torch.Tensor, layout: Layout, residuals: Residuals | Momenta, idle: Sequence[slice]
    ) -> None:  # fmt: skip
        names = layout.names
        lost = residuals.following(names)
        self.reducer.recorder.add(sent_squares=float(payload.dot(payload)))
        self._reduce(payload, layout.parts, lost)
        # Not every codec has a zero: what it makes of the place of an exact gradient is nobody's loss.
        for span in layout.exact:
            lost[span] = 0
        self.reducer.recorder.add(lost_squares=float(lost.dot(lost)))
        residuals.leave(names, idle)
        self._layouts.append(names)

    def finish(self, payload: torch.Tensor, layout: Layout) -> None:
        """What a mean becomes before the optimizer gets it: with DeepGradient, momentum where it travelled uncompressed."""
        if self.momenta is not None:
            idle = untouched(payload, layout) if self._finds_unused else []
            self.momenta.finish(payload, layout.names, idle, layout.exact, alone=not layout.compressed)

    def commit(self) -> bool:
        """End the step, with the residuals that it left unless something of it was not finite: then False."""
        layouts, self._layouts = self._layouts, []
        return self.residuals is None or self.residuals.commit(layouts)
