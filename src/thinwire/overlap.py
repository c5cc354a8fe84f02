"""The only asynchrony: one thread a transport that runs collectives in the order in which they were submitted.

All ranks submit in the same order, so their messages meet. The thread is a daemon and never keeps a process from ending.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from thinwire.collective.transport import Group, Transport, of
from thinwire.errors import ConfigError, DisagreementError

_workers: Final[weakref.WeakKeyDictionary[Transport, Worker]] = weakref.WeakKeyDictionary()
_Task = tuple[Callable[[], Any], "Future[Any]"]


class Worker:
    """Runs tasks one after another; one that fails on the way fails those behind it, since its messages are still about."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        thread = threading.Thread(target=_run, args=(weakref.ref(self), self._tasks), name="thinwire", daemon=True)
        thread.start()
        weakref.finalize(self, self._tasks.put, None)

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        """Queue ``task``; its result or exception arrives in the future."""
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future

    def run(self, task: Callable[[], Any], future: Future[Any]) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            future.set_result(task())
        except (ConfigError, DisagreementError) as error:  # raised on all ranks before the first byte
            future.set_exception(error)
        except BaseException as error:  # everything, since the caller waits in another thread
            self._failure = error
            future.set_exception(error)


def _run(owner: weakref.ref[Worker], tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (item := tasks.get()) is not None:
        worker = owner()
        if worker is not None:
            worker.run(*item)
        # Nothing of the last task may be kept alive while waiting for the next.
        del item, worker


def worker_of(
    group: Group = None, streams: int | None = None, timeout: float | None = None
) -> tuple[Transport, Worker]:  # fmt: skip
    """The group's transport and its one worker, made on first use, with ``streams`` connections (None: a probe chooses)."""
    transport = of(group, streams, timeout)
    if transport not in _workers:
        _workers[transport] = Worker()
    return transport, _workers[transport]
