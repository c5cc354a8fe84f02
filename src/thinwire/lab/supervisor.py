"""The inside of a lab: a process that makes the hosts, starts the ranks in them, and is the end of both.

It is the first process of a PID namespace (isolate.py): when it ends, however it ends, the kernel kills all others in
there and drops their namespaces and devices. It ends when its standard input is closed, which is when whoever asked for
the lab has gone.

Standard input: one JSON object (topology, command, passthrough, grace), later maybe ``{"stop": true}``. Events go out as lines
of JSON on the file descriptor that the first argument names.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
import traceback
from typing import Any, Final

from thinwire.errors import ConfigError
from thinwire.lab import netns
from thinwire.lab.relay import LINK, Relay
from thinwire.lab.topology import Topology, from_dict

_PR_SET_TIMERSLACK: Final = 29
_KILL_AFTER: Final = 5.0
_PATIENCE: Final = 0.5


def main() -> None:
    events = int(sys.argv[1])
    code = 1
    try:
        request = json.loads(_first_line())
        netns.mount_proc()
        topology = from_dict(request["topology"])
        netns.name_hosts(topology)
        Lab(topology, events).run(request["command"], request["passthrough"], request["grace"])
        code = 0
    except ConfigError as error:
        _say(events, event="error", message=str(error))
        code = 2
    except BaseException:
        _say(events, event="crash", message=traceback.format_exc())
    finally:
        # No clean-up of Python's: what this process holds, the kernel takes back.
        os._exit(code)


def _first_line() -> bytes:
    """Byte by byte, so that what follows stays in the pipe."""
    line = b""
    while not line.endswith(b"\n"):
        one = os.read(0, 1)
        if not one:
            sys.exit(1)
        line += one
    return line


def _say(fd: int, **event: Any) -> None:
    data = json.dumps(event).encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]


class Lab:
    """Hosts, ranks and what they print, in one loop."""

    def __init__(self, topology: Topology, events: int) -> None:
        os.set_inheritable(events, False)
        self._topology, self._events = topology, events
        self._network = netns.Network(topology)
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._streams: dict[int, tuple[int, str, bytes]] = {}
        self._kill_at: float | None = None
        self._term_at: float | None = None
        self._relay, self._control = self._start_relay() if self._network.devices else (0, -1)

    def run(self, command: list[str], passthrough: list[int], grace: float) -> None:
        """Start the ranks and serve them until all have ended."""
        self._grace = grace
        self._selector.register(0, selectors.EVENT_READ, self._hear)
        start = time.monotonic()
        for rank in range(self._topology.ranks):
            self._start_rank(rank, command, rank in passthrough)
        self._say(event="started", link=str(self._topology.first_link), **self._network.facts())
        changes = [change for change in self._topology.changes if change.at > 0]
        while len(self._codes) < self._topology.ranks:
            now = time.monotonic() - start
            while changes and changes[0].at <= now:
                self._change_links(changes.pop(0).link, now)
            wait = min(_PATIENCE, changes[0].at - now) if changes else _PATIENCE
            self._serve(wait)
            self._end_if_due()
        self._drain()
        self._say(event="done", seconds=time.monotonic() - start)

    def _say(self, **event: Any) -> None:
        _say(self._events, **event)

    def _start_relay(self) -> tuple[int, int]:
        reads, writes = os.pipe()
        relay = os.fork()
        if relay:
            os.close(reads)
            for device in self._network.devices:
                os.close(device)
            return relay, writes
        with contextlib.suppress(BaseException):
            os.close(writes)
            # Late packets are the relay's worst fault; ordinary users may not ask for this and do without.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, -10)
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
            Relay(self._network.devices, self._topology.first_link, reads).run()
        os._exit(1)

    def _start_rank(self, rank: int, command: list[str], passthrough: bool) -> None:
        namespace = self._network.namespaces[self._topology.host_of(rank)]
        cpus = len(os.sched_getaffinity(0))
        threads = {"OMP_NUM_THREADS": str(max(1, cpus // self._topology.ranks))}
        environment = {**threads, **os.environ, **self._topology.environment(rank)}
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
                stdout=None if passthrough else subprocess.PIPE, stderr=None if passthrough else subprocess.PIPE,
                preexec_fn=lambda: netns.enter(namespace),
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(
                f"command={command[0]!r} cannot be started: {error.strerror}; allowed: a program that exists"
            ) from None
        self._ranks[process.pid] = rank
        process.returncode = 0  # it is reaped here, not by its object
        self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, self._ended)
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            if pipe is not None:
                fd = os.dup(pipe.fileno())
                pipe.close()
                os.set_blocking(fd, False)
                self._streams[fd] = (rank, name, b"")
                self._selector.register(fd, selectors.EVENT_READ, self._read)

    def _read(self, fd: int) -> None:
        rank, name, partial = self._streams[fd]
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        *lines, rest = (partial + data).split(b"\n")
        self._streams[fd] = (rank, name, rest)
        for line in [*lines, rest] if not data and rest else lines:
            self._say(event="line", rank=rank, stream=name, text=line.decode(errors="replace"))
        if not data:
            self._selector.unregister(fd)
            del self._streams[fd]
            os.close(fd)

    def _drain(self) -> None:
        """What the ranks printed last; a process that outlived its rank may keep a pipe open, and is not waited for."""
        for fd, (rank, name, _) in list(self._streams.items()):
            while fd in self._streams and select.select([fd], [], [], 0)[0]:
                self._read(fd)
            if fd in self._streams and self._streams[fd][2]:
                self._say(event="line", rank=rank, stream=name, text=self._streams[fd][2].decode(errors="replace"))

    def _serve(self, wait: float) -> None:
        for key, _ in self._selector.select(max(0.0, wait)):
            key.data(key.fd)

    def _hear(self, fd: int) -> None:
        if not os.read(fd, 4096):
            os._exit(1)
        self._stop(0.0)

    def _stop(self, grace: float) -> None:
        if self._term_at is None:
            self._term_at = time.monotonic() + grace
            self._kill_at = self._term_at + _KILL_AFTER

    def _end_if_due(self) -> None:
        self._reap()
        now = time.monotonic()
        if self._term_at is not None and now >= self._term_at:
            self._signal_all(signal.SIGTERM)
            self._term_at = float("inf")
        if self._kill_at is not None and now >= self._kill_at:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid, rank in self._ranks.items():
            if rank not in self._codes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, number)

    def _ended(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)
        self._reap()

    def _reap(self) -> None:
        """Collect every child that has ended; orphans of the ranks become ours, as the first process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._relay:
                raise RuntimeError("the relay of the lab's network has ended")
            if pid in self._ranks:
                self._note(self._ranks[pid], os.waitstatus_to_exitcode(status))

    def _note(self, rank: int, code: int) -> None:
        self._codes[rank] = code
        ours = self._term_at == float("inf")
        self._say(event="exit", rank=rank, code=code, stopped=ours)
        if code:
            self._stop(self._grace)

    def _change_links(self, link: Any, now: float) -> None:
        self._network.change(link)
        if self._control >= 0:
            os.write(self._control, LINK.pack(link.rate, link.delay, link.jitter, link.loss))
        self._say(event="link", at=now, link=str(link))


if __name__ == "__main__":
    main()
