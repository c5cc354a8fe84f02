"""Settings of all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from thinwire.kernels import ops
from thinwire.kernels.threads import get_num_threads, set_num_threads

# The first call of a kernel compiles it, so a deadline would measure the compiler.
settings.register_profile("thinwire", deadline=None, max_examples=40, derandomize=True, print_blob=True)
settings.load_profile("thinwire")

# A shell that starts pytest in the background has it ignore SIGINT. The processes of tests would inherit that, and some are
# to end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def reference() -> Iterator[None]:
    """Run with the NumPy reference."""
    before = ops.set_backend("reference")
    yield
    ops.set_backend(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Put the number of kernel threads back."""
    before = get_num_threads()
    yield
    set_num_threads(before)
