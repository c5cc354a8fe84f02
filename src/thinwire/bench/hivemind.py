"""Starts hivemind_rows.py with a Python that has hivemind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError


def measure_hivemind(python: str, elements: int, threads: int, repeat: int) -> list[dict[str, Any]]:
    """Rows like those of our codecs. Raises ConfigError if ``python`` does not run or has no hivemind."""
    command = [python, "-P", str(Path(__file__).with_name("hivemind_rows.py")), str(elements), str(threads), str(repeat)]
    try:
        found = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise ConfigError(
            f"--hivemind-python {python} cannot be run: {error.strerror}; allowed: a Python with hivemind"
        ) from None
    if found.returncode:
        last = found.stderr.strip().rpartition("\n")[2]
        raise ConfigError(
            f"--hivemind-python {python} failed: {last}; allowed: a Python with hivemind "
            "(python -m venv hm && hm/bin/pip install torch 'numpy<2.4' hivemind)"
        )
    rows: list[dict[str, Any]] = json.loads(found.stdout.strip().rpartition("\n")[2])
    return rows
