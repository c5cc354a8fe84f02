"""How long a mean over ranks takes: arithmetic only, from a link's rate and round trip and a machine's own speeds.

With n elements, b bits each on the wire, N ranks, a link of B bytes/s each way and a round trip of T seconds, a rank sends
W = 2 (N-1)/N n b/8 bytes. Compressed (two-shot), the wire and the processor work at the same time:

    t = max(W / B, c + r) + c / k + 2 T'

c: seconds of encoding and decoding, r: of handing W to and taking it from the kernel, k: segments of a shard, whose first
encoding and last decoding nothing hides; T': half the round trip plus what it takes to wake a rank. Uncompressed (gloo's ring):

    t = W / B + 2 (N-1) T'

Sparse rows go to all ranks instead: W = (N-1) n b/8 bytes, one encoding, N decodings, and T' once.

The forms are alpha-beta models (Hockney 1994; Thakur, Rabenseifner and Gropp 2005) with the codec's work in parallel.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

_SEGMENTS: Final = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A link each way, at once: ``rate`` bytes/s of payload, ``round_trip`` and ``wake`` seconds.

    ``gloo_rate`` bytes/s is what gloo reaches there with its one connection a pair, at most ``rate``.
    """

    rate: float
    round_trip: float = 0.0
    wake: float = 1e-4
    gloo_rate: float = math.inf
    handling: float = 0.0
    """Processor seconds that a byte costs on its way out and another's on its way in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A rank's own speeds, with all ranks of its machine at work: bytes/s of fp32 that it encodes and decodes."""

    encode: float
    decode: float


def wire_bytes(elements: int, bits: float, ranks: int, gathered: bool = False) -> float:
    """Bytes that a rank sends, and receives, for a mean over ``ranks``; ``gathered`` if all get all rows."""
    return (ranks - 1) * (1 if gathered else 2 / ranks) * elements * bits / 8


def uncompressed(elements: int, bits: float, ranks: int, network: Network) -> float:
    """Seconds of gloo's all-reduce of numbers of ``bits`` (32 or 16)."""
    if ranks == 1:
        return 0.0
    moved = wire_bytes(elements, bits, ranks)
    return moved / min(network.rate, network.gloo_rate) + 2 * (ranks - 1) * _latency(network)


def compressed(elements: int, bits: float, ranks: int, network: Network, machine: Machine, gathered: bool = False) -> float:
    """Seconds of our two-shot with codes of ``bits`` effective bits, or of the sum of ``gathered`` rows."""
    if ranks == 1:
        return 0.0
    moved, shots = wire_bytes(elements, bits, ranks, gathered), 1 if gathered else 2
    work = _work(elements, ranks, machine, gathered)
    return max(moved / network.rate, work + moved * network.handling) + work / _SEGMENTS + shots * _latency(network)


def crossover(elements: int, bits: float, ranks: int, machine: Machine, network: Network, gathered: bool = False) -> float:
    """The link rate in bytes/s below which ``bits`` take less time than fp32 uncompressed; infinity if they always do."""
    low, high = 1e3, 1e12
    if _gain(elements, bits, ranks, machine, network, high, gathered) > 0:
        return math.inf
    for _ in range(100):
        middle = math.sqrt(low * high)
        if _gain(elements, bits, ranks, machine, network, middle, gathered) > 0:
            low = middle
        else:
            high = middle
    return low


def _gain(
    elements: int, bits: float, ranks: int, machine: Machine, network: Network, rate: float, gathered: bool
) -> float:  # fmt: skip
    there = dataclasses.replace(network, rate=rate, gloo_rate=math.inf)
    return uncompressed(elements, 32, ranks, there) - compressed(elements, bits, ranks, there, machine, gathered)


def _work(elements: int, ranks: int, machine: Machine, gathered: bool) -> float:
    """Encoding of all but the own shard and of its sum; decoding of as many shards that come, twice, and of the own sum.

    ``gathered`` rows are encoded once and decoded by everybody.
    """
    encoded = elements
    decoded = elements * (ranks if gathered else (2 * (ranks - 1) + 1) / ranks)
    return 4 * encoded / machine.encode + 4 * decoded / machine.decode


def _latency(network: Network) -> float:
    return network.round_trip / 2 + network.wake
