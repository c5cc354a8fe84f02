"""Appends the rows of a --json file to a file of JSON lines, behind a line with the command and the machine they come from."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def main() -> None:
    source, target, *arguments = sys.argv[1:]
    # Where something lies on this machine is nobody's business.
    command = [Path(one).name if one.startswith("/") else one for one in arguments]
    rows = json.loads(Path(source).read_text())["rows"]
    with Path(target).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in ({"command": " ".join(command), **machine()}, *rows))


def machine() -> dict[str, str | int]:
    """What a figure depends on; no name of the machine, and no path."""
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count() or 0,
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        **{name: found(name) for name in ("torch", "numba", "numpy")},
    }


def found(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
