"""Constants of the entropy coder, its size in the worst case, and the lane shuffles of the fast kernels."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from thinwire.kernels import layout

CHUNK: Final = 1 << 16
"""Codes that share a table of frequencies; a multiple of layout.UNIT, so that packed chunks lie end to end."""

LANES: Final = 32
"""Coder states that take turns: code i of a chunk belongs to lane i mod LANES."""

SCALE_BITS: Final = 12
TOTAL: Final = 1 << SCALE_BITS
"""Sum of a chunk's frequencies."""

WORD_BITS: Final = 16
LEAST: Final = 1 << WORD_BITS
"""A state is in [LEAST, 2**32); an encoder starts from LEAST, so a decoder must end there."""

RAW, CONSTANT, CODED = 0, 1, 2
"""How a chunk is stored: packed codes as they are, one code for all, or a table, states and words."""

MOST_BITS: Final = 8
TABLE_BYTES: Final = 512
"""The longest table: at most four digits of four bits for each of 256 codes."""

GOOD, BAD_MODE, BAD_TABLE, BAD_SIZE, BAD_END = 0, 1, 2, 3, 4
FAULTS: Final = {
    BAD_MODE: "its mode is not known or its code out of range",
    BAD_TABLE: "its frequencies do not add up",
    BAD_SIZE: "its size does not fit its mode",
    BAD_END: "its words do not end where its codes do",
}


def chunks(n: int) -> int:
    return -(-n // CHUNK)


def slot_bytes(bits: int) -> int:
    """The most that a full chunk takes."""
    return 1 + layout.code_bytes(CHUNK, bits)


def stream_capacity(n: int, bits: int) -> int:
    """The most bytes that ``n`` codes take: a size and a mode for each chunk, and the packed codes."""
    return 5 * chunks(n) + layout.code_bytes(n, bits)


def _shuffles() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    expand, compress = np.zeros((2, 256, 8), dtype=np.uint8)
    for mask in range(256):
        chosen = [lane for lane in range(8) if mask >> lane & 1]
        expand[mask, chosen] = range(len(chosen))
        compress[mask, 8 - len(chosen) :] = chosen
    return expand.ravel(), compress.ravel()


EXPAND, COMPRESS = _shuffles()
"""Eight lane numbers for each mask of eight lanes: the next words to the lanes of the mask, and those lanes to the end."""
