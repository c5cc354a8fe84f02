"""Shards and segments: every element belongs to exactly one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thinwire.collective import shard


@given(n=st.integers(0, 5000), ranks=st.integers(1, 9), segment=st.sampled_from([1, 100, 128, 1000, 1 << 19]))
def test_spans_cover_every_element_once(n, ranks, segment):
    shards = shard.even(n, ranks, segment)
    covered = [i for rank in range(ranks) for k in range(shards.segments) for i in range(n)[shards.span(rank, k)]]
    assert covered == list(range(n))


@given(n=st.integers(1, 10**9), ranks=st.integers(1, 64))
def test_shards_are_even_up_to_the_alignment(n, ranks):
    shards = shard.even(n, ranks)
    assert shards.size * ranks >= n
    assert shards.size - n / ranks < shard.SHARD_ALIGN + 1
