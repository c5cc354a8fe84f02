"""One rank's part in the averages of a step: all parameters in one flat tensor, large ones first, so that they are one message.

Behind them, uncompressed in the same message as the small ones, is a tail: for each parameter whether this rank has a gradient of
it, and a number of the optimizer's own that all ranks are to have with the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from thinwire.codec.cast import Raw
from thinwire.feedback.forms import Form
from thinwire.feedback.residuals import Residuals
from thinwire.reducer import Reducer
from thinwire.training.bucket import shaped_like


class Exchange:
    """The flat tensor of some parameters, and its means."""

    def __init__(
        self, reducer: Reducer, parameters: Sequence[torch.Tensor], compressed: Sequence[bool], form: Form | None
    ) -> None:  # fmt: skip
        """``compressed`` says which parameters travel so. Residuals are named by the parameters' numbers."""
        self.reducer = reducer
        order = sorted(range(len(parameters)), key=lambda number: not compressed[number])
        stops = list(itertools.accumulate(parameters[number].numel() for number in order))
        self._spans = {number: slice(stop - parameters[number].numel(), stop) for number, stop in zip(order, stops, strict=True)}
        self._names = tuple(str(number) for number in order if compressed[number])
        size, count = sum(p.numel() for p, one in zip(parameters, compressed, strict=True) if one), len(parameters)
        self.flat = torch.zeros(stops[-1] + 2 * count)
        self._payload, self._exact = self.flat[:size], self.flat[size:]
        self.used, self.shared = self.flat[stops[-1] :].split(count)
        self.views = [shaped_like(self.flat[self._spans[number]], p) for number, p in enumerate(parameters)]
        """Each parameter's part in its shape."""
        sizes = {name: parameters[int(name)].numel() for name in self._names}
        self.residuals = None if form is None or isinstance(reducer.codec, Raw) else Residuals(sizes, form)

    def average_exactly(self) -> bool:
        """The mean of everything, in place, in fp32. Whether it is finite."""
        self.reducer.all_reduce_uncompressed(self.flat)
        return self._is_finite()

    def average(self) -> bool:
        """The same through the codec for large parameters, with feedback. Residuals stay as they were if it is not finite."""
        finish = self.reducer.start_uncompressed(self._exact)
        if self.residuals is None:
            self.reducer.all_reduce(self._payload, "mean")
            finish()
            return self._is_finite()
        self._send_with(self.residuals)
        finish()
        self._leave(self.residuals)
        self.residuals.seen(self.flat)
        return self.residuals.commit([self._names])

    def _send_with(self, residuals: Residuals) -> None:
        recorder, payload = self.reducer.recorder, self._payload
        residuals.enter(payload, self._names, [], [])
        lost = residuals.following(self._names)
        recorder.add(sent_squares=float(payload.dot(payload)))
        self.reducer.all_reduce(payload, "mean", lost)
        if not residuals.form.second_shot:
            lost[self.reducer.own_shard(lost.numel())] = 0
        recorder.add(lost_squares=float(lost.dot(lost)))

    def _leave(self, residuals: Residuals) -> None:
        """What no rank has a gradient of is not moved: its mean is thrown away, and its residual stays."""
        idle = [self._spans[int(name)] for name in self._names if self.used[int(name)] == 0]
        for span in idle:
            residuals.following(self._names)[span] = 0
        residuals.leave(self._names, idle)

    def _is_finite(self) -> bool:
        # NaN or Inf if an element is; a sum that overflows on finite elements drops a step, on all ranks alike.
        return bool(self.flat.sum().isfinite())
