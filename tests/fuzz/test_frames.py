"""Whatever bytes arrive, a frame gives the rows that its header declares or a WireError: nothing else, and no memory for lies."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutations import HEADER, VARIANTS, WORDS, Mutator, build, payload_at, seal, valid_frames
from samples import EXAMPLES, IDS, THOROUGH
from thinwire.codec import REGISTRY, frame, from_spec
from thinwire.errors import ConfigError, WireError
from thinwire.kernels import ops

MESSAGES = int(os.environ.get("THINWIRE_FUZZ_MESSAGES", "150000" if THOROUGH else "50000"))
RUNS = 50_000 if THOROUGH else 20_000
FRAMES = valid_frames()
HUGE = "9" * 5000
# Every reason to refuse a frame: a run that does not meet each of them has not looked behind the first.
REASONS = {
    "short": r"a header alone has",
    "magic": r"frame starts with",
    "version": r"frame has version",
    "padding": r"frame header is damaged",
    "codec": r"frame names codec",
    "payload": r"payload bytes;",
    "elements": r"elements a row",
    "length": r"its header says",
    "checksum": r"frame checksum is",
    "rows": r"frame row|entropy-coded row",
}


def reason(error: WireError) -> str:
    """Which check refused the frame."""
    (found,) = (name for name, pattern in REASONS.items() if re.search(pattern, str(error)))
    return found


def outcome(data: bytes) -> str:
    """ "accepted", or why not; anything but rows of the declared shape or a WireError fails, with the bytes to repeat it."""
    try:
        decoded = frame.loads(data)
    except WireError as error:
        return reason(error)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} ({error}) for the frame {data.hex()}") from error
    _, _, _, _, rows, _, n, _ = HEADER.unpack_from(data)
    assert decoded.shape == (rows, n), data.hex()
    assert decoded.dtype == np.float32
    return "accepted"


@pytest.fixture(params=ops.BACKENDS)
def backend(request):
    before = ops.set_backend(request.param)
    yield request.param
    ops.set_backend(before)


@given(st.binary(max_size=400))
def test_any_bytes(data):
    assert outcome(data) != "accepted"


@given(st.binary(max_size=255), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=400))
def test_any_header_with_a_right_checksum(spec, rows, n, payload):
    assert outcome(bytes(build(spec, rows, n, payload))) != "accepted"


@pytest.mark.parametrize("codec", VARIANTS, ids=IDS)
@settings(max_examples=EXAMPLES * 3 // 2)
@given(seed=st.integers(0, 2**32), patch=st.binary(max_size=24), at=st.integers(0, 400))
def test_mutated_frames(codec, seed, patch, at):
    mutator = Mutator(seed, CODEC_FRAMES[codec])
    data = bytearray(mutator.message())
    outcome(bytes(data))
    data[at : at + len(patch)] = patch
    outcome(bytes(data))
    outcome(bytes(seal(data)))


CODEC_FRAMES = {codec: valid_frames([codec]) for codec in VARIANTS}


@pytest.mark.parametrize("codec", VARIANTS, ids=IDS)
@settings(max_examples=EXAMPLES)
@given(data=st.data(), rows=st.integers(0, 5), n=st.integers(0, 2000))
def test_any_payload_of_a_right_header_is_accepted(codec, data, rows, n):
    """But for rows that state their size."""
    size = rows * codec.wire_bytes(n)
    payload = np.random.default_rng(data.draw(st.integers(0, 2**32))).bytes(size)
    found = outcome(bytes(build(codec.spec().encode(), rows, n, payload)))
    assert found == ("rows" if codec.variable and size else "accepted")


@pytest.mark.timeout(3600)
def test_mutations_of_all_frames():
    """THINWIRE_FUZZ_MESSAGES sets how many; each reason to refuse, and accepting, must be met often."""
    mutator, found = Mutator(MESSAGES), Counter()
    for _ in range(MESSAGES):
        found[outcome(mutator.message())] += 1
    accepted = found["accepted"]
    print(f"{MESSAGES} messages: {accepted} accepted, {MESSAGES - accepted} refused, {dict(found)}")
    assert MESSAGES / 10 < accepted < MESSAGES * 9 / 10
    assert {name for name in REASONS if found[name] < MESSAGES / 2000} == set()


def test_mutations_with_the_reference(reference):
    mutator = Mutator(1)
    found = Counter(outcome(mutator.message()) for _ in range(3000))
    assert 300 < found["accepted"] < 2700


# --- sizes that only the header has -----------------------------------------------------------------------------------


def peak(call: Callable[[], object]) -> int:
    """Bytes that ``call`` allocated at its highest, as Python and NumPy report them."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_the_meter_sees_what_numpy_allocates():
    assert 1 << 20 <= peak(lambda: np.empty(1 << 20, dtype=np.uint8)) < 1 << 21


def hostile_headers() -> list[bytes]:
    """Headers that promise up to 2^96 bytes and have a few, of every codec, sealed."""
    sizes = [0, 1, 2**16, 2**31 - 1, 2**32 - 1]
    elements = [0, 1, 255, 2**31, 2**32, 2**40, 2**53, 2**60, 2**61 - 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
    made = []
    for codec in VARIANTS:
        for rows in sizes:
            for n in elements:
                spec, true = codec.spec().encode(), rows * codec.wire_bytes(n)
                made += [build(spec, rows, n, b"", true & (2**64 - 1)), build(spec, rows, n, bytes(16))]
    return [bytes(data) for data in made]


def test_hostile_headers_allocate_nothing(backend):
    for data in FRAMES:
        outcome(data)  # the first use of a kernel loads it
    for data in hostile_headers():
        limit = 4 * len(data) + 32768
        # A thread of the test runner may allocate meanwhile: what is the decoder's is there every time.
        grown = next((grown for _ in range(3) if (grown := peak(lambda data=data: outcome(data))) < limit), None)
        assert grown is not None, f"{limit} bytes or more for {data.hex()}"


@pytest.mark.parametrize("codec", VARIANTS, ids=IDS)
@pytest.mark.parametrize("shape", [(2000, 1), (500, 9), (3, 3001)])
def test_memory_follows_what_arrived(codec, shape, backend):
    """Fields of the spec are declared by the sender too: a block of a million must not cost a million an element."""
    rows, n = shape
    data = bytes(build(codec.spec().encode(), rows, n, bytes(rows * codec.wire_bytes(n))))
    data = frame.dumps(np.zeros((rows, n), dtype=np.float32), codec) if codec.variable else data
    assert outcome(data) == "accepted"
    assert peak(lambda: frame.loads(data)) < 12 * (len(data) + 4 * rows * n) + 65536


def test_the_largest_block_costs_no_more_than_the_message(backend):
    spec, rows = b"minmax8;block=1048576", 100
    data = bytes(build(spec, rows, 1, bytes(16 * rows)))
    assert peak(lambda: frame.loads(data)) < 12 * len(data) + 65536


@pytest.mark.parametrize("n", [2**60 + 1, 2**61, 2**63, 2**64 - 1])
def test_rows_longer_than_an_array_can_be(n, backend):
    for codec in REGISTRY.values():
        data = build(codec.spec().encode(), 0, n, b"")
        with pytest.raises(WireError, match="elements a row"):
            frame.loads(data)


def test_no_rows_of_many_elements_take_no_time(backend):
    for codec in VARIANTS:
        assert frame.loads(build(codec.spec().encode(), 0, 2**60, b"")).shape == (0, 2**60)
        assert frame.loads(build(codec.spec().encode(), 2**32 - 1, 0, b"")).shape == (2**32 - 1, 0)


# --- specs ------------------------------------------------------------------------------------------------------------

ODD_SPECS = [
    *WORDS,
    f"int8;block={HUGE};scale=bf16",
    f"int8;block=128;scale={HUGE}",
    f"minmax8;block={HUGE}",
    f"minmax8;block={2**64}",
    HUGE,
    "int8" + ";block=128" * 5000,
    "int8;" + "=" * 50000,
    ";" * 50000,
    "int8;name=int8",
    "int8;name=8;block=128;scale=bf16",
    "int8;fields=1;block=128;scale=bf16",
    "int8;self=1;block=128;scale=bf16",
    "int8;bits=8;block=128;scale=bf16",
    "int8;scale=bf16;block=128",
    "int8;block=0128;scale=bf16",
    "int8;block=128;scale=bf16;",
    "int8;block=128;scale=bf16\0",
    "int8\0;block=128;scale=bf16",
    "int8;block=\u0661\u0662\u0668;scale=bf16",
    "int8;block=12\u00b2;scale=bf16",
    "int8;block=128;scale=none",
    "int8;block=none;scale=bf16",
    "int8;" + "b" * 20000 + "=1",
]


@pytest.mark.parametrize("text", ODD_SPECS, ids=range(len(ODD_SPECS)))
def test_odd_specs(text):
    """The codec that writes the very same text, or a ConfigError; in a frame, a WireError."""
    try:
        assert from_spec(text).spec() == text
        known = True
    except ConfigError:
        known = False
    data = bytes(build(text.encode("utf-8", "surrogatepass"), 0, 0, b""))
    assert outcome(data) == ("accepted" if known and len(text) < 256 else "codec")


@given(st.text(max_size=300), st.sampled_from(IDS), st.integers(0, 30))
def test_any_text_is_a_codec_or_a_config_error(text, spec, at):
    for candidate in (text, spec[:at] + text + spec[at:], f"{spec};{text}=1", f"{spec.partition(';')[0]};{text}"):
        try:
            assert from_spec(candidate).spec() == candidate
        except ConfigError:
            continue


@pytest.mark.parametrize("data", [memoryview(b"abcdef")[::2], np.zeros((0, 3), np.uint8), "text", 7, None])
def test_what_is_not_bytes_is_the_callers_mistake(data):
    with pytest.raises(ConfigError, match="contiguous bytes"):
        frame.loads(data)


def test_frames_from_any_memory():
    """A payload at an odd address, as in the middle of a received message, decodes the same."""
    for data in FRAMES:
        shifted = bytearray(b"\0" + data)
        for view in (memoryview(shifted)[1:], np.frombuffer(shifted, np.uint8)[1:], memoryview(data).toreadonly()):
            np.testing.assert_array_equal(frame.loads(view), frame.loads(data))


def test_the_mutator_repeats_itself_and_leaves_nothing_out():
    one, two, other = (Mutator(seed, FRAMES) for seed in (5, 5, 6))
    first = [one.message() for _ in range(500)]
    assert first == [two.message() for _ in range(500)]
    assert first != [other.message() for _ in range(500)]
    assert all(payload_at(data) <= len(data) for data in first)
    (stated,) = struct.unpack_from("<I", FRAMES[0], 12)
    assert seal(bytearray(FRAMES[0])) == FRAMES[0]
    assert stated == struct.unpack_from("<I", seal(bytearray(FRAMES[0])), 12)[0]


def test_coverage_guided(tmp_path):
    """The harness of fuzz_frames.py for some seconds; scripts/fuzz runs it for longer."""
    pytest.importorskip("atheris", reason="atheris has wheels for Linux on x86-64 only, up to Python 3.13")
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("fuzz_frames.py")), f"-runs={RUNS}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr
    accepted, refused = map(int, re.findall(r"(\d+) (?:accepted|refused)", done.stdout))
    assert accepted > RUNS / 100
    assert refused > RUNS / 10
