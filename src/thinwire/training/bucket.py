"""A DDP bucket: a flat buffer of the gradients of some parameters, of which some travel compressed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from thinwire.reducer import Reducer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a bucket's parameters lie; spans of neighbours that travel the same way are joined."""

    compressed: tuple[str, ...]
    compressed_spans: tuple[slice, ...]
    rest_spans: tuple[slice, ...]


def layout_of(
    names: Sequence[str], parameters: Sequence[torch.Tensor], compressed: Callable[[torch.Tensor], bool]
) -> Layout:  # fmt: skip
    """The layout of a bucket that holds ``parameters`` one after another, as DDP fills it."""
    spans: dict[bool, list[slice]] = {True: [], False: []}
    chosen: list[str] = []
    start = 0
    for name, parameter in zip(names, parameters, strict=True):
        kind, stop = compressed(parameter), start + parameter.numel()
        if spans[kind] and spans[kind][-1].stop == start:
            spans[kind][-1] = slice(spans[kind][-1].start, stop)
        else:
            spans[kind].append(slice(start, stop))
        if kind:
            chosen.append(name)
        start = stop
    return Layout(
        compressed=tuple(chosen), compressed_spans=tuple(spans[True]), rest_spans=tuple(spans[False])
    )  # fmt: skip


class Bucket:
    """Moves gradients between DDP's buffer and the flat fp32 tensors that are reduced."""

    def __init__(self, buffer: torch.Tensor, layout: Layout) -> None:
        self.buffer, self.layout = buffer, layout

    def gather(self, residual: torch.Tensor | None) -> torch.Tensor:
        """The compressed part (+ ``residual``) as flat fp32 on the CPU; the buffer's own memory where that serves."""
        spans = self.layout.compressed_spans
        if len(spans) == 1 and self.buffer.dtype == torch.float32 and self.buffer.device.type == "cpu":
            payload = self.buffer[spans[0]]
        else:
            payload = _join(self.buffer, spans)
        return payload if residual is None else payload.add_(residual)

    def scatter(self, payload: torch.Tensor) -> None:
        """Put the reduced compressed part back."""
        _split(payload, self.buffer, self.layout.compressed_spans)

    def reduce_rest(self, reducer: Reducer) -> None:
        """Reduce what is not compressed, as one fp32 tensor."""
        spans = self.layout.rest_spans
        if not spans:
            return
        whole = len(spans) == 1 and spans[0] == slice(0, self.buffer.numel()) and self.buffer.device.type == "cpu"
        if whole and self.buffer.dtype == torch.float32:
            reducer.all_reduce_uncompressed(self.buffer)
            return
        rest = _join(self.buffer, spans)
        reducer.all_reduce_uncompressed(rest)
        _split(rest, self.buffer, spans)


def _join(buffer: torch.Tensor, spans: Sequence[slice]) -> torch.Tensor:
    joined = torch.empty(sum(span.stop - span.start for span in spans), dtype=torch.float32)
    _copy(buffer, spans, joined, into_buffer=False)
    return joined


def _split(joined: torch.Tensor, buffer: torch.Tensor, spans: Sequence[slice]) -> None:
    if len(spans) == 1 and joined.data_ptr() == buffer[spans[0]].data_ptr():
        return
    _copy(buffer, spans, joined, into_buffer=True)


def _copy(buffer: torch.Tensor, spans: Sequence[slice], joined: torch.Tensor, into_buffer: bool) -> None:
    start = 0
    for span in spans:
        part = joined[start : start + span.stop - span.start]
        if into_buffer:
            buffer[span].copy_(part)
        else:
            part.copy_(buffer[span])
        start += span.stop - span.start
