"""The handle says once, on rank 0, that compression loses, and nothing if it gains."""

from __future__ import annotations

import logging
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from heard import heard


def _lines(rank: int, uncompressed_seconds: float) -> list[str]:
    """What is logged in 20 steps on a network where uncompressed gradients take so long."""
    with heard(logging.WARNING) as lines:
        with mock.patch("thinwire.cost.uncompressed", return_value=uncompressed_seconds):
            model = DistributedDataParallel(nn.Linear(300, 400))
            handle = tw.compress(model, "int8")
        for _ in range(20):
            model(torch.randn(4, 300)).square().mean().backward()
        handle.remove()
    return lines


@pytest.mark.parametrize(("seconds", "loses"), [(0.0, True), (60.0, False)])
def test_a_handle_says_when_compression_is_not_paying_off(seconds, loses):
    first, second = real.run(_lines, 2, seconds)
    assert second == []
    assert len(first) == loses
    assert all("int8 is not paying off here" in line for line in first)
