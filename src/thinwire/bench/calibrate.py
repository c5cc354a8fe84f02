"""Measures what the cost model needs: the link, with bytes that no codec has made, and the codecs, while all ranks work."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import torch

from thinwire.codec.base import Codec
from thinwire.collective.base import Pending
from thinwire.collective.transport import Transport
from thinwire.cost import Machine, Network, wire_bytes

_MESSAGE: Final = 1 << 19
_ROW: Final = 1 << 18
_ROUNDS: Final = 12
_ROUND_TRIPS: Final = 30
_LEAST_WAKE: Final = 1e-4
_SHORT_TRIP: Final = 2e-3


def network(transport: Transport, seconds: float = 0.5) -> Network:
    """The link between neighbours, both ways at once, and what gloo's own all-reduce makes of it. Every rank gets the same.

    Not measured: congestion when many ranks send to one.
    """
    trip, ranks = transport.link.round_trip, transport.size
    # TCP takes some round trips to find the rate of a long way.
    rate, handling = _stream(transport, max(seconds, _ROUND_TRIPS * trip))
    wake = max(_LEAST_WAKE, trip / 2) if trip < _SHORT_TRIP else _LEAST_WAKE
    x = torch.zeros(int(min(max(rate * seconds / 4, 1 << 16), 1 << 24)) // 4)
    times: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        transport.all_reduce_sum(x).wait()
        times.append(_agreed(transport, time.perf_counter() - start))
    moving = max(sorted(times)[1] - 2 * (ranks - 1) * (trip / 2 + wake), 1e-6)
    gloo_rate = wire_bytes(x.numel(), 32, ranks) / moving
    return Network(rate=rate, round_trip=trip, wake=wake, gloo_rate=gloo_rate, handling=handling)


def machine(transport: Transport, codec: Codec) -> Machine:
    """``codec``'s speeds on rows of 1 MiB, 8 of them in turn, while all ranks measure."""
    x = torch.randn(8, _ROW)
    wire = torch.empty(8, codec.wire_bytes(_ROW), dtype=torch.uint8)
    out = torch.zeros_like(x)
    transport.gather_bytes(b"\0")
    encode = _rate(lambda k: codec.encode(x[k : k + 1], out=wire[k : k + 1]))
    decode = _rate(lambda k: codec.decode(wire[k : k + 1], _ROW, out=out[k : k + 1], add=True))
    return Machine(encode=1 / _agreed(transport, 1 / encode), decode=1 / _agreed(transport, 1 / decode))


def _rate(work: Callable[[int], object]) -> float:
    """Bytes/s of fp32, the median of rounds over all rows."""
    rounds: list[float] = []
    for number in range(_ROUNDS + 1):
        start = time.perf_counter()
        for k in range(8):
            work(k)
        if number:
            rounds.append(time.perf_counter() - start)
    return 8 * 4 * _ROW / sorted(rounds)[len(rounds) // 2]


def _stream(transport: Transport, seconds: float) -> tuple[float, float]:
    """Payload bytes/s each way while all ranks send to the next and receive from the one before, for about ``seconds``; and the
    processor's seconds a byte meanwhile."""
    to, source = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    data, landed = (torch.zeros(_MESSAGE, dtype=torch.uint8) for _ in range(2))
    deep, count = 3 * transport.streams, 4 * transport.streams
    while True:
        flight: deque[Pending] = deque()
        start, busy = time.perf_counter(), time.process_time()
        for _ in range(count):
            flight.append(transport.exchange(data, to, landed, source))
            if len(flight) > deep:
                flight.popleft().wait()
        for one in flight:
            one.wait()
        spent, busy = _agreed(transport, time.perf_counter() - start), _agreed(transport, time.process_time() - busy)
        if spent >= seconds / 2:
            moved = count * _MESSAGE
            return moved / (spent - transport.link.round_trip / 2), busy / moved
        count = min(int(count * seconds / spent) + 1, 4 * count)


def _agreed(transport: Transport, value: float) -> float:
    return max(struct.unpack("<d", one)[0] for one in transport.gather_bytes(struct.pack("<d", value)))
