"""pi-quant (PyPI: pypiquant) beside our codecs: per-tensor affine codes, output buffers reused as in our own rows."""
# An optional peer.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Timer = Callable[[dict[str, Callable[[], object]]], tuple[float, dict[str, float]]]


def measure_piquant(x: npt.NDArray[np.float32], threads: int, times: Timer) -> list[dict[str, Any]]:
    """Rows like ours for 8 and 4 bits; encode includes finding scale and zero point, as ours does."""
    import piquant

    context = piquant.Context(threads)
    kinds = {8: piquant.DataType.UINT8, 4: piquant.DataType.UINT4}
    return [row for bits, kind in kinds.items() for row in _rows(piquant, context, bits, kind, x, times)]


def _rows(
    piquant: Any, context: Any, bits: int, kind: Any, x: npt.NDArray[np.float32], times: Timer
) -> list[dict[str, Any]]:  # fmt: skip
    n = x.size
    codes, out = np.empty(-(-n * bits // 8), dtype=np.uint8), np.zeros_like(x)
    fp32, nearest = piquant.DataType.F32, piquant.RoundMode.NEAREST
    found: list[Any] = [1.0, 0]

    def encode() -> None:
        found[:] = context.compute_quant_params_ptr_float32(x.ctypes.data, kind, n)
        context.quantize_ptr(x.ctypes.data, fp32, codes.ctypes.data, kind, n, found[0], found[1], nearest)

    def decode(operation: Any) -> None:
        context.dequantize_ptr(codes.ctypes.data, kind, out.ctypes.data, fp32, n, found[0], found[1], operation)

    add, replace = piquant.ReduceOp.ADD, piquant.ReduceOp.SET
    works: dict[str, Callable[[], object]] = {
        "encode": encode,
        "decode": lambda: decode(replace),
        "decode_add": lambda: decode(add),
    }
    copy, seconds = times(works)
    decode(replace)
    nmse = float(np.square(x - out, dtype=np.float64).sum() / np.square(x, dtype=np.float64).sum())
    shared = {"codec": f"pypiquant uint{bits}", "bits_per_element": float(bits), "nmse": nmse, "wrong": None}
    speeds = [(op, x.nbytes / seconds[op] / 1e9, copy / seconds[op]) for op in works]
    return [{**shared, "op": op, "gbps_in": gbps, "ratio_to_copy": ratio} for op, gbps, ratio in speeds]
