"""Residuals and counters, without any rank."""

from __future__ import annotations

import threading

import pytest
import torch

import thinwire as tw
from thinwire.feedback import Residuals
from thinwire.metrics import Recorder


def filled(sizes: dict[str, int]) -> Residuals:
    residuals = Residuals(sizes)
    names = tuple(sizes)
    residuals.following(names).copy_(torch.arange(sum(sizes.values()), dtype=torch.float32))
    assert residuals.commit([names])
    return residuals


def test_residuals_follow_their_parameter_through_another_layout():
    residuals = filled({"a": 2, "b": 3, "c": 1})
    assert residuals.current(("c", "a")).tolist() == [5, 0, 1]
    assert residuals.current(("b",)).tolist() == [2, 3, 4]
    assert {n: v.tolist() for n, v in residuals.state_dict().items()} == {"a": [0, 1], "b": [2, 3, 4], "c": [5]}
    residuals.following(("c", "a")).fill_(7)
    residuals.commit([("c", "a")])
    assert residuals.current(("a", "b")).tolist() == [7, 7, 2, 3, 4]


def test_a_nonfinite_step_is_dropped_and_the_next_one_counts():
    residuals = filled({"a": 2})
    residuals.following(("a",)).fill_(float("nan"))
    residuals.seen(torch.tensor([1.0, float("inf")]))
    assert not residuals.commit([("a",)])
    assert residuals.current(("a",)).tolist() == [0, 1]
    residuals.following(("a",)).fill_(4)
    residuals.seen(torch.ones(2))
    assert residuals.commit([("a",)])
    assert residuals.current(("a",)).tolist() == [4, 4]


def test_rescale_and_state():
    residuals = filled({"a": 2, "b": 1})
    residuals.rescale(0.5)
    other = Residuals({"a": 2, "b": 1})
    other.load_state_dict(residuals.state_dict())
    assert other.current(("b", "a")).tolist() == [1, 0, 0.5]
    for bad in (
        {"a": torch.zeros(2)},
        {"a": torch.zeros(2), "b": torch.zeros(2)},
        {"a": torch.zeros(2), "c": torch.zeros(1)},
    ):
        with pytest.raises(tw.ConfigError, match="do not fit"):
            other.load_state_dict(bad)


def test_recorder_counts_from_many_threads_and_starts_again():
    recorder = Recorder()
    threads = [threading.Thread(target=lambda: [recorder.add(bytes_sent=1, steps=1) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with recorder.timed("encode_seconds"):
        pass
    stats = recorder.take()
    assert stats.bytes_sent == stats.steps == 8000
    assert stats.encode_seconds > 0
    assert recorder.take() == tw.Stats()
    assert stats.as_dict()["steps"] == 8000
