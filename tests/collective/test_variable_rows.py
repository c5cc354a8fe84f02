"""Codecs whose rows differ in size on real ranks: the inner codec's bits in fewer bytes, and sizes that lie."""

from __future__ import annotations

import socket
import struct
import threading

import numpy as np
import pytest
import torch
from torch import nn

import ranks as real
import thinwire as tw
from thinwire.bench.oracle import tensor_of
from thinwire.collective.sockets import HEAD, Message, Patience, _take
from thinwire.collective.transport import Transport
from thinwire.errors import WireError
from thinwire.reducer import Reducer

NAMES = {"entropy(int4)": "int4", "entropy(minmax8)": "minmax8", "entropy(hadamard(int2))": "hadamard(int2)"}


def _same_bits(rank: int, ranks: int, style: str, streams: int | None) -> list[str]:
    """What differs between a codec and its entropy-coded form, in words."""
    wrong = []
    transport = Transport(style=style, streams=streams)
    for name, inner in NAMES.items():
        for n in (1, 700, 300_001):
            results, sent, received = [], [], []
            for made in (name, inner):
                reducer = Reducer(transport, tw.codec(made))
                x, lost = torch.from_numpy(tensor_of(rank, n) ** 3), torch.zeros(n)
                reducer.all_reduce(x, "mean", lost)
                stats = reducer.recorder.take()
                results.append((x.numpy(), lost.numpy()))
                sent.append(stats.bytes_sent)
                received.append(stats.bytes_received)
            if not all(np.array_equal(a, b) for a, b in zip(*results, strict=True)):
                wrong.append(f"{name} {n}: other bits")
            if n > 1000 and style == "sockets" and not (sent[0] < 0.97 * sent[1] and received[0] < 0.97 * received[1]):
                wrong.append(f"{name} {n}: {sent} bytes sent, {received} received")
            if n > 1000 and style == "all_to_all" and not sent[1] <= sent[0] < 1.01 * sent[1]:
                wrong.append(f"{name} {n}: {sent} bytes sent, which should be the capacity")
    return wrong


@pytest.mark.parametrize(
    ("ranks", "style", "streams"),
    [(2, "sockets", 1), (3, "sockets", 1), (4, "sockets", 1), (2, "sockets", 3), (3, "all_to_all", None)],
)
def test_the_bits_of_the_inner_codec_in_fewer_bytes(ranks, style, streams):
    assert real.run(_same_bits, ranks, ranks, style, streams) == [[]] * ranks


def _verbs(rank: int, ranks: int) -> list[str]:
    """The public calls."""
    wrong = []
    found = []
    for name in ("entropy(int4)", "int4"):
        x = torch.from_numpy(tensor_of(rank, 70_001))
        tw.all_reduce(x, name)
        part, whole = torch.zeros(3000), torch.zeros(3000 * ranks)
        tw.reduce_scatter(part, torch.from_numpy(tensor_of(rank, 3000 * ranks)), name)
        tw.all_gather(whole, part, name)
        found.append([x, part, whole])
    if not all(torch.equal(a, b) for a, b in zip(*found, strict=True)):
        wrong.append("all_reduce, reduce_scatter or all_gather")
    weights, sent = [], []
    for name in ("entropy(int4)", "int4"):
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Linear(300, 300))
        handle = tw.compress(model, name)
        for step in range(2):
            model.zero_grad()
            inputs = torch.from_numpy(tensor_of(rank, 300 * 8, seed=step)).view(8, 300)
            (model(inputs) ** 4).sum().backward()
        weights.append(model.module.weight.grad.clone())
        sent.append(handle.stats().bytes_sent)
        handle.remove()
    if not torch.equal(*weights):
        wrong.append("compress: other gradients")
    if not sent[0] < sent[1]:
        wrong.append(f"compress: {sent} bytes")
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_public_calls(ranks):
    assert real.run(_verbs, ranks, ranks) == [[]] * ranks


# --- what a peer may send ---------------------------------------------------------------------------------------------


def _received(head: bytes, capacity: int) -> Message:
    """A message of which the head, and then nothing, arrives."""
    here, there = socket.socketpair()
    codec = tw.codec("entropy(int4)")
    message = Message(rest=memoryview(bytearray(capacity)), measure=codec.stated_bytes)
    with here, there:
        sender = threading.Thread(target=lambda: (there.sendall(head), there.close()))
        sender.start()
        assert _take(here, message, socket.MSG_WAITALL)
        sender.join()
    return message


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (8, "8 bytes"), (17, "17 bytes"), (96, "96 bytes"), (1 << 40, "bytes"), (2**64 - 16, "bytes")],
)
def test_a_message_larger_than_its_buffer_is_refused_by_its_head(size, words):
    message = _received(struct.pack("<QQ", size, 7), 80)
    with pytest.raises(WireError, match=words):
        message.wait(Patience(1.0))


def test_the_rest_of_a_message_is_as_long_as_its_head_says():
    body = bytes(range(48))
    message = _received(struct.pack("<QQ", HEAD + 48, 7) + body, 160)
    message.wait(Patience(1.0))
    assert not message.rest


def _liar(rank: int) -> str:
    """Rank 1 sends a size that its message cannot have."""
    transport = Transport(style="sockets", streams=1)
    send = torch.zeros(64, dtype=torch.uint8)
    send[:8] = torch.frombuffer(bytearray(struct.pack("<Q", 1 << 30 if rank else 64)), dtype=torch.uint8)
    receive = torch.zeros(64, dtype=torch.uint8)
    try:
        transport.exchange(send, 1 - rank, receive, 1 - rank, tw.codec("entropy(int4)").stated_bytes).wait()
    except tw.TransportError as error:
        return str(error)
    return "fine"


def test_a_lie_names_the_peer_and_the_bytes():
    liar, other = real.run(_liar, 2)[::-1]
    assert liar == "fine"
    assert "rank 1" in other
    assert str(1 << 30) in other
