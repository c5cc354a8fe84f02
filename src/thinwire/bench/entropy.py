"""What an entropy-coded row has beside speed: the bits of its codes, and how many they carry."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.codec.base import Codec
from thinwire.codec.entropy import Entropy
from thinwire.kernels import reference
from thinwire.kernels.layout import code_bytes
from thinwire.kernels.layout_rans import CHUNK

COLUMNS = {"gsymbols": "Gsymbols/s", "code_entropy": "entropy/code", "code_bits": "bits/code"}


def entropy_columns(codec: Codec, x: npt.NDArray[np.float32], wire: npt.NDArray[np.uint8]) -> dict[str, float]:
    """Order-0 entropy of the codes of ``x`` (1, n), each chunk's by its own frequencies, and the bits that they take in ``wire``.

    Empty for codecs that are not entropy-coded.
    """
    if not isinstance(codec, Entropy):
        return {}
    n = x.shape[1]
    head, bits = codec.section(n)
    plain: Any = codec.inner.encode(x)
    codes = reference.unpack(plain[:, head : head + code_bytes(n, bits)], n, bits)[0]
    total = sum(_entropy(codes[at : at + CHUNK]) for at in range(0, n, CHUNK))
    return {"code_entropy": total / n, "code_bits": 8 * (codec.message_bytes(wire[0]) - head) / n}


def _entropy(codes: npt.NDArray[np.uint32]) -> float:
    """Bits of all of them at the entropy of their own frequencies."""
    counts = np.bincount(codes)
    counts = counts[counts > 0]
    return float((counts * np.log2(codes.size / counts)).sum())
