"""What a link of the lab really does, measured with plain TCP sockets between ranks 0 and 1, without torch.

Run as the command of a lab (``python -m thinwire.lab.probe SECONDS``): rank 0 prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from typing import Any, Final

from thinwire.lab.run import LabError, run
from thinwire.lab.topology import Topology

_PINGS: Final = 20
_CHUNK: Final = 1 << 20
_WARM_UP: Final = 0.4


def measure(topology: Topology, seconds: float = 2.0, streams: int = 1) -> dict[str, Any]:
    """Round trips in seconds (median and least of 20 one-byte messages there and back) and bits/s of payload each way, both
    at once.

    The first 40 % of ``seconds`` are not counted: TCP has to find the rate. Raises LabError if the ranks fail.
    """
    ended = run(topology, [sys.executable, "-m", "thinwire.lab.probe", str(seconds), str(streams)])
    if ended.exit_code:
        raise LabError(f"the probe failed: {ended.output}")
    return {**json.loads(ended.output[0][-1]), "how": ended.how}


def _main() -> None:
    rank, seconds, streams = int(os.environ["RANK"]), float(sys.argv[1]), int(sys.argv[2])
    if rank > 1:
        return
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    pairs = _accept(place, streams) if rank == 0 else _connect(place, streams)
    times = [_ping(pairs[0], rank) for _ in range(_PINGS)]
    rates = _transfer(pairs, seconds)
    if rank == 0:
        found = {"round_trip": statistics.median(times), "least_round_trip": min(times), "rate": rates["received"]}
        print(json.dumps(found), flush=True)


def _accept(place: tuple[str, int], streams: int) -> list[socket.socket]:
    with socket.create_server(place) as server:
        pairs = [server.accept()[0] for _ in range(streams)]
    return [_prompt(one) for one in pairs]


def _connect(place: tuple[str, int], streams: int) -> list[socket.socket]:
    pairs: list[socket.socket] = []
    end = time.monotonic() + 30
    while len(pairs) < streams:
        try:
            pairs.append(_prompt(socket.create_connection(place, timeout=30)))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    return pairs


def _prompt(one: socket.socket) -> socket.socket:
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.settimeout(60)
    return one


def _ping(one: socket.socket, rank: int) -> float:
    start = time.perf_counter()
    if rank == 0:
        one.sendall(b"x")
        one.recv(1)
    else:
        one.recv(1)
        one.sendall(b"x")
    return time.perf_counter() - start


def _transfer(pairs: list[socket.socket], seconds: float) -> dict[str, float]:
    """Send as fast as it goes for ``seconds``, while the other side does the same."""
    counts = [0] * len(pairs)
    senders = [threading.Thread(target=_send, args=(one, seconds)) for one in pairs]
    receivers = [threading.Thread(target=_receive, args=(one, counts, k)) for k, one in enumerate(pairs)]
    for thread in senders + receivers:
        thread.start()
    time.sleep(_WARM_UP * seconds)
    start, before = time.perf_counter(), sum(counts)
    time.sleep((1 - _WARM_UP) * seconds * 0.9)
    rate = 8 * (sum(counts) - before) / (time.perf_counter() - start)
    for thread in senders + receivers:
        thread.join()
    return {"received": rate}


def _send(one: socket.socket, seconds: float) -> None:
    data, end = bytes(_CHUNK), time.monotonic() + seconds
    while time.monotonic() < end:
        one.sendall(data)
    one.shutdown(socket.SHUT_WR)


def _receive(one: socket.socket, counts: list[int], number: int) -> None:
    buffer = bytearray(_CHUNK)
    while count := one.recv_into(buffer):
        counts[number] += count


if __name__ == "__main__":
    _main()
