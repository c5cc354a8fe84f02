"""Connections in one process: order, sizes beyond the kernel's buffers, strangers, and peers that end."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time

import pytest

import ranks as real
import thinwire as tw
from thinwire.collective.shard import even_size, paced
from thinwire.collective.sockets import Connections, Listener, connect, local_address
from thinwire.collective.transport import Transport, of, streams_for
from thinwire.errors import TransportError


def pair(streams: int) -> list[Connections]:
    listeners = [Listener("127.0.0.1") for _ in range(2)]
    both = [Connections(rank, 2) for rank in range(2)]
    places = [one.place for one in listeners]
    threads = [threading.Thread(target=one.open, args=(places, listeners[one.rank], streams)) for one in both]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for one in listeners:
        one.close()
    return both


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_messages_arrive_whole_and_in_order_both_ways_at_once(streams):
    both = pair(streams)
    source = random.Random(streams)
    sizes = [1, 7, 3_000_000, 1, 20_000_000, 100, 65_536, 5_000_000]
    data = [[source.randbytes(size) for size in sizes] for _ in both]
    wrong = []

    def run(rank: int) -> None:
        landed = [bytearray(size) for size in sizes]
        waits = []
        for k in range(len(sizes)):
            waits.append(both[rank].receive(memoryview(landed[k]), 1 - rank))
            waits.append(both[rank].send(memoryview(data[rank][k]), 1 - rank))
        for wait in waits:
            wait()
        wrong.extend(k for k in range(len(sizes)) if landed[k] != data[1 - rank][k])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert wrong == []
    assert all(one.streams == streams for one in both)
    for one in both:
        one.close()


@pytest.mark.parametrize("streams", [1, 3])
def test_a_peer_that_ends_is_an_error_at_once(streams):
    one, other = pair(streams)
    wait = one.receive(memoryview(bytearray(100)), 1)
    threading.Timer(0.2, other.close).start()
    start = time.monotonic()
    with pytest.raises(OSError, match=r"ended or was killed|reset"):
        wait()
    assert time.monotonic() - start < 10
    one.close()


def test_strangers_are_not_let_in():
    listener = Listener("127.0.0.1")
    address, port, _ = listener.place.split()
    with socket.create_connection((address, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")
        forged = f"{address} {port} {bytes(16).hex()}"
        false, true = connect(forged, 3, 0), connect(listener.place, 3, 0)
        found = listener.accept([(3, 0)])
        assert list(found) == [(3, 0)]
        for one in (false, true, *found.values()):
            one.close()
    listener.close()


def test_a_place_that_nobody_listens_at():
    listener = Listener("127.0.0.1")
    listener.close()
    with pytest.raises(TransportError, match=r"rank 2 cannot connect to 127\.0\.0\.1 port"):
        connect(listener.place, 2, 0)


def test_local_addresses():
    assert local_address(None, "lo") == "127.0.0.1"
    assert local_address("127.0.0.1", "") == "127.0.0.1"
    assert local_address("no such host .", "") == "127.0.0.1"


def test_longer_round_trips_get_more_connections():
    counts = [streams_for(trip) for trip in (0.0, 1e-4, 5e-3, 0.02, 0.05, 0.2, 2.0)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 16)


@pytest.mark.parametrize("n", [1, 1000, 400_000, 4_000_000, 64_000_000])
@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_segments_depend_on_the_size_alone_and_fill_the_link(n, ranks):
    size = even_size(n, ranks)
    near, far = (paced(n, ranks, size, 8.0, rate, trip) for rate, trip in ((1e9, 0.0), (1.25e8, 0.1)))
    assert near.segment == far.segment
    assert near.segment % (1 << 14) == 0
    assert near.in_flight >= 3
    assert far.in_flight * far.segment > 2 * 1.25e8 * 0.1


def _streams(rank: int) -> list[str]:
    transport = Transport(streams=3)
    said = [f"{transport.streams} {transport.link.rate > 0} {transport.link.round_trip > 0}"]
    for streams in (of().streams + 1, 0, 65, 1.5):
        try:
            of(None, streams)
        except tw.ConfigError as error:
            said.append(str(error))
    return said


def test_the_number_of_connections_can_be_fixed_once():
    for first, *errors in real.run(_streams, 2):
        assert first == "3 True True"
        assert len(errors) == 4
        assert all("streams=" in error and "allowed" in error for error in errors)


LOST = """
import os, sys, time
import torch, torch.distributed as dist
import thinwire as tw
dist.init_process_group("gloo")
x = torch.ones(1_000_000)
tw.all_reduce(x, "int8")
if dist.get_rank() == 1:
    os._exit(9)
start = time.monotonic()
try:
    for _ in range(3): tw.all_reduce(x, "int8")
except tw.TransportError as error:
    print(time.monotonic() - start < 20, error)
os._exit(0)
"""


def test_a_rank_that_dies_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    both = [
        subprocess.Popen([sys.executable, "-c", LOST], env=shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    out, _ = both[0].communicate(timeout=120)
    both[1].communicate(timeout=60)
    assert out.startswith("True rank 0 lost rank 1 in all_reduce: "), out
    assert "bytes" in out, out
