"""A DDP bucket: a flat buffer of the gradients of some parameters, a few of which travel uncompressed.

The buffer is compressed as it lies, without a copy. The few small parameters in it are set aside before, leave zeros that
disturb no scale, and are put back as exact means; their codes are the price of not moving everything else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A bucket's parameters in order, the spans of those that travel uncompressed, and whether these are all."""

    names: tuple[str, ...]
    exact: tuple[slice, ...]
    compressed: bool


def layout_of(names: Sequence[str], parameters: Sequence[torch.Tensor], compressed: Callable[[torch.Tensor], bool]) -> Layout:
    """The layout of a bucket that holds ``parameters`` one after another, as DDP fills it. Neighbouring spans are joined."""
    exact: list[slice] = []
    start, found = 0, False
    for parameter in parameters:
        stop = start + parameter.numel()
        if compressed(parameter):
            found = True
        elif exact and exact[-1].stop == start:
            exact[-1] = slice(exact[-1].start, stop)
        elif stop > start:
            exact.append(slice(start, stop))
        start = stop
    return Layout(names=tuple(names), exact=tuple(exact), compressed=found)


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
