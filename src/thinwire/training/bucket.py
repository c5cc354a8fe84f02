"""A DDP bucket: a flat buffer of the gradients of some parameters, a few of which travel uncompressed.

The buffer is compressed as it lies, without a copy. The few small parameters in it are set aside before, leave zeros that
disturb no scale, and are put back as exact means; their codes are the price of not moving everything else.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from thinwire.training.assignment import Assignment, Part, parts_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A bucket's parameters in order, the spans of those that travel uncompressed, and the tensors that travel compressed."""

    names: tuple[str, ...]
    exact: tuple[slice, ...]
    parts: tuple[Part, ...]
    sizes: tuple[int, ...]

    @property
    def compressed(self) -> bool:
        """Whether anything travels compressed."""
        return bool(self.parts)

    def pieces(self, payload: torch.Tensor) -> dict[str, torch.Tensor]:
        """Each parameter's part of the bucket."""
        return dict(zip(self.names, payload.split(self.sizes), strict=True))


def layout_of(names: Sequence[str], parameters: Sequence[torch.Tensor], assignment: Assignment) -> Layout:
    """The layout of a bucket that holds ``parameters`` one after another, as DDP fills it. Neighbouring spans are joined."""
    exact: list[slice] = []
    start, sizes = 0, tuple(p.numel() for p in parameters)
    for name, size in zip(names, sizes, strict=True):
        stop = start + size
        if name in assignment.codecs:
            pass
        elif exact and exact[-1].stop == start:
            exact[-1] = slice(exact[-1].start, stop)
        elif stop > start:
            exact.append(slice(start, stop))
        start = stop
    return Layout(names=tuple(names), exact=tuple(exact), parts=parts_of(names, sizes, assignment), sizes=sizes)


def shaped_like(flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's part of a bucket in the parameter's shape: it lies in memory as the parameter does, without holes."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    dense = parameter.numel() > 0 and extent == parameter.numel()
    return flat.as_strided(parameter.shape, parameter.stride()) if dense else flat.view(parameter.shape)


def untouched(payload: torch.Tensor, layout: Layout) -> list[slice]:
    """The spans of parameters whose gradient is zero throughout, as where this rank did not use them."""
    ends = list(itertools.accumulate(layout.sizes))
    spans = [slice(end - size, end) for end, size in zip(ends, layout.sizes, strict=True)]
    return [span for span in spans if not payload[span].any()]


def as_payload(buffer: torch.Tensor) -> torch.Tensor:
    """The buffer as flat fp32 on the CPU: its own memory where it is that already, else a copy."""
    return buffer.to(device="cpu", dtype=torch.float32)


def set_aside(payload: torch.Tensor, spans: Sequence[slice]) -> torch.Tensor | None:
    """A copy of the elements of ``spans``, which become zero; None if there are none."""
    if not spans:
        return None
    exact = torch.cat([payload[span] for span in spans])
    for span in spans:
        payload[span] = 0
    return exact


def put_back(payload: torch.Tensor, spans: Sequence[slice], exact: torch.Tensor) -> None:
    """The inverse of :func:`set_aside`."""
    for span, part in zip(spans, exact.split([span.stop - span.start for span in spans]), strict=True):
        payload[span] = part


class Held(NamedTuple):
    """A bucket that DDP has handed over: the names of its parameters, the future that it waits for, whether to compress."""

    buffer: torch.Tensor
    names: list[str]
    parameters: list[torch.Tensor]
    future: torch.futures.Future[torch.Tensor]
    active: bool
    weight: float | None


def pieces(held: Held) -> dict[str, torch.Tensor]:
    """Each parameter's part of the buffer."""
    return dict(zip(held.names, held.buffer.split([p.numel() for p in held.parameters]), strict=True))


def regrouped(held: Sequence[Held], order: Sequence[Sequence[str]]) -> list[Held]:
    """The same gradients in buckets of ``order``, as copies in fp32; as they came if ``order`` does not name the same ones."""
    first = held[0]
    named = {name: p for one in held for name, p in zip(one.names, one.parameters, strict=True)}
    dense = all(one.buffer.layout == torch.strided for one in held)
    if not dense or sorted(named) != sorted(name for names in order for name in names):
        return list(held)
    parts = {name: part for one in held for name, part in pieces(one).items()}
    return [
        first._replace(
            buffer=torch.cat([parts[n].float().cpu() for n in names]), names=list(names), parameters=[named[n] for n in names]
        )
        for names in order
    ]


def share_out(order: Sequence[Held], held: Sequence[Held]) -> None:
    """Put the results of :func:`regrouped` buckets back where they came from."""
    if all(one is other for one, other in zip(order, held, strict=False)):
        return
    results = {name: part for one in order for name, part in pieces(one).items()}
    for one in held:
        for name, part in pieces(one).items():
            part.copy_(results[name])
