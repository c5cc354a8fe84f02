"""A bucket's mean over the ranks: residuals added, small parameters set aside, the rest through the codec.

DDP's hook (ddp.py) and the ranks of one process (simulate.py) both reduce with this, so that their results are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from thinwire.codec.base import Codec
from thinwire.codec.cast import Raw
from thinwire.feedback import Residuals
from thinwire.reducer import Reducer
from thinwire.training.bucket import Layout, put_back, set_aside, untouched


def travels_compressed(parameter: torch.Tensor, codec: Codec, min_elements: int) -> bool:
    """Whether a parameter's gradient travels compressed, by its shape and size."""
    return not isinstance(codec, Raw) and parameter.dim() > 1 and parameter.numel() >= min_elements


def residuals_for(feedback: bool, codec: Codec, sizes: Mapping[str, int]) -> Residuals | None:
    """What ``feedback`` keeps of parameters with so many elements, or None for no feedback."""
    return Residuals(sizes) if feedback and not isinstance(codec, Raw) else None


class Reduction:
    """The means of one rank's buckets, step by step; all ranks reduce the same buckets in the same order."""

    def __init__(self, reducer: Reducer, residuals: Residuals | None, finds_unused: bool = False) -> None:
        """With ``finds_unused``, a gradient that is zero throughout keeps its residual for later."""
        self.reducer, self.residuals = reducer, residuals
        self._finds_unused = finds_unused
        self._layouts: list[tuple[str, ...]] = []

    def mean(self, payload: torch.Tensor, layout: Layout) -> None:
        """Mean of ``payload``, a bucket's gradients as flat fp32 on the CPU, over the ranks, in place."""
        residuals, idle = self.residuals, list[slice]()
        if residuals is not None:
            # What no rank used is not the model's to get: DDP drops its mean, and with it a residual that was sent along.
            idle = untouched(payload, layout) if self._finds_unused else []
            payload.add_(residuals.current(layout.names))
            for span in idle:
                payload[span] = 0
        exact = set_aside(payload, layout.exact)
        finish = None if exact is None else self.reducer.start_uncompressed(exact)
        if exact is not None:
            self.reducer.recorder.add(elements_compressed=-exact.numel())  # the payload has zeros in their place
        if residuals is None:
            self.reducer.all_reduce(payload, "mean")
        else:
            self._with_feedback(payload, layout.names, residuals, idle)
        if exact is not None and finish is not None:
            finish()
            put_back(payload, layout.exact, exact)

    def _with_feedback(
        self, payload: torch.Tensor, names: tuple[str, ...], residuals: Residuals, idle: Sequence[slice]
    ) -> None:  # fmt: skip
        lost = residuals.following(names)
        self.reducer.recorder.add(sent_squares=float(payload.dot(payload)))
        self.reducer.all_reduce(payload, "mean", lost)
        self.reducer.recorder.add(lost_squares=float(lost.dot(lost)))
        for span in idle:
            lost[span] += residuals.current(names)[span]
        self._layouts.append(names)

    def commit(self) -> bool:
        """End the step, with the residuals that it left unless something of it was not finite: then False."""
        layouts, self._layouts = self._layouts, []
        return self.residuals is None or self.residuals.commit(layouts)
