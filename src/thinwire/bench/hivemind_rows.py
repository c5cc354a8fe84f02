"""hivemind's compression, measured in an environment of its own: it needs an older NumPy than thinwire's users may have.

Run by its path, with whatever Python has hivemind: ELEMENTS THREADS REPEAT. Prints rows like those of ``bench kernel`` as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch


def main() -> None:
    elements, threads, repeat = (int(one) for one in sys.argv[1:4])
    from hivemind.compression import (  # pyright: ignore[reportMissingImports]  an optional peer
        CompressionInfo,
        Float16Compression,
        Quantile8BitQuantization,
        Uniform8BitQuantization,
    )

    torch.set_num_threads(threads)
    x = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    info: Any = CompressionInfo.from_tensor(x)
    found: list[dict[str, Any]] = []
    for made in (Float16Compression(), Uniform8BitQuantization(), Quantile8BitQuantization()):
        found += rows_of(made, x, info, repeat)
    print(json.dumps(found))


def rows_of(codec: Any, x: torch.Tensor, info: Any, repeat: int) -> list[dict[str, Any]]:
    message = codec.compress(x, info)
    out, total = torch.empty_like(x), torch.zeros_like(x)
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: out.copy_(x),
        "encode": lambda: codec.compress(x, info),
        "decode": lambda: codec.extract(message),
        "decode_add": lambda: total.add_(codec.extract(message)),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(repeat + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if number:
                times[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(one) for name, one in times.items()}
    nmse = float((x - codec.extract(message)).double().square().sum() / x.double().square().sum())
    shared = {
        "codec": f"hivemind {type(codec).__name__}",
        "bits_per_element": 8 * len(message.buffer) / x.numel(),
        "nmse": nmse,
        "wrong": None,
    }
    size = 4 * x.numel()
    return [
        {**shared, "op": op, "gbps_in": size / seconds[op] / 1e9, "ratio_to_copy": seconds["copy"] / seconds[op]}
        for op in ("encode", "decode", "decode_add")
    ]


if __name__ == "__main__":
    main()
