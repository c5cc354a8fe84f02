"""Two-shot all-reduce: every rank sums one shard in fp32 and sends its result to all; two quantizations, at any N.

    first shot     rank r encodes shard p of its tensor for rank p; p adds what arrives to its own shard, which stays exact
    second shot    p encodes its sum (or mean); everybody decodes those bytes, p too, so replicas are bit-identical

The expected error is D/(1 + (N-1) rho) + D for one quantization's D, where a ring that requantizes at each hop has
D (N+1)/2 (docs/numerics.md). Shards travel in segments: while one is on the wire, the next is encoded and the last decoded.
In round t of a segment, rank r sends to r+t and receives from r-t: both directions are busy and nobody is sent to twice.

Rows of a codec whose size depends on the numbers travel at the size that they state themselves. An all-to-all, which is what NCCL
has, needs sizes that both sides know: there they travel padded to the codec's capacity, so that such a codec saves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

import torch

from thinwire.codec.base import Codec
from thinwire.collective.base import Noise, Peers, Pending
from thinwire.collective.buffers import Buffers
from thinwire.collective.legs import Wire, legs_of
from thinwire.collective.shard import Shards
from thinwire.metrics import Recorder

Op = Literal["mean", "sum"]


class TwoShot:
    """The collective over one group. Tensors are flat, contiguous fp32 on the CPU.

    Buffers are kept between calls; one thread uses an instance at a time, and all ranks call in the same order.
    """

    def __init__(self, transport: Peers, codec: Wire, recorder: Recorder, noise: Noise) -> None:
        self.transport, self.recorder, self._noise = transport, recorder, noise
        self._first, self._second = legs_of(codec)
        self._flight: deque[tuple[int | None, Pending, Callable[[], None]]] = deque()
        self._in_flight = 3
        self.buffers = Buffers()

    def use(self, codec: Wire) -> None:
        """Take ``codec`` from the next call on."""
        self._first, self._second = legs_of(codec)

    def all_reduce(self, x: torch.Tensor, shards: Shards, op: Op, error: torch.Tensor | None = None) -> None:
        """Sum or mean of ``x`` over the ranks, in place. ``error`` receives what this rank must add to its next tensor."""
        if self.transport.size == 1:
            if error is not None:
                error.zero_()
            return
        behind, self._in_flight = shards.behind, shards.in_flight
        for k in range(shards.segments + behind):
            if k < shards.segments:
                self._scatter(k, x, x, shards, error)
            if 0 <= k - behind < shards.segments:
                self._finish(k - behind)
                self._share(k - behind, x, shards, op, error)
        self._finish()

    def reduce_scatter(self, output: torch.Tensor, x: torch.Tensor, shards: Shards, op: Op) -> None:
        """The first shot alone: ``output`` gets this rank's shard of the sum or mean, in fp32."""
        me = self.transport.rank
        self._in_flight = shards.in_flight
        own = slice(me * shards.size, (me + 1) * shards.size)
        output.copy_(x[own])
        for k in range(shards.segments):
            self._scatter(k, x, _At(output, own.start), shards, None)
        self._finish()
        if op == "mean":
            output.div_(self.transport.size)

    def all_gather(self, output: torch.Tensor, shards: Shards) -> None:
        """The second shot alone: this rank's shard of ``output``, quantized, to the same place on all ranks."""
        self._in_flight = shards.in_flight
        for k in range(shards.segments if self.transport.size > 1 else 0):
            self._share(k, output, shards, "sum", None)
        self._finish()

    def _scatter(
        self, k: int, x: torch.Tensor, target: torch.Tensor | _At, shards: Shards, error: torch.Tensor | None
    ) -> None:  # fmt: skip
        """Segment k of every other shard to its owner; theirs of mine are added to ``target`` as they arrive."""
        me, ranks = self.transport.rank, self.transport.size
        mine = shards.span(me, k)
        for step in range(1, ranks):
            to, source = (me + step) % ranks, (me - step) % ranks
            span = shards.span(to, k)
            send = self._encode(self._first, x[span], None if error is None else error[span])
            self._post(k, send, to, mine, source, target, add=True)

    def _share(self, k: int, x: torch.Tensor, shards: Shards, op: Op, error: torch.Tensor | None) -> None:
        """My segment k, encoded once, to every other rank; I decode the same bytes."""
        me, ranks = self.transport.rank, self.transport.size
        mine = shards.span(me, k)
        own, lost = x[mine], None if error is None else error[mine]
        if op == "mean":
            own.div_(ranks)
        send = self._encode(self._second, own, lost)
        if op == "mean" and lost is not None:
            lost.mul_(ranks)
        for step in range(1, ranks):
            to, source = (me + step) % ranks, (me - step) % ranks
            self._post(None, send, to, shards.span(source, k), source, x, add=False, shared=step < ranks - 1)
        if send is not None:
            # While it is on its way. The buffer is returned with its last message, which is the newest and still in flight.
            self._decode(self._second, send, own, add=False)

    def _encode(self, codec: Codec, x: torch.Tensor, error: torch.Tensor | None) -> torch.Tensor | None:
        """The row of one message in a buffer of ours, or None for an empty one."""
        if not x.numel():
            return None
        wire = self.buffers.borrow(codec.wire_bytes(x.numel()))
        with self.recorder.timed("encode_seconds"):
            lost = None if error is None else error[None]
            codec.encode(x[None], out=wire[None], error=lost, seed=self._noise.seed())
        return wire

    def _decode(self, codec: Codec, wire: torch.Tensor, out: torch.Tensor, add: bool) -> None:
        with self.recorder.timed("decode_seconds"):
            codec.decode(wire[None], out.numel(), out=out[None], add=add)

    def _post(
        self, summand: int | None, send: torch.Tensor | None, to: int, span: slice, source: int,
        target: torch.Tensor | _At, add: bool, shared: bool = False,
    ) -> None:  # fmt: skip
        """Start one exchange; what arrives is for ``span`` of ``target``, and part of the sum of segment ``summand``."""
        count, codec = span.stop - span.start, self._first if add else self._second
        receive = self.buffers.borrow(codec.wire_bytes(count)) if count else None
        varies = codec.variable and not self.transport.fixed_sizes
        part = send if send is None or not varies else send[: codec.message_bytes(send)]

        def finish() -> None:
            if receive is not None:
                self.recorder.add(bytes_received=codec.message_bytes(receive) if varies else receive.numel())
                self._decode(codec, receive, target[span], add)
                self.buffers.give_back(receive)
            if send is not None and not shared:
                self.buffers.give_back(send)

        pending = self.transport.exchange(part, to, receive, source, codec.stated_bytes if varies else None)
        self.recorder.add(bytes_sent=0 if part is None else part.numel())
        self._flight.append((summand, pending, finish))
        while len(self._flight) > self._in_flight:
            self._finish_one()

    def _finish_one(self) -> None:
        _, pending, finish = self._flight.popleft()
        with self.recorder.timed("wire_seconds"):
            pending.wait()
        finish()

    def _finish(self, segment: int | None = None) -> None:
        """Finish exchanges in the order of their start until the sum of ``segment`` is complete; None: all of them."""
        while self._flight and (segment is None or any(one == segment for one, _, _ in self._flight)):
            self._finish_one()


class _At:
    """A shard that is indexed by its place in the whole tensor."""

    def __init__(self, shard: torch.Tensor, start: int) -> None:
        self._shard, self._start = shard, start

    def __getitem__(self, span: slice) -> torch.Tensor:
        return self._shard[span.start - self._start : span.stop - self._start]
