"""Speed of the kernels in GB/s of fp32 input, as a ratio to ``numpy.copyto`` of the same input in the same run.

Copies and kernels take turns, so that a machine that slows down slows both. The wrong codes are counted against the NumPy
reference on a part of the input that ends in the middle of a block.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.progress import track

from thinwire.bench import entropy
from thinwire.bench.hivemind import measure_hivemind
from thinwire.codec.base import Codec
from thinwire.codec.registry import short
from thinwire.kernels import ops
from thinwire.kernels.threads import get_num_threads, set_num_threads

COLUMNS: Final = {
    "codec": "codec",
    "op": "op",
    "bits_per_element": "bits/element",
    "gbps_in": "GB/s in",
    "ratio_to_copy": "ratio to copy",
    "nmse": "NMSE",
    "wrong": "wrong",
}
"""Headings by key; those of bench/entropy.py follow where a row has them."""
_CHECKED: Final = (1 << 20) + 77
F32 = npt.NDArray[np.float32]


def measure(
    codecs: Sequence[Codec], elements: int, threads: int = 1, repeat: int = 15, hivemind_python: str | None = None
) -> list[dict[str, Any]]:
    """Three rows a codec (encode, decode, decode_add), Gaussian input of ``elements``; then the peers that are installed.

    ``hivemind_python`` is a Python that has hivemind; None takes this one if it has. Raises ConfigError if that does not run.
    """
    x = np.random.default_rng(0).standard_normal((1, elements), dtype=np.float32)
    before = get_num_threads()
    set_num_threads(threads)
    try:
        rows = [row for codec in track(codecs, "measuring", transient=True) for row in _codec(codec, x, repeat)]
    finally:
        set_num_threads(before)
    python = hivemind_python or (sys.executable if _installed("hivemind") else None)
    theirs = [] if python is None else measure_hivemind(python, elements, threads, repeat)
    return rows + _piquant(x, threads, repeat) + theirs


def _codec(codec: Codec, x: F32, repeat: int) -> list[dict[str, Any]]:
    n = x.shape[1]
    wire = np.empty((1, codec.wire_bytes(n)), dtype=np.uint8)
    out = np.zeros_like(x)
    works: dict[str, Callable[[], object]] = {
        "encode": lambda: codec.encode(x, out=wire),
        "decode": lambda: codec.decode(wire, n, out=out),
        "decode_add": lambda: codec.decode(wire, n, out=out, add=True),
    }
    copy, seconds = _times(works, x, repeat)
    codec.decode(codec.encode(x, out=wire), n, out=out)
    more = entropy.entropy_columns(codec, x, wire)
    nmse = float(np.square(x - out, dtype=np.float64).sum() / np.square(x, dtype=np.float64).sum())
    wrong = count_wrong(codec, x[:, :_CHECKED])
    return [
        {
            "codec": short(codec),
            "op": op,
            "bits_per_element": codec.measured_bits(wire, n),
            "gbps_in": x.nbytes / seconds[op] / 1e9,
            "ratio_to_copy": copy / seconds[op],
            "copy_gbps": x.nbytes / copy / 1e9,
            "nmse": nmse,
            "wrong": wrong[op],
            "elements": n,
            **({"gsymbols": n / seconds[op] / 1e9, **more} if more else {}),
        }
        for op in works
    ]


def _times(works: dict[str, Callable[[], object]], x: F32, repeat: int) -> tuple[float, dict[str, float]]:
    """Median seconds of a copy of ``x`` and of each work, taken in turns after one untimed round."""
    target = np.empty_like(x)
    rounds: dict[str, list[float]] = {name: [] for name in ("copy", *works)}
    everything = {"copy": lambda: np.copyto(target, x), **works}
    for number in range(repeat + 1):
        for name, work in everything.items():
            start = time.perf_counter()
            work()
            if number:
                rounds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    return medians.pop("copy"), medians


def count_wrong(codec: Codec, x: F32) -> dict[str, int]:
    """Bytes and numbers that differ from the NumPy reference, by operation."""
    n = x.shape[1]
    x = np.ascontiguousarray(x)
    found = _outcome(codec, x, n)
    before = ops.set_backend("reference")
    try:
        expected = _outcome(codec, x, n)
    finally:
        ops.set_backend(before)
    return {op: int((found[op] != expected[op]).sum()) for op in found}


def _outcome(codec: Codec, x: F32, n: int) -> dict[str, Any]:
    wire: Any = codec.encode(x)
    return {
        "encode": wire,
        "decode": codec.decode(wire, n),
        "decode_add": codec.decode(wire, n, out=x.copy(), add=True),
    }


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The headings of a table of ``rows``."""
    return COLUMNS | {key: heading for key, heading in entropy.COLUMNS.items() if any(key in row for row in rows)}


def missing_peers(hivemind_python: str | None = None) -> list[str]:
    """A line for every peer that would have been measured, had it been installed."""
    lines: list[str] = []
    if not _installed("piquant"):
        lines.append("pypiquant is not installed: not measured (pip install pypiquant)")
    if hivemind_python is None and not _installed("hivemind"):
        lines.append(
            "hivemind is not installed: not measured (in an environment of its own, pip install torch 'numpy<2.4' hivemind; "
            "then thinwire bench peers --hivemind-python PYTHON)"
        )
    return lines


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _piquant(x: F32, threads: int, repeat: int) -> list[dict[str, Any]]:
    """pi-quant's per-tensor 8- and 4-bit quantization through its Python API, where it is installed."""
    if not _installed("piquant"):
        return []
    from thinwire.bench.piquant import measure_piquant

    return measure_piquant(x, threads, lambda works: _times(works, x, repeat))
