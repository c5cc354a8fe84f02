"""A bucket's mean over the ranks: residuals added, small parameters set aside, the rest through the codecs.

DDP's hook (ddp.py) and the ranks of one process (simulate.py) both reduce with this, so that their results are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from thinwire.controller import Controller
from thinwire.feedback import Residuals
from thinwire.reducer import Reducer
from thinwire.training.assignment import Assignment, Part
from thinwire.training.bucket import Layout, put_back, set_aside, untouched


def residuals_for(feedback: bool, assignment: Assignment, sizes: Mapping[str, int]) -> Residuals | None:
    """What ``feedback`` keeps of parameters with so many elements, or None for no feedback."""
    return Residuals(sizes) if feedback and assignment.codecs else None


class Reduction:
    """The means of one rank's buckets, step by step; all ranks reduce the same buckets in the same order."""

    def __init__(
        self, reducer: Reducer, residuals: Residuals | None, finds_unused: bool = False, controller: Controller | None = None
    ) -> None:
        """With ``finds_unused``, a gradient that is zero throughout keeps its residual for later. ``controller`` measures."""
        self.reducer, self.residuals, self.controller = reducer, residuals, controller
        self._finds_unused = finds_unused
        self._layouts: list[tuple[str, ...]] = []

    def mean(self, payload: torch.Tensor, layout: Layout) -> None:
        """Mean of ``payload``, a bucket's gradients as flat fp32 on the CPU, over the ranks, in place."""
        residuals, idle = self.residuals, list[slice]()
        measure = self.controller is not None and self.controller.measuring
        if residuals is not None:
            # What no rank used is not the model's to get: DDP drops its mean, and with it a residual that was sent along.
            idle = untouched(payload, layout) if self._finds_unused else []
            payload.add_(residuals.current(layout.names))
            for span in idle:
                payload[span] = 0
        if self.controller is not None and measure:
            self.controller.sent(layout.pieces(payload))
        exact = set_aside(payload, layout.exact)
        finish = None if exact is None else self.reducer.start_uncompressed(exact)
        if residuals is None:
            self._reduce(payload, layout.parts, None)
        else:
            self._with_feedback(payload, layout, residuals, idle)
        if exact is not None and finish is not None:
            finish()
            put_back(payload, layout.exact, exact)
        if self.controller is not None and measure:
            self.controller.came(layout.pieces(payload))

    def _reduce(self, payload: torch.Tensor, parts: Sequence[Part], lost: torch.Tensor | None) -> None:
        """Reduce each codec's tensor, in an order that is the same on all ranks; ``lost`` gets what the wire lost."""
        for part in parts:
            self.reducer.recorder.add(elements_compressed=part.elements - part.size)  # less the zeros in place of others
            if len(part.spans) == 1:
                (span,) = part.spans
                self.reducer.all_reduce(payload[span], "mean", None if lost is None else lost[span], part.codec)
                continue
            x = torch.cat([payload[span] for span in part.spans])
            error = None if lost is None else torch.empty_like(x)
            self.reducer.all_reduce(x, "mean", error, part.codec)
            put_back(payload, part.spans, x)
            if lost is not None and error is not None:
                put_back(lost, part.spans, error)

    def _with_feedback(
        self, payload: torch.Tensor, layout: Layout, residuals: Residuals, idle: Sequence[slice]
    ) -> None:  # fmt: skip
        names = layout.names
        lost = residuals.following(names)
        self.reducer.recorder.add(sent_squares=float(payload.dot(payload)))
        self._reduce(payload, layout.parts, lost)
        for span in layout.exact:
            lost[span] = 0  # a codec may make something of the zeros there, which nobody gets
        self.reducer.recorder.add(lost_squares=float(lost.dot(lost)))
        for span in idle:
            lost[span] += residuals.current(names)[span]
        self._layouts.append(names)

    def commit(self) -> bool:
        """End the step, with the residuals that it left unless something of it was not finite: then False."""
        layouts, self._layouts = self._layouts, []
        return self.residuals is None or self.residuals.commit(layouts)
