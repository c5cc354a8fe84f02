"""The cost model against arithmetic done by hand, and the verdict on compression that rests on it."""

from __future__ import annotations

import math

import pytest

from thinwire import cost
from thinwire.collective.base import Link
from thinwire.training.payoff import SKIPPED, WATCHED, Payoff

GIGABIT = cost.Network(rate=1.25e8, round_trip=0.0, wake=0.0)
FAST = cost.Machine(encode=1e15, decode=1e15)


def test_bytes_on_the_wire():
    assert cost.wire_bytes(4_000_000, 8, 2) == 4e6
    assert cost.wire_bytes(4_000_000, 32, 4) == 24e6
    assert cost.wire_bytes(4_000_000, 32, 1) == 0


def test_gathered_rows_go_to_every_rank_once():
    assert cost.wire_bytes(4_000_000, 8, 2, gathered=True) == cost.wire_bytes(4_000_000, 8, 2) == 4e6
    assert cost.wire_bytes(4_000_000, 1, 9, gathered=True) == 4e6
    far = cost.Network(rate=1e12, round_trip=0.1, wake=0.001)
    assert cost.compressed(1000, 1, 8, far, FAST, gathered=True) == pytest.approx(0.051, rel=1e-3)
    machine = cost.Machine(encode=4e9, decode=8e9)
    work = 4e6 * 4 / 4e9 + 9 * 4e6 * 4 / 8e9
    there = cost.Network(rate=1e12, wake=0.0)
    assert cost.compressed(4_000_000, 1, 9, there, machine, gathered=True) == pytest.approx(1.25 * work)
    assert cost.crossover(4_000_000, 1, 2, machine, there, gathered=True) < cost.crossover(
        4_000_000, 1, 2, FAST, there, gathered=True
    )


def test_a_slow_link_costs_its_bytes():
    assert cost.uncompressed(4_000_000, 32, 2, GIGABIT) == pytest.approx(0.128)
    assert cost.compressed(4_000_000, 8, 4, GIGABIT, FAST) == pytest.approx(0.048)


def test_latency_counts_twice_for_two_shots_and_with_the_ranks_for_a_ring():
    far = cost.Network(rate=1e12, round_trip=0.1, wake=0.001)
    assert cost.uncompressed(1000, 32, 8, far) == pytest.approx(14 * 0.051, rel=1e-3)
    assert cost.compressed(1000, 8, 8, far, FAST) == pytest.approx(2 * 0.051, rel=1e-3)


def test_a_slow_processor_is_what_counts_on_a_fast_link():
    machine = cost.Machine(encode=4e9, decode=8e9)
    link = cost.Network(rate=1e12, wake=0.0, handling=1e-9)
    # 4 bytes an element: encode each once, decode 1.5 times; 1 byte moved; a quarter of the codec's work is not hidden.
    work = 4e6 * 4 / 4e9 + 1.5 * 4e6 * 4 / 8e9
    assert cost.compressed(4_000_000, 8, 2, link, machine) == pytest.approx(1.25 * work + 4e6 * 1e-9)


def test_gloo_is_no_faster_than_its_one_connection():
    slow = cost.Network(rate=1.25e8, wake=0.0, gloo_rate=1.25e7)
    assert cost.uncompressed(4_000_000, 32, 2, slow) == pytest.approx(1.28)
    assert cost.compressed(4_000_000, 8, 2, slow, FAST) == pytest.approx(0.032)


def test_one_rank_costs_nothing():
    assert cost.uncompressed(1000, 32, 1, GIGABIT) == cost.compressed(1000, 8, 1, GIGABIT, FAST) == 0


def test_crossover_is_where_both_take_the_same_time():
    machine = cost.Machine(encode=4e9, decode=8e9)
    rate = cost.crossover(4_000_000, 8, 2, machine, GIGABIT)
    there = cost.Network(rate=rate, wake=0.0)
    assert cost.compressed(4_000_000, 8, 2, there, machine) == pytest.approx(cost.uncompressed(4_000_000, 32, 2, there), rel=1e-6)
    assert 1e8 < rate < 1e10
    assert cost.crossover(4_000_000, 8, 2, FAST, GIGABIT) == math.inf


def watch(payoff: Payoff, exposed: float, busy: float) -> list[str]:
    seen = [report for _ in range(40) if (report := payoff.step(exposed, busy)) is not None]
    return [line for report in seen if (line := payoff.verdict([report])) is not None]


def test_a_loss_is_said_once_with_both_times():
    payoff = Payoff("int8", 1_000_000, 2, Link(rate=1e9, round_trip=0.0))
    (line,) = watch(payoff, exposed=0.012, busy=0.012)
    assert line.startswith("int8 is not paying off here")
    assert "adds 12.0 ms" in line
    assert "about 4.2 ms" in line


def test_a_gain_is_not_mentioned():
    payoff = Payoff("int8", 1_000_000, 2, Link(rate=1e7, round_trip=0.0))
    assert watch(payoff, exposed=0.1, busy=0.1) == []


def test_what_backward_hides_it_would_hide_without_compression_too():
    link = Link(rate=1e9, round_trip=0.0)
    assert watch(Payoff("int8", 1_000_000, 2, link), exposed=0.003, busy=0.003) == []
    assert len(watch(Payoff("int8", 1_000_000, 2, link), exposed=0.003, busy=0.009)) == 1


def test_the_first_steps_do_not_count():
    payoff = Payoff("int8", 1_000_000, 2, Link(rate=1e9, round_trip=0.0))
    assert [payoff.step(9.0, 9.0) for _ in range(SKIPPED)] == [None] * SKIPPED
    assert watch(payoff, exposed=1e-4, busy=1e-4) == []


def test_waiting_for_a_slower_rank_is_no_loss():
    fast, slow = (Payoff("int8", 1_000_000, 2, Link(rate=1e9, round_trip=0.0)) for _ in range(2))
    steps = [(fast.step(0.05 - 0.04 * (k % 2), 0.05), slow.step(0.01 + 0.04 * (k % 2), 0.05)) for k in range(SKIPPED + WATCHED)]
    reports = [report for report in steps[-1] if report is not None]
    assert "adds 10.0 ms" in str(fast.verdict(reports))
    idle = Payoff("int8", 1_000_000, 2, Link(rate=1e9, round_trip=0.0))
    (quick,) = [report for _ in range(20) if (report := idle.step(0.001, 0.001)) is not None]
    assert fast.verdict([reports[0], quick]) is None
