"""Error feedback: what the wire lost of a tensor is added to the next one (Seide et al. 2014; Karimireddy et al. 2019).

Residuals belong to parameters, not to DDP's buckets: DDP rebuilds its buckets after the first step, and a bucket may keep
its size while its parameters change. A step is committed as a whole: one that held a NaN or Inf anywhere leaves every
residual as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from thinwire.errors import ConfigError


class Residuals:
    """One fp32 residual for each named parameter, laid out flat in the order in which a bucket needs them."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        """``sizes`` are the elements of each parameter that is compressed."""
        self._sizes = self.sizes = dict(sizes)
        self._flats: dict[tuple[str, ...], torch.Tensor] = {}
        self._next: dict[tuple[str, ...], torch.Tensor] = {}
        self._finite = True

    @property
    def parts(self) -> dict[str, Residuals]:
        """What a state has, by what stands before a parameter's name."""
        return {"": self}

    def current(self, names: tuple[str, ...]) -> torch.Tensor:
        """The residuals of ``names``, one after another: (sum of sizes,) fp32, zero at the start."""
        if names not in self._flats:
            flat = torch.cat([self.of(name) for name in names])
            stale = [layout for layout in self._flats if set(layout) & set(names)]
            kept = {name: self.of(name).clone() for layout in stale for name in layout if name not in names}
            for layout in stale:
                del self._flats[layout]
            self._flats |= {(name,): value for name, value in kept.items()}
            self._flats[names] = flat
        return self._flats[names]

    def enter(
        self, payload: torch.Tensor, names: tuple[str, ...], idle: Sequence[slice], exact: Sequence[slice]
    ) -> None:  # fmt: skip
        """Add what is owed to ``payload``, but send nothing at the spans ``idle``; at ``exact`` nothing is owed."""
        payload.add_(self.current(names))
        for span in idle:
            payload[span] = 0

    def leave(self, names: tuple[str, ...], idle: Sequence[slice]) -> None:
        """What is owed at the spans ``idle`` stays so."""
        for span in idle:
            self.following(names)[span] += self.current(names)[span]

    def following(self, names: tuple[str, ...]) -> torch.Tensor:
        """Where the step writes what it lost; it becomes current with :meth:`commit`."""
        if names not in self._next:
            self._next = {layout: flat for layout, flat in self._next.items() if not set(layout) & set(names)}
            self._next[names] = torch.zeros_like(self.current(names))
        return self._next[names]

    def seen(self, mean: torch.Tensor) -> None:
        """Note whether a result of this step is finite; all ranks see the same result, so all decide the same."""
        # The sum is NaN or Inf if an element is. One that overflows on finite elements costs a step's feedback, no more.
        self._finite = self._finite and bool(mean.sum().isfinite())

    def commit(self, layouts: Iterable[tuple[str, ...]]) -> bool:
        """End the step: take over what ``layouts`` lost if every result was finite; False if the step was dropped."""
        finite, self._finite = self._finite, True
        if finite:
            for names in layouts:
                self._flats[names], self._next[names] = self._next[names], self._flats[names]
        return finite

    def rescale(self, factor: float) -> None:
        """Multiply every residual, as when the loss scale changes by ``factor``."""
        for flat in self._flats.values():
            flat.mul_(factor)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """A copy of each parameter's residual, by name: (elements,) fp32."""
        return {name: self.of(name).clone() for name in self._sizes}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take residuals from :meth:`state_dict`. Raises ConfigError for other names or sizes."""
        sizes = {name: value.numel() for name, value in state.items()}
        if sizes != self._sizes:
            wrong = sorted(name for name in {*sizes, *self._sizes} if sizes.get(name) != self._sizes.get(name))
            raise ConfigError(
                f"residuals do not fit: {wrong[0]} has {sizes.get(wrong[0], 'no')} elements in the state; "
                f"allowed: {self._sizes.get(wrong[0], 'no such parameter')}"
            )
        self._next.clear()
        self._flats = {(name,): value.detach().clone().float().view(-1) for name, value in state.items()}

    def of(self, name: str) -> torch.Tensor:
        """One parameter's residual: (elements,) fp32, in the order of its memory."""
        for layout, flat in self._flats.items():
            if name in layout:
                start = sum(self._sizes[other] for other in layout[: layout.index(name)])
                return flat[start : start + self._sizes[name]]
        return torch.zeros(self._sizes[name])
