"""Collectives on real ranks against the slow oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

import ranks as real
import thinwire as tw
from thinwire.bench.oracle import all_reduced, roundtrip, summed, tensor_of
from thinwire.collective import shard
from thinwire.collective.transport import Transport, of
from thinwire.reducer import Reducer

CODECS = ["int8", "int4", "int3", "bf16", "fp16", "minmax8", "minmax4", "topk"]
SIZES = [0, 1, 129, 5001, 70_001]


def _all_reduce(rank: int, ranks: int) -> list[str]:
    """Every codec, size and op; what is wrong, in words."""
    wrong = []
    for name in CODECS:
        for n in SIZES:
            for op in ("mean", "sum"):
                tensors = [tensor_of(other, n) for other in range(ranks)]
                mine = torch.from_numpy(tensors[rank].copy())
                assert tw.all_reduce(mine, name, op) is None
                expected = all_reduced(tensors, tw.codec(name), op) if ranks > 1 else tensors[0]
                if not np.array_equal(mine.numpy(), expected):
                    wrong.append(f"{name} {n} {op}: {np.count_nonzero(mine.numpy() != expected)} wrong")
    return wrong


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_reduce_equals_the_oracle_bit_by_bit(ranks):
    assert real.run(_all_reduce, ranks, ranks) == [[]] * ranks


def _segments(rank: int, ranks: int, style: str) -> list[str]:
    """Many segments in flight or hardly any element a rank, both transports, and the error that feedback gets."""
    transport = Transport(style=style)
    return [word for n in (50_000, 130, 1) for word in _one_size(rank, ranks, transport, n)]


def _one_size(rank: int, ranks: int, transport: Transport, n: int) -> list[str]:
    wrong = []
    codec, segment = tw.codec("int4"), 2048
    reducer = Reducer(transport, codec)
    shards = shard.even(n, ranks, segment)
    tensors = [tensor_of(other, n, seed=5) for other in range(ranks)]
    mine, lost = torch.from_numpy(tensors[rank].copy()), torch.full((n,), 9.0)
    reducer._two_shot.all_reduce(mine, shards, "mean", lost)
    if not np.array_equal(mine.numpy(), all_reduced(tensors, codec, "mean", segment)):
        wrong.append("mean")
    for owner in range(ranks):
        for k in range(shards.segments):
            span = shards.span(owner, k)
            if span.stop == span.start:
                continue
            if owner != rank:
                expected = tensors[rank][span] - roundtrip(codec, tensors[rank][span])
            else:
                mean = summed(tensors, codec, rank, span) / np.float32(ranks)
                expected = (mean - roundtrip(codec, mean)) * np.float32(ranks)
            if not np.array_equal(lost.numpy()[span], expected):
                wrong.append(f"error of shard {owner} segment {k}")
    sent = sum(
        codec.wire_bytes(s.stop - s.start) * (1 if owner != rank else ranks - 1)
        for owner in range(ranks)
        for k in range(shards.segments)
        for s in [shards.span(owner, k)]
    )
    stats = reducer.recorder.take()
    if stats.bytes_sent != sent:
        wrong.append(f"{stats.bytes_sent} bytes counted, {sent} expected")
    return wrong


@pytest.mark.parametrize("style", ["sockets", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_segments_errors_and_bytes(ranks, style):
    assert real.run(_segments, ranks, ranks, style) == [[]] * ranks


def _gathered(rank: int, ranks: int, style: str) -> list[str]:
    """Sparse rows in several segments: the sum, what a rank owes, and every byte counted."""
    wrong = []
    codec, segment = tw.codec("topk", k=5, chunk=1024), 4096
    reducer = Reducer(Transport(style=style), codec)
    for n in (50_000, 4096, 130, 1, 0):
        tensors = [tensor_of(other, n, seed=6) for other in range(ranks)]
        mine, lost = torch.from_numpy(tensors[rank].copy()), torch.full((n,), 9.0)
        shards = shard.Shards(n=n, ranks=1, size=n, segment=segment, in_flight=2)
        reducer._gather.all_reduce(mine, shards, "mean", lost)
        if not np.array_equal(mine.numpy(), all_reduced(tensors, codec, "mean", segment)):
            wrong.append(f"mean of {n}")
        pieces = [tensors[rank][at : at + segment] for at in range(0, n, segment)]
        owed = [piece - roundtrip(codec, piece) for piece in pieces]
        if not np.array_equal(lost.numpy(), np.concatenate([np.empty(0, np.float32), *owed])):
            wrong.append(f"error of {n}")
        bytes_sent = (ranks - 1) * sum(codec.wire_bytes(piece.size) for piece in pieces)
        stats = reducer.recorder.take()
        if (stats.bytes_sent, stats.bytes_received) != (bytes_sent, bytes_sent):
            wrong.append(f"{stats.bytes_sent} bytes counted, {bytes_sent} expected")
    return wrong


@pytest.mark.parametrize("style", ["sockets", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_sparse_rows_are_gathered_by_all(ranks, style):
    assert real.run(_gathered, ranks, ranks, style) == [[]] * ranks


def _halves(rank: int, ranks: int) -> list[str]:
    wrong = []
    for name in CODECS:
        for m in (0, 1, 130, 3001):
            codec = tw.codec(name)
            tensors = [tensor_of(other, m * ranks) for other in range(ranks)]
            output = torch.empty(m)
            tw.reduce_scatter(output, torch.from_numpy(tensors[rank]), name)
            expected = summed(tensors, codec, rank, slice(rank * m, (rank + 1) * m)) / np.float32(ranks)
            if not np.array_equal(output.numpy(), expected):
                wrong.append(f"reduce_scatter {name} {m}")
            gathered = torch.empty(m * ranks)
            tw.all_gather(gathered, torch.from_numpy(tensor_of(rank, m)), name)
            parts = [roundtrip(codec, tensor_of(other, m)) for other in range(ranks)] if m else [np.empty(0)]
            if not np.array_equal(gathered.numpy(), np.concatenate(parts)):
                wrong.append(f"all_gather {name} {m}")
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_reduce_scatter_and_all_gather(ranks):
    assert real.run(_halves, ranks, ranks) == [[]] * ranks


def _shapes(rank: int, ranks: int) -> list[str]:
    """Dtypes, strides, scalars, asynchronous work, subgroups, codec none."""
    wrong = []
    base = [torch.from_numpy(tensor_of(other, 600)).view(20, 30) for other in range(ranks)]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for name, view in (("whole", lambda t: t), ("transposed", lambda t: t.T), ("strided", lambda t: t[::2, 1::3])):
            mine = base[rank].to(dtype).clone()
            tensors = [view(t.to(dtype)).float().reshape(-1).clone().numpy() for t in base]
            tw.all_reduce(view(mine), "int8")
            expected = torch.from_numpy(all_reduced(tensors, tw.codec("int8"), "mean")).to(dtype)
            if not torch.equal(view(mine).reshape(-1), expected):
                wrong.append(f"{dtype} {name}")
    scalar = torch.tensor(float(rank + 1))
    tw.all_reduce(scalar, "minmax8", "sum")
    if scalar.item() != sum(range(1, ranks + 1)):
        wrong.append(f"scalar {scalar}")
    several = [torch.full((5000,), float(rank + i)) for i in range(6)]
    works = [tw.all_reduce(t, "minmax8", "mean", async_op=True) for t in several]
    for i, work in enumerate(works):
        if not work.wait() or not work.is_completed() or not torch.allclose(several[i], torch.tensor((ranks - 1) / 2 + i)):
            wrong.append(f"asynchronous {i}")
    exact = torch.from_numpy(tensor_of(rank, 777).copy())
    tw.all_reduce(exact, "none", "sum")
    if not np.allclose(exact.numpy(), sum(tensor_of(other, 777) for other in range(ranks)), atol=1e-5):
        wrong.append("none")
    pair = dist.new_group([0, 2])
    mine = torch.full((10,), float(rank))
    if rank in (0, 2):
        tw.all_reduce(mine, "minmax8", "sum", group=pair)
    elif "does not contain this rank" not in _message(lambda: tw.all_reduce(mine, "minmax8", group=pair)):
        wrong.append("a rank outside of the group")
    if mine[0].item() != (2.0 if rank != 1 else 1.0):
        wrong.append(f"subgroup {mine}")
    return wrong


def _message(call) -> str:
    try:
        call()
    except tw.ThinwireError as error:
        return str(error)
    return ""


def test_shapes_dtypes_and_groups():
    assert real.run(_shapes, 3, 3) == [[]] * 3


def _buffers(rank: int) -> int:
    """Bytes that are kept after tensors of many sizes."""
    reducer = Reducer(of(), tw.codec("int8"))
    for n in range(1, 3000, 7):
        reducer.all_reduce(torch.ones(n))
    return reducer._two_shot.buffers.kept


def test_tensors_of_many_sizes_share_a_few_buffers():
    assert max(real.run(_buffers, 2)) < 6 * 2 * 4096


def _disagree(rank: int) -> list[str]:
    """Each call differs on one rank; the group stays usable after none of them, so each has its own."""
    messages = []
    for i, make in enumerate(
        [
            lambda t, g: tw.all_reduce(t, "int8" if rank else "int4", group=g),
            lambda t, g: tw.all_reduce(t, tw.codec("int8", block=64 if rank else 128), group=g),
            lambda t, g: tw.all_reduce(t, "int8", "sum" if rank else "mean", group=g),
            lambda t, g: tw.all_reduce(t if rank else t.half(), "int8", group=g),
            lambda t, g: tw.all_reduce(t if rank else t[:50], "int8", group=g),
            lambda t, g: tw.all_gather(t.repeat(3), t, group=g) if rank else tw.all_reduce(t, group=g),
        ]
    ):
        group = dist.new_group([0, 1, 2])
        tensor = torch.arange(100.0)
        try:
            make(tensor, group)
            messages.append(f"call {i}: no error")
        except tw.DisagreementError as error:
            messages.append(str(error))
        if not torch.equal(tensor, torch.arange(100.0)):
            messages.append(f"call {i}: the tensor was changed")
    return messages


def test_ranks_that_disagree_fail_before_the_first_byte_with_each_ranks_value():
    for messages in real.run(_disagree, 3):
        assert len(messages) == 6
        words = [("codec", "int4", "int8"), ("block=64", "block=128"), ("op=mean", "op=sum"), ("float16", "float32")]
        words += [("50", "100"), ("all_reduce", "all_gather")]
        for message, expected in zip(messages, words, strict=True):
            assert all(word in message for word in (*expected, "rank 0:", "rank 2:")), message


def _bad_input(rank: int) -> list[str]:
    t = torch.zeros(8)
    calls = [
        lambda: tw.all_reduce(torch.zeros(8, dtype=torch.int32), "int8"),
        lambda: tw.all_reduce(torch.zeros(8, dtype=torch.complex64), "int8"),
        lambda: tw.all_reduce(torch.zeros(8, dtype=torch.float64), "int8"),
        lambda: tw.all_reduce(torch.zeros(8, device="meta"), "int8"),
        lambda: tw.all_reduce(torch.zeros(4, 4).to_sparse(), "int8"),
        lambda: tw.all_reduce([1.0, 2.0], "int8"),
        lambda: tw.all_reduce(t, "int8", op="max"),
        lambda: tw.all_reduce(t, "int88"),
        lambda: tw.reduce_scatter(torch.zeros(3), t, "int8"),
        lambda: tw.all_gather(torch.zeros(9), t, "int8"),
        lambda: tw.all_gather(torch.zeros(16), t.half(), "int8"),
    ]
    return [_message(call) for call in calls]


def test_bad_input_names_the_value_and_what_is_allowed():
    words = [
        "int32",
        "complex64",
        "float64",
        "meta",
        "sparse",
        "list",
        "'max'",
        "'int88'",
        "output 3 of",
        "9 elements",
        "float16",
    ]
    for messages in real.run(_bad_input, 2):
        for message, word in zip(messages, words, strict=True):
            assert word in message, (message, word)
            assert "allowed" in message.lower(), message


def test_without_a_process_group():
    with pytest.raises(tw.ConfigError, match="init_process_group"):
        of()
    with pytest.raises(tw.ConfigError, match="init_process_group"):
        tw.all_reduce(torch.zeros(3), "int8")
