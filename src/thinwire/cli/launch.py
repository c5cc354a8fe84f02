"""Starts local ranks of this same command with torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from thinwire.errors import ThinwireError

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig


class RunEnded(ThinwireError, RuntimeError):
    """The run ended early, by a rank's error or by a signal; ``exit_code`` is what the command ends with."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def launch(arguments: list[str], ranks: int, threads: int | None) -> None:
    """Run ``thinwire ARGUMENTS`` as ``ranks`` processes here and wait.

    Raises RunEnded if a rank fails or this process gets SIGINT or SIGTERM; all ranks have ended then.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    _set_environment(ranks, threads)
    with tempfile.TemporaryDirectory(prefix="thinwire-") as logs:
        try:
            elastic_launch(_config(ranks, logs), sys.executable)("-m", "thinwire", *arguments)
            _echo(Path(logs), [0])
        except ChildFailedError as error:
            codes = {rank: one.exitcode for rank, one in sorted(error.failures.items())}
            _echo(Path(logs), codes)
            raise _failed(codes) from None
        except SignalException as error:
            raise RunEnded(f"ended by {error.sigval.name}", 128 + error.sigval) from None


def _set_environment(ranks: int, threads: int | None) -> None:
    # Ranks of one machine talk over loopback; without this, gloo looks the machine's own name up.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    share = max(1, len(os.sched_getaffinity(0)) // ranks)
    os.environ["OMP_NUM_THREADS"] = str(threads or share)
    # The launcher logs a table and a stack of its own beside the rank's error. Its loggers set their levels themselves.
    launcher = logging.getLogger("torch.distributed.elastic")
    launcher.addHandler(logging.NullHandler())
    launcher.propagate = False


def _config(ranks: int, logs: str) -> LaunchConfig:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        # Standard error goes to files, so that an error that all ranks have is shown once.
        logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=Std.ERR),
    )


def _echo(logs: Path, ranks: Iterable[int]) -> None:
    """Show what these ranks wrote to standard error, but for those whose last line, the error, another one has shown."""
    shown: set[str] = set()
    for rank in ranks:
        for file in logs.glob(f"*/attempt_0/{rank}/stderr.log"):
            text = file.read_text(errors="replace").rstrip()
            last = text.rpartition("\n")[2].removeprefix(f"[rank{rank}]: ")
            if text and last not in shown:
                print(text, file=sys.stderr)
            shown.add(last)


def _failed(codes: dict[int, int]) -> RunEnded:
    # The launcher ends the other ranks with SIGTERM; they are not at fault.
    own = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM} or codes
    ends = ", ".join(f"rank {rank} {_end(code)}" for rank, code in own.items())
    return RunEnded(f"the run ended early: {ends}", 2 if set(own.values()) == {2} else 1)


def _end(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
