"""What a lab needs; where it is missing, tests say so and are skipped."""

from __future__ import annotations

import functools
import os
import sys

import pytest

from thinwire import lab
from thinwire.errors import ConfigError


@functools.cache
def why_not(delay: str) -> str | None:
    """Return why no lab can run here, or None."""
    if sys.platform != "linux":
        return f"the lab needs Linux, this is {sys.platform}"
    try:
        lab.run(lab.Topology(ranks=2, link=lab.link("1gbit", delay)), ["true"])
    except ConfigError as error:
        return str(error)
    return None


@pytest.fixture
def plain_lab():
    """Namespaces and links with a rate."""
    if (reason := why_not("0")) is not None:
        pytest.skip(reason)


@pytest.fixture
def timed_lab(plain_lab):
    """Links with a delay too."""
    if (reason := why_not("5ms")) is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def no_ranks_around(monkeypatch):
    """Tests may themselves run under a launcher."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if name in os.environ:
            monkeypatch.delenv(name)
