"""The spine: a tensor in, its mean or sum over the ranks out.

    x (+ residual) -> rows -> encode -> wire -> decode, sum in fp32 -> encode -> wire -> decode -> mean

``none`` takes torch's own all-reduce instead: it is the baseline, so it must be what the user had before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from thinwire.codec.cast import Raw
from thinwire.collective import shard
from thinwire.collective.base import Peers
from thinwire.collective.legs import Wire
from thinwire.collective.two_shot import Op, TwoShot
from thinwire.metrics import Recorder


class Reducer:
    """Reduces flat, contiguous fp32 CPU tensors over one group; not for use from two threads at once."""

    def __init__(self, transport: Peers, codec: Wire, recorder: Recorder | None = None) -> None:
        self.transport, self.codec = transport, codec
        self.recorder = recorder or Recorder()
        self._collective = TwoShot(transport, codec, self.recorder)

    @property
    def messages(self) -> int:
        """Rows encoded so far, which seed the noise of the next ones; a run that goes on from a checkpoint sets it."""
        return self._collective.messages

    @messages.setter
    def messages(self, count: int) -> None:
        self._collective.messages = count

    def all_reduce(
        self, x: torch.Tensor, op: Op = "mean", lost: torch.Tensor | None = None, codec: Wire | None = None
    ) -> None:  # fmt: skip
        """Mean or sum of ``x`` over the ranks, in place, with ``codec`` in place of the reducer's own if given.

        ``lost`` (same shape) receives what the wire lost of this rank's part, in units of ``x``: add it to the next one.
        """
        codec = self.codec if codec is None else codec
        if isinstance(codec, Raw):
            self.all_reduce_uncompressed(x, op)
            if lost is not None:
                lost.zero_()
            return
        self.recorder.add(elements_compressed=x.numel())
        self._collective.use(codec)
        self._collective.all_reduce(x, self._shards(x.numel(), None, codec), op, lost)

    def shards(self, n: int, size: int | None = None) -> shard.Shards:
        """How a tensor of ``n`` elements is cut for this network, into shards of ``size`` or nearly equal ones."""
        return self._shards(n, size, self.codec)

    def _shards(self, n: int, size: int | None, codec: Wire) -> shard.Shards:
        ranks, link = self.transport.size, self.transport.link
        size = shard.even_size(n, ranks) if size is None else size
        bits = codec.bits_per_element(shard.SEGMENT)
        return shard.paced(n, ranks, size, bits, link.rate, link.round_trip)

    def all_reduce_uncompressed(self, x: torch.Tensor, op: Op = "mean") -> None:
        """The same through torch's all-reduce."""
        self.start_uncompressed(x, op)()

    def start_uncompressed(self, x: torch.Tensor, op: Op = "mean") -> Callable[[], None]:
        """Start it; what is returned waits for the end. Others may run meanwhile, so a small tensor costs no time of its own."""
        ranks = self.transport.size
        # What a ring moves: each rank sends 2 (N-1)/N of the tensor.
        moved = 2 * (ranks - 1) * x.numel() * x.element_size() // ranks
        self.recorder.add(elements_uncompressed=x.numel(), bytes_sent=moved, bytes_received=moved)
        pending = self.transport.all_reduce_sum(x)

        def finish() -> None:
            with self.recorder.timed("wire_seconds"):
                pending.wait()
            if op == "mean":
                x.div_(ranks)

        return finish

    def reduce_scatter(self, output: torch.Tensor, x: torch.Tensor, op: Op = "mean") -> None:
        """``output`` (m,) gets this rank's shard of the mean or sum of ``x`` (ranks * m,)."""
        self.recorder.add(elements_compressed=x.numel())
        self._collective.use(self.codec)
        self._collective.reduce_scatter(output, x, self.shards(x.numel(), output.numel()), op)

    def all_gather(self, output: torch.Tensor, x: torch.Tensor) -> None:
        """``output`` (ranks * m,) gets every rank's ``x`` (m,), quantized once, the same bits on all ranks."""
        shards = self.shards(output.numel(), x.numel())
        output[shards.size * self.transport.rank :][: shards.size].copy_(x)
        self.recorder.add(elements_compressed=output.numel())
        self._collective.use(self.codec)
        self._collective.all_gather(output, shards)
