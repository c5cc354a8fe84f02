"""The spine: a tensor in, its mean or sum over the ranks out.

    x (+ residual) -> rows -> encode -> wire -> decode, sum in fp32 -> encode -> wire -> decode -> mean

Codecs of sparse rows have their sum at once: everybody gets, and adds, the rows of all.
``none`` takes torch's own all-reduce instead: it is the baseline, so it must be what the user had before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from thinwire.codec.base import Codec
from thinwire.codec.cast import Raw
from thinwire.collective import shard
from thinwire.collective.all_gather_sum import AllGatherSum
from thinwire.collective.base import Noise, Peers
from thinwire.collective.legs import Wire, legs_of
from thinwire.collective.two_shot import Op, TwoShot
from thinwire.metrics import Recorder


class Reducer:
    """Reduces flat, contiguous fp32 CPU tensors over one group; not for use from two threads at once."""

    def __init__(self, transport: Peers, codec: Wire, recorder: Recorder | None = None) -> None:
        self.transport, self.codec = transport, codec
        self.recorder = recorder or Recorder()
        self.noise = Noise(transport.rank)
        self._two_shot = TwoShot(transport, codec, self.recorder, self.noise)
        self._gather = AllGatherSum(transport, legs_of(codec)[0], self.recorder, self.noise)

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
        shards = self.shards(x.numel(), codec=codec)
        if isinstance(codec, Codec) and codec.sums == "all_gather":
            self._gather.use(codec)
            self._gather.all_reduce(x, shards, op, lost)
        else:
            self._two_shot.use(codec)
            self._two_shot.all_reduce(x, shards, op, lost)

    def shards(self, n: int, size: int | None = None, codec: Wire | None = None) -> shard.Shards:
        """How a tensor of ``n`` elements is cut for this network, into shards of ``size`` or nearly equal ones.

        Where all rows go to all ranks, the sum of a tensor has one shard.
        """
        codec = self.codec if codec is None else codec
        ranks, link = self.transport.size, self.transport.link
        if size is None:
            gathered = isinstance(codec, Codec) and codec.sums == "all_gather"
            ranks, size = (1, n) if gathered else (ranks, shard.even_size(n, ranks))
        bits = codec.expected_bits(shard.SEGMENT)
        return shard.paced(n, ranks, size, bits, link.rate, link.round_trip)

    def own_shard(self, n: int, codec: Wire | None = None) -> slice:
        """The elements whose sum of an all-reduce of ``n`` this rank encodes: what is lost of them, the second shot lost."""
        shards, rank = self.shards(n, codec=codec), self.transport.rank
        return slice(min(rank * shards.size, n), min((rank + 1) * shards.size, n)) if shards.ranks > 1 else slice(0, 0)

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
        self._two_shot.use(self.codec)
        self._two_shot.reduce_scatter(output, x, self.shards(x.numel(), output.numel()), op)

    def all_gather(self, output: torch.Tensor, x: torch.Tensor) -> None:
        """``output`` (ranks * m,) gets every rank's ``x`` (m,), quantized once, the same bits on all ranks."""
        shards = self.shards(output.numel(), x.numel())
        output[shards.size * self.transport.rank :][: shards.size].copy_(x)
        self.recorder.add(elements_compressed=output.numel())
        self._two_shot.use(self.codec)
        self._two_shot.all_gather(output, shards)
