"""Run a command on the hosts of a lab: starts the supervisor, hears its events, returns how each rank ended."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from thinwire.errors import ConfigError, ThinwireError
from thinwire.lab.topology import Topology

_KEPT_LINES: Final = 200
_GRACE: Final = 2.0
OWNER: Final = "THINWIRE_LAB_OWNER"
"""Environment variable of everything in a lab: the process that asked for it, by id and time of its start."""
Event = Mapping[str, Any]


class LabError(ThinwireError, RuntimeError):
    """The lab itself failed, not the command in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended. Exit codes are Popen's: negative for a signal; ``stopped`` ranks were ended because another failed."""

    codes: dict[int, int]
    stopped: frozenset[int]
    seconds: float
    how: str
    """"rate", "netem" or "relay": what shaped the links."""
    output: dict[int, list[str]]
    """The last lines of each rank, standard output and error as they came; none of those that were passed through."""

    @property
    def exit_code(self) -> int:
        """That of the worst rank, as a shell would give it: 128 + n for signal n."""
        own = [code for rank, code in self.codes.items() if rank not in self.stopped] or list(self.codes.values())
        return max((code if code >= 0 else 128 - code for code in own), default=1)

    def failed(self) -> dict[int, int]:
        """Ranks that ended badly by themselves, and their exit codes."""
        return {rank: code for rank, code in self.codes.items() if code and rank not in self.stopped}


def run(
    topology: Topology,
    command: Sequence[str],
    *,
    on_event: Callable[[Event], None] | None = None,
    environment: Mapping[str, str] | None = None,
    passthrough: Sequence[int] = (),
) -> Result:
    """Run ``command`` once a rank, each on its host, and wait for all.

    ``on_event`` hears of lines, starts, ends and changed links as they happen; ranks of ``passthrough`` print to this
    process's own standard output and error instead. A rank that fails ends the others. Raises ConfigError for a command
    that does not exist or a machine that cannot be a lab, LabError if the lab breaks. On KeyboardInterrupt or any other
    exception everything in the lab has ended before it goes on.
    """
    if importlib.util.find_spec("pyroute2") is None:
        raise ConfigError("the lab needs pyroute2: pip install 'thinwire[lab]'")
    path = dict(os.environ, **(environment or {})).get("PATH")
    if not command or shutil.which(command[0], path=path) is None:
        raise ConfigError(f"command={command[0] if command else ''!r} does not exist; allowed: a program on PATH, after --")
    reads, writes = os.pipe()
    inner = [sys.executable, "-m", "thinwire.lab.supervisor", str(writes)]
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("isolate.py")), str(writes), *inner],
        env={**os.environ, **(environment or {}), OWNER: owner(os.getpid())},
        stdin=subprocess.PIPE, pass_fds=[writes], start_new_session=True,
    )  # fmt: skip
    os.close(writes)
    assert process.stdin is not None
    request = {"topology": topology.as_dict(), "command": list(command), "passthrough": list(passthrough), "grace": _GRACE}
    heard = _Heard(on_event)
    with process, os.fdopen(reads) as events:
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            heard.all_of(events)
        except KeyboardInterrupt:
            with contextlib.suppress(OSError):
                process.stdin.write(b'{"stop": true}\n')
                process.stdin.flush()
            heard.all_of(events)
            raise
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
    return heard.result(topology.ranks)


class _Heard:
    """The events of a run, gathered."""

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        self._on_event = on_event
        self._codes: dict[int, int] = {}
        self._stopped: set[int] = set()
        self._output: dict[int, deque[str]] = {}
        self._seconds: float | None = None
        self._how = ""

    def all_of(self, events: IO[str]) -> None:
        for event in _events(events):
            kind = event["event"]
            if kind == "line":
                self._output.setdefault(event["rank"], deque(maxlen=_KEPT_LINES)).append(event["text"])
            elif kind == "exit":
                self._codes[event["rank"]] = event["code"]
                self._stopped |= {event["rank"]} if event["stopped"] else set()
            elif kind == "started":
                self._how = event["how"]
            elif kind == "done":
                self._seconds = event["seconds"]
            elif kind == "error":
                raise ConfigError(event["message"])
            elif kind == "crash":
                raise LabError(f"the lab failed:\n{event['message']}")
            if self._on_event is not None:
                self._on_event(event)

    def result(self, ranks: int) -> Result:
        if self._seconds is None:
            raise LabError(f"the lab's supervisor ended early; {len(self._codes)} of {ranks} ranks had ended by themselves")
        return Result(
            codes=dict(sorted(self._codes.items())),
            stopped=frozenset(self._stopped),
            seconds=self._seconds,
            how=self._how,
            output={rank: list(lines) for rank, lines in sorted(self._output.items())},
        )


def _events(source: IO[str]) -> Iterator[dict[str, Any]]:
    for line in source:
        # A supervisor that is killed may leave half a line.
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def owner(pid: int) -> str:
    """``pid:start``, which no later process has again; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return f"{pid}:{file.read().rpartition(')')[2].split()[19]}"
    except OSError:
        return ""
