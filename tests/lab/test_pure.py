"""Units, topology, shapes and packets: arithmetic, so tested against arithmetic done here."""

from __future__ import annotations

import itertools
import random
import struct

import pytest

from thinwire import lab
from thinwire.errors import ConfigError
from thinwire.lab import packet, shape, units
from thinwire.lab.topology import from_dict


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1gbit", 1e9), ("100mbit", 1e8), ("2.5gbit", 2.5e9), ("500 kbit", 5e5), ("1Gbps", 1e9), ("100Mb/s", 1e8), ("25gbit", 25e9)],
)
def test_rates(text, rate):
    assert units.parse_rate(text) == rate
    assert units.parse_rate(units.format_rate(rate)) == rate


@pytest.mark.parametrize(("text", "seconds"), [("20ms", 0.02), ("250us", 250e-6), ("1.5s", 1.5), ("0", 0.0), (".5ms", 5e-4)])
def test_times(text, seconds):
    assert units.parse_time(text) == pytest.approx(seconds)
    assert units.parse_time(units.format_time(seconds)) == pytest.approx(seconds)


def test_losses():
    assert units.parse_loss("0.1%") == pytest.approx(0.001)
    assert units.parse_loss("0.02") == 0.02


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_rate, "1"), (units.parse_rate, "1foo"), (units.parse_rate, "-1gbit"), (units.parse_rate, "fast"),
        (units.parse_rate, "1bit"), (units.parse_rate, "40gbit"), (units.parse_rate, ""), (units.parse_rate, "nan"),
        (units.parse_time, "5"), (units.parse_time, "5min"), (units.parse_time, "-1ms"), (units.parse_time, "11s"),
        (units.parse_loss, "0.1ms"), (units.parse_loss, "60%"), (units.parse_loss, "x"),
    ],
)  # fmt: skip
def test_units_that_are_none(parse, text):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert "allowed" in str(caught.value)


def test_ranks_are_placed_in_order_and_told_who_they_are():
    made = lab.Topology(ranks=6, hosts=3, link=lab.link("1gbit"))
    assert [made.host_of(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    said = made.environment(3)
    expected = {
        "RANK": "3", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "MASTER_ADDR": made.address(0), "GLOO_SOCKET_IFNAME": "eth0",
    }  # fmt: skip
    assert expected.items() <= said.items()
    assert len({made.address(host) for host in range(3)}) == 3


@pytest.mark.parametrize(
    ("arguments", "value"),
    [({"ranks": 0}, "0"), ({"ranks": 3, "hosts": 2}, "3"), ({"ranks": 2, "hosts": 4}, "4"), ({"ranks": 200, "hosts": 100}, "100"),
     ({"ranks": 2, "mtu": 70000}, "70000"), ({"ranks": 2, "hosts": 0}, "0")],
)  # fmt: skip
def test_topologies_that_cannot_be(arguments, value):
    with pytest.raises(ConfigError, match=value) as caught:
        lab.Topology(link=lab.link("1gbit"), **arguments)
    assert "allowed" in str(caught.value)


def test_jitter_is_at_most_the_delay():
    with pytest.raises(ConfigError, match="jitter=3ms"):
        lab.link("1gbit", "2ms", "3ms")


def test_schedule():
    base = lab.link("1gbit", "10ms", "2ms", "1%")
    one, two, three = lab.schedule("0s:1gbit/1ms, 30s:100mbit/250ms,1000s:2gbit", base)
    assert (one.at, one.link.rate, one.link.delay, one.link.jitter, one.link.loss) == (0, 1e9, 0.001, 0.001, 0.01)
    assert (two.at, two.link.rate, two.link.delay, two.link.jitter) == (30, 1e8, 0.25, 0.002)
    assert (three.at, three.link.rate, three.link.delay) == (1000, 2e9, 0.01)
    made = lab.Topology(ranks=2, link=lab.link("1gbit"), changes=(one, two, three))
    assert made.shaped_in_time
    assert made.first_link == one.link
    assert from_dict(made.as_dict()) == made


@pytest.mark.parametrize("text", ["", "1gbit", "5s:1gbit,5s:2gbit", "0s:1gbit/5", "0s:fast", "x:1gbit"])
def test_schedules_that_are_none(text):
    with pytest.raises(ConfigError, match="schedule"):
        lab.schedule(text, lab.link("1gbit"))


@pytest.mark.parametrize("rate", ["100kbit", "10mbit", "1gbit", "25gbit"])
@pytest.mark.parametrize("burst", [5e-4, 2e-3])
def test_buckets_pass_their_largest_packet_and_hold_little(rate, burst):
    for make in (shape.up, shape.down):
        made = make(lab.link(rate), 9000, burst)
        assert made.rate == units.parse_rate(rate) / 8
        segments = -(-made.gso // 9000)
        assert made.gso + 66 * segments < made.burst <= max(1.02 * 65536 + 128, burst * made.rate)
        assert made.burst <= max(9400, 1.03 * burst * made.rate)
        assert made.limit > made.burst or rate == "25gbit"


def test_a_port_delays_by_rate_and_delay():
    link = lab.link("8mbit", "10ms")
    port = shape.Port(link, seed=0)
    assert [port.arrival(5.0, 1000) for _ in range(3)] == pytest.approx([5.010, 5.011, 5.012])
    assert port.arrival(9.0, 1000) == pytest.approx(9.010)


def test_a_port_with_a_full_queue_drops():
    port = shape.Port(lab.link("8mbit"), seed=0)
    taken = list(itertools.takewhile(lambda at: at is not None, (port.arrival(0.0, 1500) for _ in range(10_000))))
    assert (1 << 20) <= 1500 * len(taken) <= (1 << 20) + 65536 + 1500


def test_jitter_spreads_and_keeps_the_order():
    port = shape.Port(lab.link("1gbit", "20ms", "5ms"), seed=3)
    delays = [port.arrival(float(k), 100) - k for k in range(4000)]
    assert 0.015 <= min(delays) < 0.0152
    assert 0.0248 < max(delays) <= 0.025
    assert sum(delays) / len(delays) == pytest.approx(0.020, abs=0.0003)
    close = [port.arrival(5000.0, 100) for _ in range(500)]
    assert close == sorted(close)


def test_losses_are_as_many_as_asked():
    port = shape.Port(lab.link("1gbit", loss="2%"), seed=1)
    lost = sum(len(port.lost(40)) for _ in range(5000))
    assert abs(lost - 4000) < 5 * (200_000 * 0.02 * 0.98) ** 0.5
    assert shape.Port(lab.link("1gbit"), seed=1).lost(40) == []


def tcp_packet(payload: bytes, size: int, sequence: int, flags: int) -> bytes:
    """Return a large TCP/IPv4 packet with 12 bytes of TCP options, as a TUN device gives it."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 52 + len(payload), 77, 0x4000, 64, 6, 0, b"\x0a\x6f\0\1", b"\x0a\x6f\0\2")
    tcp = struct.pack(">HHIIBBHHH", 1, 2, sequence, 9, 8 << 4, flags, 100, 0, 0) + bytes(12)
    return struct.pack("<BBHHHH", 1, 1, 52, size, 20, 16) + ip + tcp + payload


def checksum_fits(data: bytes) -> bool:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    return (total & 0xFFFF) + (total >> 16) in (0xFFFF, 0x1FFFE)


@pytest.mark.parametrize("lost", [[0], [6], [3], [0, 1], [2, 4], [0, 6], [0, 1, 2, 3, 4, 5, 6], [1, 3, 5]])
def test_segments_get_lost_and_the_rest_stays_whole(lost):
    payload = random.Random(5).randbytes(6 * 100 + 37)
    first = 0xFFFFFFFF - 150
    whole = tcp_packet(payload, 100, first, flags=0x80 | 0x10 | 0x09)
    assert packet.segments(whole) == 7
    got = {}
    for part in packet.without(whole, lost):
        kind, headers, size = struct.unpack_from("<BHH", part, 1)
        body = part[62:]
        assert (kind, size) in ((1, 100), (0, 0))
        assert kind == 1 or (len(body) <= 100 and headers == 0) or headers == 52
        assert struct.unpack_from(">H", part, 12)[0] == len(part) - 10
        assert checksum_fits(part[10:30])
        tcp = part[30:62]
        assert struct.unpack_from(">H", tcp, 16)[0] == pseudo_sum(part[22:30], len(part) - 30)
        start = (struct.unpack_from(">I", tcp, 4)[0] - first) % 2**32
        assert start % 100 == 0
        for offset in range(0, len(body), 100):
            got[(start + offset) // 100] = body[offset : offset + 100]
        assert bool(tcp[13] & 0x80) == (start == 0)
        assert bool(tcp[13] & 0x09) == (start + len(body) == len(payload))
    assert got == {k: payload[100 * k : 100 * k + 100] for k in range(7) if k not in lost}


def pseudo_sum(addresses: bytes, length: int) -> int:
    total = sum(struct.unpack(">4H", addresses)) + 6 + length
    return (total & 0xFFFF) + (total >> 16)


def test_size_on_the_wire_counts_every_header():
    assert packet.wire_size(tcp_packet(bytes(637), 100, 0, 0x10)) == 637 + 7 * (52 + 14)


def test_unknown_segmentation_is_an_error():
    odd = bytearray(tcp_packet(bytes(200), 100, 0, 0x10))
    odd[1] = 4
    with pytest.raises(ValueError, match="type 4"):
        packet.without(bytes(odd), [0])
