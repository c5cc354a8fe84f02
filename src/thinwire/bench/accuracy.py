"""What codecs lose of numbers of known distributions, by the effective bits that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.progress import track

from thinwire.codec.base import Codec
from thinwire.codec.registry import short

F32 = npt.NDArray[np.float32]
COLUMNS: Final = {
    "spec": "codec",
    "bits_per_element": "bits/element",
    "nmse": "NMSE, Gaussian",
    "nmse_laplace": "Laplace",
    "nmse_student_t3": "Student-t(3)",
}
_ROW: Final = 1 << 19

DRAWS: Final[Mapping[str, Callable[[np.random.Generator, int], Any]]] = {
    "nmse": lambda generator, n: generator.standard_normal(n, dtype=np.float32),
    "nmse_laplace": lambda generator, n: generator.laplace(size=n),
    "nmse_student_t3": lambda generator, n: generator.standard_t(3, n),
}
"""Independent numbers of unit scale; NMSE does not depend on the scale."""


def measure(codecs: Sequence[Codec], elements: int, seed: int = 0) -> list[dict[str, Any]]:
    """A row a codec: NMSE of each distribution over ``elements`` numbers in rows of 2^19, and bits an element.

    Rows of variable size count the bytes that they really had for the Gaussian numbers.
    """
    inputs = {name: draw(np.random.default_rng([seed, k]), elements) for k, (name, draw) in enumerate(DRAWS.items())}
    rows = [_codec(codec, inputs) for codec in track(codecs, "measuring", transient=True)]
    return sorted(rows, key=lambda row: -row["bits_per_element"])


def _codec(codec: Codec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"codec": short(codec), "spec": codec.spec()}
    for name, x in inputs.items():
        found[name], bits = _lost(codec, np.asarray(x, dtype=np.float32))
        found.setdefault("bits_per_element", bits)
    return found


def _lost(codec: Codec, x: F32) -> tuple[float, float]:
    """NMSE in fp64, and the effective bits that were used."""
    squares, lost, used = 0.0, 0.0, 0
    for start in range(0, x.size, _ROW):
        row = x[None, start : start + _ROW]
        wire = np.asarray(codec.encode(row, seed=start))
        back = np.asarray(codec.decode(wire, row.shape[1]), dtype=np.float64)
        squares += float(np.square(row, dtype=np.float64).sum())
        lost += float(np.square(row - back).sum())
        used += codec.message_bytes(wire[0])
    return lost / squares, 8 * used / x.size
