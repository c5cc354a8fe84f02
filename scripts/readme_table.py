"""Prints the README's table of all-reduce times from the newest files in benchmarks/; a test holds the README to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINKS = {
    "collective-loopback": ("loopback", (16,)),
    "collective-1gbit": ("1 Gb/s", (16, 64)),
    "collective-100mbit": ("100 Mb/s", (16,)),
    "collective-far": ("1 Gb/s, 100 ms", (256,)),
}
METHODS = ("none", "torch bf16", "int8", "int4")


def main() -> None:
    print("| link | ranks | MB | fp32 ms | bf16 ms | `int8` ms | `int4` ms | `int8` of ideal | `int4` of ideal |")
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(table()))


def table() -> list[str]:
    """Lines of the table's body."""
    lines: list[str] = []
    for name, (link, sizes) in LINKS.items():
        groups: dict[tuple[int, float], dict[str, Any]] = {}
        for row in newest(name):
            groups.setdefault((row["ranks"], row["megabytes"]), {})[row["codec"]] = row
        for (ranks, size), rows in sorted(groups.items()):
            if size in sizes:
                times = [f"{rows[method]['milliseconds']:,.0f}" for method in METHODS]
                ideal = [f"{rows[method]['fraction_of_ideal']:.2f}" for method in METHODS[2:]]
                lines.append("| " + " | ".join([link, str(ranks), f"{size:g}", *times, *ideal]) + " |")
    return lines


def newest(name: str) -> list[dict[str, Any]]:
    """Rows of the newest file of that name, without the lines that say where they come from."""
    path = max((ROOT / "benchmarks").glob(f"*-{name}.jsonl"))
    return [row for line in path.read_text().splitlines() if "codec" in (row := json.loads(line))]


if __name__ == "__main__":
    main()
