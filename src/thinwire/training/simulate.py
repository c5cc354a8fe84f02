"""N ranks of data-parallel training in one process: ``compress`` on DDP without processes, with the same bits.

Gradients of the ranks are computed one after another with the same weights. Then every rank reduces them with the code that real
ranks run, in a thread of its own. Buckets are DDP's: in the first step one with all parameters, then in the order in which
gradients became ready (torch/csrc/distributed/c10d/reducer.cpp). Not simulated: time, and a random state for each rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import nn

from thinwire.codec.cast import Raw
from thinwire.collective.base import Link
from thinwire.collective.simulated import NO_LINK, SimulatedGroup
from thinwire.errors import ConfigError
from thinwire.feedback.deep_gradient import DeepGradient
from thinwire.feedback.forms import Feedback
from thinwire.feedback.specs import form_of, spec_of
from thinwire.metrics import Recorder, Stats
from thinwire.policy.choice import ChoiceLike, resolve
from thinwire.reducer import Reducer
from thinwire.training.assignment import assign, controller_for, kernels_of, tied_names
from thinwire.training.bucket import Layout, layout_of, shaped_like
from thinwire.training.checks import check_arguments, check_parameters, compile_kernels
from thinwire.training.ddp import MIN_ELEMENTS
from thinwire.training.optimizers import watch_optimizers
from thinwire.training.reduction import Reduction, residuals_for
from thinwire.training.share import Share, share_of

_MIB: Final = 1 << 20
_FIRST_BUCKET_BYTES: Final = _MIB
_BUCKET_BYTES: Final = 25 * _MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Bucket:
    """Where a bucket lies in a rank's gradients, and what it holds."""

    span: slice
    layout: Layout


class Simulation:
    """The ranks; the caller keeps one model and one optimizer, which stand for those of all ranks."""

    def __init__(
        self, model: nn.Module, codec: ChoiceLike = "int8", ranks: int = 4, feedback: bool | str | Feedback | None = None,
        min_elements: int = MIN_ELEMENTS, bucket_cap_mb: float | None = None, link: Link = NO_LINK,
    ) -> None:  # fmt: skip
        """``feedback`` and ``min_elements`` as in :func:`compress`, ``bucket_cap_mb`` as in DistributedDataParallel.

        ``link`` is what a probe would have found; it paces messages and changes no bit. Raises ConfigError for numbers out of
        range, and for a model that is not fp32 or has nothing to compress.
        """
        self.codec, self.ranks, self.min_elements = resolve(codec), ranks, min_elements
        check_arguments(min_elements, None)
        self.feedback = form_of(feedback, *kernels_of(self.codec))
        self._model, self.models = model, [model] * ranks
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        _check(self._parameters)
        every = dict(model.named_parameters())
        self._assignment = assign(self.codec, every, min_elements, aliases=tied_names(model))
        compile_kernels(self.codec)
        self._group = SimulatedGroup(ranks, link)
        sizes = {name: p.numel() for name, p in every.items()}
        recorders = [Recorder() for _ in range(ranks)]
        pairs = zip(self._group.peers, recorders, strict=True)
        self._reductions = [
            Reduction(
                Reducer(peers, Raw(), recorder),
                residuals_for(self.feedback, self._assignment, sizes, ranks),
                controller=controller_for(self.codec, every, self._assignment),
            )
            for peers, recorder in pairs
        ]
        first, cap = _FIRST_BUCKET_BYTES, _BUCKET_BYTES
        if bucket_cap_mb is not None:
            first = cap = int(bucket_cap_mb * _MIB)
        self._caps = (first, cap)
        self._gradients = [torch.empty(sum(p.numel() for p in self._parameters.values())) for _ in range(ranks)]
        self._buckets = self._cut([list(self._parameters)])
        self._rebuilt = False
        self.nmse = 0.0
        """Of the last step: squared error of the mean by the squared mean, over all gradients (residuals are not part of it).

        With DeepGradient the optimizer gets no mean, and this is large: it has the momentum too.
        """
        self.identical = True
        """Whether all ranks have had the same bits in every step."""
        self.finite = True
        """As a handle's: whether all gradients of the last step were finite; kept with feedback only."""
        self.active = True
        if isinstance(self.feedback, DeepGradient):
            watch_optimizers(self, self._parameters.values())

    @property
    def share(self) -> Share:
        """Elements that travel compressed and uncompressed, and the names of the latter."""
        return share_of(self._parameters, self._assignment)

    def assignment(self) -> list[dict[str, object]]:
        """As a handle's: a row a parameter, as of the next step."""
        return self._assignment.rows({name: p.numel() for name, p in self._parameters.items()})

    def summary(self) -> str:
        """One line for people: codec, bits, threshold, and what goes uncompressed."""
        return self.share.summary(self.codec, spec_of(self.feedback), self.min_elements)

    def stats(self) -> list[Stats]:
        """What each rank sent and received since the last call. Seconds are those of threads that share the processor."""
        return [dataclasses.replace(one.reducer.recorder.take(), codec=self.codec.spec()) for one in self._reductions]

    def backward(self, loss_of: Callable[[int], torch.Tensor]) -> list[float]:
        """A step's gradients: ``loss_of(rank)`` of every rank, backward, and their mean in the parameters' ``grad``.

        Returns the losses. Buffers of the model end as those of rank 0, as in DDP. Raises ConfigError if a parameter gets no
        gradient.
        """
        order: list[str] = []
        hooks = [] if self._rebuilt else [_when_ready(p, name, order) for name, p in self._parameters.items()]
        losses = self._compute(loss_of)
        for hook in hooks:
            hook.remove()
        exact = _mean(self._gradients)
        self.finite = self._group.run(self._reduce)[0]
        result = self._gradients[0]
        self.nmse = _norm(result - exact) ** 2 / max(_norm(exact) ** 2, 1e-300)
        self.identical = self.identical and all(_same_bits(result, other) for other in self._gradients[1:])
        for name, view in self._views(0).items():
            self._parameters[name].grad = view
        if not self._rebuilt:
            ready = list(dict.fromkeys(order))  # of rank 0, as DDP has it; later ranks repeat it
            self._buckets, self._rebuilt = self._cut(self._rebuild(ready)), True
        self._decide()
        return losses

    def _decide(self) -> None:
        """As in ddp.py: every so many steps, all ranks take the next decision of rank 0."""
        controllers = [one.controller for one in self._reductions if one.controller is not None]
        seen = [data for one in controllers if (data := one.end_step()) is not None]
        if seen:
            said = controllers[0].decide(seen)
            for one in controllers:
                one.apply(said)
            self._assignment = self._assignment.changed(controllers[0].decision)
            self._buckets = self._cut([bucket.layout.names for bucket in self._buckets])

    def _compute(self, loss_of: Callable[[int], torch.Tensor]) -> list[float]:
        losses: list[float] = []
        before = [buffer.clone() for buffer in self._model.buffers()]
        after: list[torch.Tensor] = []
        for rank in range(self.ranks):
            _set(self._model, before)
            for parameter in self._parameters.values():
                parameter.grad = None
            loss = loss_of(rank)
            loss.backward()
            losses.append(loss.item())
            after = after or [buffer.clone() for buffer in self._model.buffers()]
            for name, view in self._views(rank).items():
                gradient = self._parameters[name].grad
                if gradient is None:
                    raise ConfigError(f"parameter {name} got no gradient from rank {rank}; allowed: models that use all of them")
                view.copy_(gradient)
        _set(self._model, after)
        return losses

    def _reduce(self, rank: int) -> bool:
        """One rank's part in all buckets, as in ddp.py; whether it saw nothing but finite results."""
        reduction, residuals = self._reductions[rank], self._reductions[rank].residuals
        with torch.no_grad():
            reduction.clip([self._gradients[rank][bucket.span] for bucket in self._buckets])
            for bucket in self._buckets:
                payload = self._gradients[rank][bucket.span]
                reduction.mean(payload, bucket.layout)
                reduction.finish(payload, bucket.layout)
                if residuals is not None:
                    residuals.seen(payload)
            reduction.reducer.recorder.add(steps=1)
            return reduction.commit()

    def _views(self, rank: int) -> dict[str, torch.Tensor]:
        """A rank's gradients in the parameters' shapes."""
        views: dict[str, torch.Tensor] = {}
        for bucket in self._buckets:
            parts = self._gradients[rank][bucket.span].split(bucket.layout.sizes)
            for name, part in zip(bucket.layout.names, parts, strict=True):
                views[name] = shaped_like(part, self._parameters[name])
        return views

    def _cut(self, buckets: Sequence[Sequence[str]]) -> list[_Bucket]:
        made: list[_Bucket] = []
        start = 0
        for names in buckets:
            parameters = [self._parameters[name] for name in names]
            stop = start + sum(p.numel() for p in parameters)
            made.append(_Bucket(span=slice(start, stop), layout=layout_of(names, parameters, self._assignment)))
            start = stop
        return made

    def _rebuild(self, ready: Sequence[str]) -> list[list[str]]:
        """DDP's buckets after its first step: one ends where it has reached the cap, the first one at a smaller one."""
        buckets: list[list[str]] = [[]]
        size, (cap, later) = 0, self._caps
        for name in ready:
            if size >= cap:
                buckets.append([])
                size, cap = 0, later
            buckets[-1].append(name)
            size += 4 * self._parameters[name].numel()
        return buckets


def _check(parameters: dict[str, nn.Parameter]) -> None:
    check_parameters(parameters)
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ConfigError(f"parameter {name} is {parameter.dtype} on {parameter.device}; allowed here: float32 on the CPU")


def _when_ready(parameter: nn.Parameter, name: str, order: list[str]) -> torch.utils.hooks.RemovableHandle:
    def ready(_: torch.Tensor) -> None:
        order.append(name)

    return parameter.register_post_accumulate_grad_hook(ready)


def _set(model: nn.Module, values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), values, strict=True):
            buffer.copy_(value)


def _mean(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    return total.div_(len(parts))


def _norm(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
