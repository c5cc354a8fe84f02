"""The bytes on the wire do not change unless somebody runs tests/golden/make.py on purpose."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from samples import IDS, VARIANTS
from thinwire.codec import frame
from thinwire.kernels import ops

_spec = importlib.util.spec_from_file_location("golden_make", Path(__file__).parent / "make.py")
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)
GOLDEN = json.loads(make.FILE.read_text())


def test_every_codec_has_golden_bytes():
    assert sorted(GOLDEN) == sorted(IDS)


@pytest.mark.parametrize("backend", ops.BACKENDS)
@pytest.mark.parametrize("codec", VARIANTS, ids=IDS)
def test_bytes(codec, backend):
    before = ops.set_backend(backend)
    try:
        assert frame.dumps(make.rows(), codec).hex() == GOLDEN[codec.spec()]
        made, n, wire = frame.unpack(bytes.fromhex(GOLDEN[codec.spec()]))
        assert (made, n) == (codec, 70)
        assert np.isfinite(codec.decode(wire, n)[0]).all()
    finally:
        ops.set_backend(before)


def test_int8_by_hand():
    """The wire of two blocks, computed from the specification alone."""
    x = np.zeros((1, 10), dtype=np.float32)
    x[0, :3] = [1.0, -0.5, 0.25]
    x[0, 8:] = [-2.0, 1.0]
    wire = bytes(frame.unpack(frame.dumps(x, make.VARIANTS[IDS.index("int8;block=8;scale=bf16")])).wire[0])
    # Scales 1/-128 and -2/-128 in bf16, little endian; codes x/s + 128; padding to 16 bytes.
    assert wire[:4] == bytes([0x00, 0xBC, 0x80, 0x3C])
    assert wire[4:14] == bytes([0, 192, 96, 128, 128, 128, 128, 128, 0, 192])
    assert wire[14:] == bytes(2)
