"""Runs a user's training script in this process until its first steps are recorded, and ends it whatever it does then."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from thinwire.inspect.recorder import Enough, Recorder

GRACE_SECONDS: Final = 30.0
"""For a script to end after the last step: its ``finally`` clauses, its threads."""


class ScriptFailed(Exception):
    """The script ended with an error of its own, which has been shown; ``exit_code`` is what it would have ended with."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Deadline:
    """Calls ``action`` in a thread of its own if nobody cancels it in time. Can be started again and again."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._seconds, self._action = seconds, action
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Start it, if it does not run yet."""
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._action)
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def run(path: Path, arguments: Sequence[str], recorder: Recorder) -> None:
    """Run the script as ``python PATH ARGUMENTS`` would, until it ends or has been recorded.

    Raises ScriptFailed if it fails before that; its traceback, from its own first line on, is on standard error.
    """
    before = sys.argv, list(sys.path), _end_on_sigterm()
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with recorder.recording():
            runpy.run_path(str(path), run_name="__main__")
    except Enough:
        pass
    except SystemExit as end:
        code = _exit_code(end)
        if code and not recorder.enough:
            raise ScriptFailed(f"{path} ended with exit code {code}", code) from None
    except Exception as error:
        # Once all is recorded, errors are of the ending: another rank has ended too, or the script caught Enough.
        if not recorder.enough:
            _show(error)
            # With the message, so that ranks with other errors have other last lines.
            what = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ScriptFailed(f"{path} failed, its traceback is above: {what}", 1) from None
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
        if before[2] is not None:
            signal.signal(signal.SIGTERM, before[2])


def end_soon(exit_code: int) -> None:
    """End this process even if threads that the script left behind do not."""
    Deadline(GRACE_SECONDS, lambda: os._exit(exit_code)).start()


def _end_on_sigterm() -> Any:
    """torchrun ends the other ranks with SIGTERM; files are removed then too. Returns what to put back, or None."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return None
    return signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """The traceback without the frames of this file and of runpy."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in {*ours}:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
