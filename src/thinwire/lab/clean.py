"""Finds the processes of labs, and ends those whose owner has gone.

The kernel ends a lab with its owner, so there should be none; this is for the day when something was stopped or frozen half-way.
Only processes that carry the lab's own mark are touched; namespaces and devices go with the last of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

from thinwire.lab.run import OWNER, owner


class Member(NamedTuple):
    """A process of a lab: its id, its program, and whether the process that asked for the lab still lives."""

    pid: int
    program: str
    owned: bool


def members() -> list[Member]:
    """Every process of any lab that this user may see, but for the one that asks."""
    found: list[Member] = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes end while they are looked at, and others' environments are theirs.
        with contextlib.suppress(OSError):
            entries = (folder / "environ").read_bytes().split(b"\0")
            mark = next((one for one in entries if one.startswith(OWNER.encode() + b"=")), None)
            if mark is None or int(folder.name) == os.getpid():
                continue
            who = mark.partition(b"=")[2].decode()
            program = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            alive = bool(who) and owner(int(who.partition(":")[0])) == who
            found.append(Member(int(folder.name), program, alive))
    return found


def clean() -> list[Member]:
    """End every process of a lab whose owner has gone, and return them. Labs that are in use are left alone."""
    left = [one for one in members() if not one.owned]
    for one in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    return left
