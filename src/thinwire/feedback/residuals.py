"""Error feedback: what the wire lost of a tensor is added to the next one (Seide et al. 2014; Karimireddy et al. 2019).

Residuals belong to parameters, not to DDP's buckets: DDP rebuilds its buckets after the first step, and a bucket may keep
its size while its parameters change. A step is committed as a whole: one that held a NaN or Inf anywhere leaves every
residual as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from thinwire.errors import ConfigError
from thinwire.feedback.forms import Form, Plain
from thinwire.feedback.stores import Flats, Packed


class Residuals:
    """A residual for each named parameter, laid out flat in the order in which a bucket needs them."""

    def __init__(self, sizes: Mapping[str, int], form: Form | None = None) -> None:
        """``sizes`` are the elements of each parameter that is compressed; ``form`` None is :class:`Plain`."""
        self.sizes, self.form = dict(sizes), form or Plain()
        self.steps = 0
        """Steps that were committed."""
        self._store = Packed(self.sizes) if self.form.packed else Flats(self.sizes)
        self._finite = True

    @property
    def memory_bytes(self) -> int:
        """What is kept between two steps."""
        return self._store.memory_bytes

    @property
    def parts(self) -> dict[str, Residuals]:
        """What a state has, by what stands before a parameter's name."""
        return {"": self}

    def current(self, names: tuple[str, ...]) -> torch.Tensor:
        """The residuals of ``names``, one after another: (sum of sizes,) fp32, zero at the start."""
        return self._store.current(names)

    def following(self, names: tuple[str, ...]) -> torch.Tensor:
        """Where the step writes what it lost; :meth:`leave` makes a residual of it, current with :meth:`commit`."""
        return self._store.following(names)

    def enter(
        self, payload: torch.Tensor, names: tuple[str, ...], idle: Sequence[slice], exact: Sequence[slice]
    ) -> None:  # fmt: skip
        """Add what is owed to ``payload``, but send nothing at the spans ``idle``; at ``exact`` nothing is owed."""
        payload.add_(self.current(names))
        for span in idle:
            payload[span] = 0

    def leave(self, names: tuple[str, ...], idle: Sequence[slice]) -> None:
        """Make the residual of what was lost; what is owed at the spans ``idle`` stays so, and what was lost there is added."""
        lost, before = self.following(names), self.current(names)
        held = [before[span] + lost[span] * self.form.gain for span in idle]
        if self.form.gain != 1:
            lost.mul_(self.form.gain)
        if self.form.keep:
            lost.add_(before, alpha=self.form.keep)
        for span, one in zip(idle, held, strict=True):
            lost[span] = one
        self._store.hold(names)

    def seen(self, mean: torch.Tensor) -> None:
        """Note whether a result of this step is finite; all ranks see the same result, so all decide the same."""
        # The sum is NaN or Inf if an element is. One that overflows on finite elements costs a step's feedback, no more.
        self._finite = self._finite and bool(mean.sum().isfinite())

    def commit(self, layouts: Iterable[tuple[str, ...]]) -> bool:
        """End the step: take over what ``layouts`` lost if every result was finite; False if the step was dropped."""
        finite, self._finite = self._finite, True
        if finite:
            for names in layouts:
                self._store.take_over(names)
            self.steps += 1
            if self.form.reset_steps is not None and self.steps % self.form.reset_steps == 0:
                self.rescale(0.0)
        return finite

    def rescale(self, factor: float) -> None:
        """Multiply every residual, as when the loss scale changes by ``factor``."""
        self._store.rescale(factor)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """A copy of each parameter's residual, by name: (elements,) fp32."""
        return {name: self.of(name).clone() for name in self.sizes}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take residuals from :meth:`state_dict`. Raises ConfigError for other names or sizes."""
        sizes = {name: value.numel() for name, value in state.items()}
        if sizes != self.sizes:
            wrong = sorted(name for name in {*sizes, *self.sizes} if sizes.get(name) != self.sizes.get(name))
            raise ConfigError(
                f"residuals do not fit: {wrong[0]} has {sizes.get(wrong[0], 'no')} elements in the state; "
                f"allowed: {self.sizes.get(wrong[0], 'no such parameter')}"
            )
        self._store.load({name: value.detach().clone().float().view(-1) for name, value in state.items()})

    def of(self, name: str) -> torch.Tensor:
        """One parameter's residual: (elements,) fp32, in the order of its memory."""
        return self._store.of(name)
