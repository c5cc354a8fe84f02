"""Starts local ranks of this same command with torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import sys
import uuid

from thinwire.errors import ThinwireError


class RankFailed(ThinwireError, RuntimeError):
    """A rank ended with an error; it has printed its own."""


def launch(arguments: list[str], ranks: int, threads: int | None) -> None:
    """Run ``thinwire ARGUMENTS`` as ``ranks`` processes here and wait. Raises RankFailed if one fails; all end then."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Ranks of one machine talk over loopback; without this, gloo looks the machine's own name up.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    share = max(1, len(os.sched_getaffinity(0)) // ranks)
    os.environ["OMP_NUM_THREADS"] = str(threads or share)
    # The launcher logs a table and a stack of its own beside the rank's error.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "thinwire", *arguments)
    except ChildFailedError as error:
        failed = ", ".join(f"rank {rank} with exit code {one.exitcode}" for rank, one in sorted(error.failures.items()))
        raise RankFailed(f"the run ended early: {failed}") from None
