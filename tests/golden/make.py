"""Writes tests/golden/wire.json: python tests/golden/make.py. Run it only when the wire format changes on purpose."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from samples import VARIANTS
from thinwire.codec import frame

FILE = Path(__file__).parent / "wire.json"


def rows() -> np.ndarray:
    """Two rows of 70 numbers that no random generator is needed for: exact in fp32 on every platform."""
    steps = np.arange(140, dtype=np.int64)
    x = ((steps * 7919) % 257 - 128).astype(np.float32) / np.float32(64)
    x[5], x[40], x[77] = 0.0, np.float32(1000), np.float32(-1e-6)
    x[130] = np.inf
    return x.reshape(2, 70)


def content() -> dict[str, str]:
    """Frames in hexadecimal by codec spec."""
    return {codec.spec(): frame.dumps(rows(), codec).hex() for codec in VARIANTS}


if __name__ == "__main__":
    FILE.write_text(json.dumps(content(), indent=1) + "\n")
    print(f"{FILE}: {len(content())} frames")
