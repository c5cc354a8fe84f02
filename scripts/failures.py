"""Random failures of random ranks on the lab's hosts: each other rank must name the lost one within the timeout + 5 s, and end.

Usage: python scripts/failures.py COUNT FILE. Appends a line of JSON a failure to FILE and prints a summary by kind.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from thinwire import lab

JOB = Path(__file__).parents[1] / "tests" / "failures" / "job.py"
KINDS = ("kill", "freeze", "raise", "cut")
TIMEOUT = 3.0


def one(number: int, ranks: int, how: str) -> dict[str, Any]:
    source = random.Random(number)
    victim, milliseconds = source.randrange(ranks), source.randrange(5, 3000)
    # The lab ends all ranks when one fails, so every rank's end is a good one, and a frozen rank is ended after a while.
    job = f"timeout -s KILL 60 {sys.executable} {JOB} {number} {victim} {how} {milliseconds} {TIMEOUT}; exit 0"
    start = time.time()
    result = lab.run(lab.Topology(ranks=ranks, link=lab.link("1gbit")), ["sh", "-c", job])
    said: dict[int, dict[str, Any]] = {}
    for rank, lines in result.output.items():
        found = [line for line in lines if line.startswith('{"rank"')]
        if rank != victim and found:
            said[rank] = json.loads(found[-1])
    others = [rank for rank in range(ranks) if rank != victim]
    return {
        "number": number, "ranks": ranks, "how": how, "victim": victim, "milliseconds": milliseconds,
        "ended": sum(rank in said for rank in others), "others": len(others),
        "named": sum(one["ranks"] == [victim] for one in said.values()),
        "in_time": sum(one["seconds"] < TIMEOUT + 5 for one in said.values()),
        "wrong": sum(one["error"] is None for one in said.values()),
        "slowest": max((one["seconds"] for one in said.values()), default=None),
        "errors": sorted({str(one["error"]) for one in said.values()}),
        "unexpected": [lines[-3:] for rank, lines in result.output.items() if rank in others and rank not in said],
        "seconds": time.time() - start,
    }  # fmt: skip


def main(count: int, file: Path) -> None:
    totals: dict[str, Counter[str]] = {how: Counter() for how in KINDS}
    for number in range(count):
        row = one(number, 2 + number % 3, KINDS[number % len(KINDS)])
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        totals[row["how"]].update({key: row[key] for key in ("others", "ended", "named", "in_time", "wrong")})
        print(f"\r{number + 1} of {count}", end="", file=sys.stderr, flush=True)
    for how, total in totals.items():
        print(how, dict(total))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
