"""docs/pitfalls.md names a test for every fault, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_fault_has_a_test_that_exists():
    rows = re.findall(
        r"^\| (.+?) \| .+? \| `(.+?)::(.+?)` \|$", (TESTS.parent / "docs" / "pitfalls.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 30
    for fault, file, name in rows:
        assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE), fault
