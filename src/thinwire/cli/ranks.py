"""Whether this process is a rank, and how it starts some: here, or on the hosts of a lab."""

from __future__ import annotations

import os
import sys

from thinwire.cli import links
from thinwire.errors import ConfigError
from thinwire.lab import Topology


def start_ranks(lab: Topology | None, ranks: int, threads: int | None) -> None:
    """Run this same command as ``ranks`` processes, in ``lab`` if there is one, and wait. Raises RunEnded."""
    if lab is not None:
        links.run_again(lab, sys.argv[1:], threads)
        return
    from thinwire.cli.launch import launch

    launch(sys.argv[1:], ranks, threads)


def is_rank() -> bool:
    """Whether torchrun started this process. Raises ConfigError if its variables are there in part only."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return False
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        value = os.environ.get(name, "")
        if not value.isdecimal():
            raise ConfigError(f"{name}={value!r} while RANK and WORLD_SIZE are set; allowed: a number, as torchrun sets it")
    if not os.environ.get("MASTER_ADDR"):
        raise ConfigError("MASTER_ADDR is not set but RANK and WORLD_SIZE are; allowed: the address that torchrun sets")
    return True
