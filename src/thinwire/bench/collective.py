"""All-reduce over the ranks of the default process group: time, share of the link, error, and wrong elements.

All methods take turns on the same tensors, so that a machine or a network that slows down slows all of them. docs/measuring.md
defines every number.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from thinwire import cost
from thinwire.bench import calibrate
from thinwire.bench.oracle import part, tensor_of
from thinwire.codec.base import Codec
from thinwire.codec.cast import Raw
from thinwire.codec.registry import short
from thinwire.collective import shard
from thinwire.collective.transport import of
from thinwire.errors import ConfigError
from thinwire.reducer import Reducer

COLUMNS: Final = {
    "codec": "codec",
    "megabytes": "MB",
    "bits_per_element": "bits/ element",
    "milliseconds": "ms",
    "busbw_gbps": "busbw Gb/s",
    "wire_over_link": "wire/ link",
    "fraction_of_ideal": "fraction of ideal",
    "predicted_ratio": "predicted/ measured",
    "crossover_gbps": "pays below Gb/s",
    "nmse": "NMSE",
    "wrong": "wrong",
    "replicas_identical": "replicas identical",
}
CHECKED: Final = 1 << 21
"""Elements that are compared with the oracle, at most: the NumPy reference is slow."""
_LONGEST: Final = 60.0
"""Seconds of timed rounds for one size, if three rounds allow it."""
_FASTEST_GBPS: Final = 100.0
F32 = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """One way to take the mean: its name, effective bits, and what runs it in place."""

    name: str
    codec: Codec | None
    run: Callable[[torch.Tensor], None]
    bits: float
    shards: shard.Shards | None = None


def measure(
    codecs: Sequence[Codec],
    sizes: Sequence[int],
    repeat: int = 7,
    streams: int | None = None,
    link_rate: float | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Rows for every size (bytes of fp32) and method: torch's fp32 and bf16 all-reduce, then ours with each codec.

    ``link_rate`` is in bits/s; None leaves ``wire_over_link`` empty. ``progress`` hears what is being done. Every rank gets
    the same rows.
    """
    transport = of(None, streams)
    if transport.size < 2:
        raise ConfigError(f"ranks={transport.size} has no link to measure; allowed: 2 or more")
    progress("measuring the link and the codecs")
    network = calibrate.network(transport)
    machines = {short(codec): calibrate.machine(transport, codec) for codec in codecs if not isinstance(codec, Raw)}
    gathered = {short(codec) for codec in codecs if codec.sums == "all_gather"}
    rows: list[dict[str, Any]] = []
    for size in sizes:
        progress(f"{size / 1e6:g} MB")
        found = _one_size(codecs, size // 4, repeat, link_rate)
        rows += [row | _predicted(row, network, machines.get(row["codec"]), row["codec"] in gathered) for row in found]
    return rows


def _predicted(row: dict[str, Any], network: cost.Network, machine: cost.Machine | None, gathered: bool) -> dict[str, Any]:
    """The cost model's seconds, and the link rate below which the codec wins over fp32 on this machine."""
    elements, bits, ranks = row["size_bytes"] // 4, row["bits_per_element"], row["ranks"]
    if machine is None:
        seconds, crossover = cost.uncompressed(elements, bits, ranks, network), None
    else:
        seconds = cost.compressed(elements, bits, ranks, network, machine, gathered)
        crossover = 8 * cost.crossover(elements, bits, ranks, machine, network, gathered) / 1e9
        crossover = math.inf if crossover > _FASTEST_GBPS else crossover
    return {
        "predicted_seconds": seconds,
        "predicted_ratio": seconds / row["seconds"] if row["seconds"] else None,
        "crossover_gbps": crossover,
        "measured_link_gbps": 8 * network.rate / 1e9,
        "round_trip_ms": 1e3 * network.round_trip,
    }


def _one_size(
    codecs: Sequence[Codec], n: int, repeat: int, link_rate: float | None
) -> list[dict[str, Any]]:  # fmt: skip
    transport = of()
    tensors = [tensor_of(rank, n) for rank in range(transport.size)]
    methods = [_torch_fp32(), _torch_bf16(), *(_ours(codec, n) for codec in codecs if not isinstance(codec, Raw))]
    results, times = _timed(methods, tensors[transport.rank], repeat)
    exact: npt.NDArray[np.float64] = np.asarray(np.mean(tensors, axis=0, dtype=np.float64))
    power = float(np.square(exact).sum())
    baseline = times[methods[0].name]
    rows: list[dict[str, Any]] = []
    for method in methods:
        found, seconds = results[method.name], times[method.name]
        share = 2 * (transport.size - 1) / transport.size
        gathered = method.codec is not None and method.codec.sums == "all_gather"
        moved = 8 * cost.wire_bytes(n, method.bits, transport.size, gathered)
        rows.append(
            {
                "codec": method.name,
                "ranks": transport.size,
                "size_bytes": 4 * n,
                "megabytes": 4 * n / 1e6,
                "bits_per_element": method.bits,
                "seconds": seconds,
                "milliseconds": 1e3 * seconds,
                "busbw_gbps": share * 32 * n / seconds / 1e9,
                "wire_over_link": None if link_rate is None else moved / seconds / link_rate,
                "fraction_of_ideal": (baseline / seconds) / (share * 32 * n / moved),
                "nmse": float(np.square(found - exact).sum()) / power if power else 0.0,
                "wrong": _wrong(method, found, tensors, exact),
                "replicas_identical": len(set(transport.gather_bytes(_digest(found)))) == 1,
                "streams": transport.streams,
            }
        )
    return rows


def _timed(methods: Sequence[Method], mine: F32, repeat: int) -> tuple[dict[str, F32], dict[str, float]]:
    """What each method gave, and its median time: of the slowest rank in each round, one untimed round first."""
    work = torch.from_numpy(mine.copy())
    results: dict[str, F32] = {}
    rounds: dict[str, list[float]] = {method.name: [] for method in methods}
    number, limit = 0, repeat
    while number <= limit:
        for method in methods:
            work.copy_(torch.from_numpy(mine))
            seconds = _slowest(method.run, work)
            if number:
                rounds[method.name].append(seconds)
            else:
                results[method.name] = work.numpy().copy()
        number += 1
        if number == 2:
            once = sum(times[0] for times in rounds.values())
            limit = max(min(repeat, 3), min(repeat, int(_LONGEST / once)))
    return results, {name: float(np.median(times)) for name, times in rounds.items()}


def _slowest(run: Callable[[torch.Tensor], None], work: torch.Tensor) -> float:
    """Seconds from a common start to the end on the last rank."""
    transport = of()
    transport.gather_bytes(b"\0")
    start = time.perf_counter()
    run(work)
    seconds = time.perf_counter() - start
    return max(struct.unpack("<d", one)[0] for one in transport.gather_bytes(struct.pack("<d", seconds)))


def _torch_fp32() -> Method:
    transport = of()

    def run(work: torch.Tensor) -> None:
        transport.all_reduce_sum(work).wait()
        work.div_(transport.size)

    return Method(name="none", codec=None, run=run, bits=32.0)


def _torch_bf16() -> Method:
    transport = of()

    def run(work: torch.Tensor) -> None:
        half = work.to(torch.bfloat16)
        transport.all_reduce_sum(half).wait()
        work.copy_(half)
        work.div_(transport.size)

    return Method(name="torch bf16", codec=None, run=run, bits=16.0)


def _ours(codec: Codec, n: int) -> Method:
    reducer = Reducer(of(), codec)
    bits = codec.expected_bits(n)
    return Method(name=short(codec), codec=codec, run=reducer.all_reduce, bits=bits, shards=reducer.shards(n))


def _wrong(method: Method, found: F32, tensors: list[F32], exact: npt.NDArray[np.float64]) -> int:
    """Elements that are not what they must be: bit by bit against the oracle for ours (at most CHECKED elements, whole
    segments of every shard), within the rounding of as many additions for torch's own."""
    if method.codec is None:
        step = 2.0**-24 if method.bits == 32 else 2.0**-8
        bound = step * len(tensors) * np.sum(np.abs(tensors), axis=0) / len(tensors) + 1e-37
        return int((np.abs(found - exact) > bound).sum())
    assert method.shards is not None
    checked, wrong = 0, 0
    for k in reversed(range(method.shards.segments)):
        for owner in range(method.shards.ranks):
            span = method.shards.span(owner, k)
            wrong += int((found[span] != part(tensors, method.codec, "mean", owner, span)).sum())
            checked += span.stop - span.start
        if checked >= CHECKED:
            break
    return wrong


def _digest(found: F32) -> bytes:
    return hashlib.sha256(found.tobytes()).digest()
