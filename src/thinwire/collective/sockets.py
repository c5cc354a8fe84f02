"""TCP connections between the ranks of a group: one or more a pair, each used in both directions at once.

gloo's own point-to-point messages need word from the receiver before every send, which costs half a round trip each, and
while a message is being written its thread polls the same socket in a loop (docs/decisions/0006-own-connections.md). Here
the kernel's buffers are the asynchrony: what fits is handed over at once, one thread a group hands over the rest as room
appears, and a message is received by one blocking call of the thread that wants it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from thinwire.errors import CollectiveTimeout, TransportError, WireError

_HELLO: Final = struct.Struct("<16sII")
_SET_UP_SECONDS: Final = 60.0
_GREETING_SECONDS: Final = 5.0
"""A stranger that says nothing must not keep the others out."""
_TICK_SECONDS: Final = 0.5
"""How often a wait looks up: for a peer that is known to be lost, or the end of its patience."""
WATCH: Final = 0xFFFFFFFF
"""Number of the connection on which peers watch each other."""
_GONE_SECONDS: Final = 120
_MOST_AT_ONCE: Final = 32
HEAD: Final = 16
"""Bytes by which a message whose size the receiver does not know tells it; no message is shorter."""


@dataclasses.dataclass(kw_only=True)
class Message:
    """What is left of a message on its way into the kernel's buffer, or out of it."""

    rest: memoryview
    measure: Callable[[memoryview], int] | None = None
    """Tells the size of an arriving message by its first HEAD bytes; None for one that fills its buffer."""
    done: threading.Event = dataclasses.field(default_factory=threading.Event)
    error: OSError | WireError | None = None
    behind: memoryview | None = dataclasses.field(init=False, default=None)
    """The buffer behind the head, while that is awaited."""

    def __post_init__(self) -> None:
        if self.measure is not None:
            self.rest, self.behind = self.rest[:HEAD], self.rest

    def goes_on(self) -> bool:
        """Whether anything is left to move. Raises WireError for a message that is larger than its buffer."""
        if not self.rest and self.behind is not None and self.measure is not None:
            size = self.measure(self.behind[:HEAD])
            if not HEAD <= size <= len(self.behind):
                raise WireError(f"a message of {size} bytes is announced; allowed: {HEAD} to {len(self.behind)}")
            self.rest, self.behind = self.behind[HEAD:size], None
        return bool(self.rest)

    def wait(self, patience: Patience) -> None:
        """Until all of it has moved. Raises OSError, or TimeoutError if nothing moves for as long as ``patience`` lasts."""
        watched = patience.begin(len(self.rest))
        while not self.done.wait(_TICK_SECONDS):
            watched(len(self.rest))
        if self.error is not None:
            raise self.error


class Patience:
    """How long to wait without progress; ``check`` raises what is known to have failed meanwhile."""

    def __init__(self, seconds: float, check: Callable[[], None] = lambda: None) -> None:
        self.seconds, self.check = seconds, check

    def begin(self, left: int) -> Callable[[int], None]:
        """What is returned takes the bytes that are left now and then. It raises TimeoutError."""
        last, before = time.monotonic(), left

        def look(left: int) -> None:
            nonlocal last, before
            self.check()
            if left != before:
                last, before = time.monotonic(), left
            elif time.monotonic() - last >= self.seconds:
                raise TimeoutError(f"nothing moved for {self.seconds:g} s")

        return look


class Listener:
    """Where the other ranks of a group reach this one. The token keeps strangers out."""

    def __init__(self, address: str, timeout: float = _SET_UP_SECONDS) -> None:
        self._timeout = timeout
        self._come: dict[tuple[int, int], socket.socket] = {}
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.token = os.urandom(16)
        self._socket = socket.create_server((address, 0), family=family, backlog=1024)
        self._socket.settimeout(timeout)
        self.place = f"{address} {self._socket.getsockname()[1]} {self.token.hex()}"

    def accept(self, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], socket.socket]:
        """The connections of these ranks and numbers. Raises TransportError if they do not come in time.

        A quick rank may make its next ones already: they are kept for the next call.
        """
        found = self._come
        end = time.monotonic() + self._timeout
        while missing := [one for one in wanted if one not in found]:
            try:
                self._socket.settimeout(max(0.001, end - time.monotonic()))
                one, _ = self._socket.accept()
            except TimeoutError:
                raise CollectiveTimeout(
                    f"{len(missing)} connections, the first from rank {missing[0][0]}, did not come within "
                    f"{self._timeout:g} s: 0 bytes",
                    ranks=tuple(sorted({rank for rank, _ in missing})),
                    operation="set-up",
                ) from None
            with contextlib.suppress(OSError):
                one.settimeout(_GREETING_SECONDS)
                token, rank, number = _HELLO.unpack(_exactly(one, _HELLO.size))
                if token == self.token:
                    found[rank, number] = one
                    continue
            one.close()
        return {one: found.pop(one) for one in wanted}

    def close(self) -> None:
        self._socket.close()


def connect(place: str, rank: int, number: int) -> socket.socket:
    """Connection ``number`` from ``rank`` to the listener at ``place``. Raises TransportError."""
    address, port, token = place.split()
    try:
        one = socket.create_connection((address, int(port)), timeout=_SET_UP_SECONDS)
        one.sendall(_HELLO.pack(bytes.fromhex(token), rank, number))
    except OSError as error:
        raise TransportError(
            f"rank {rank} cannot connect to {address} port {port}: {error}; allowed: addresses that all ranks reach "
            "(GLOO_SOCKET_IFNAME names the interface) and no firewall between them"
        ) from None
    return one


def local_address(towards: str | None, interface: str) -> str:
    """The address of ``interface``, or of the interface on the way to host ``towards``, or loopback."""
    if interface:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, request)[20:24])  # SIOCGIFADDR
    with contextlib.suppress(OSError):
        family, kind, _, _, place = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # sends nothing: the kernel only chooses a way
            return probe.getsockname()[0]
    return "127.0.0.1"


class Connections:
    """The connections of one rank, by peer; messages of a pair take turns on them, in the same order at both ends."""

    def __init__(self, rank: int, size: int, patience: Patience | None = None) -> None:
        self.rank, self.size = rank, size
        self._patience = patience or Patience(_SET_UP_SECONDS)
        self._peers: list[list[socket.socket]] = [[] for _ in range(size)]
        self._sent, self._received = [0] * size, [0] * size
        self._carrier = _Carrier()

    @property
    def streams(self) -> int:
        return max(1, *(len(one) for one in self._peers))

    def open(self, places: list[str], listener: Listener, count: int) -> None:
        """Have ``count`` connections to every peer: those to lower ranks are made here, the others come."""
        numbers = range(self.streams if self._peers[self.rank - 1] else 0, count)
        for (peer, _), one in sorted(self._meet(places, listener, numbers).items()):
            self._peers[peer].append(one)

    def watches(self, places: list[str], listener: Listener) -> dict[int, socket.socket]:
        """One more connection to every peer, by rank."""
        return {peer: one for (peer, _), one in self._meet(places, listener, [WATCH]).items()}

    def _meet(self, places: list[str], listener: Listener, numbers: Sequence[int]) -> dict[tuple[int, int], socket.socket]:
        outgoing = [(peer, number) for peer in range(self.rank) for number in numbers]
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            made = [pool.submit(connect, places[peer], self.rank, number) for peer, number in outgoing]
            found = listener.accept([(peer, number) for peer in range(self.rank + 1, self.size) for number in numbers])
            found.update(zip(outgoing, [one.result() for one in made], strict=True))
        for one in found.values():
            _prepare(one)
        return found

    def send(self, data: memoryview, to: int) -> Callable[[], None]:
        """Start sending; what is returned waits until ``data`` may be used again. It raises OSError."""
        message = Message(rest=data)
        self._carrier.send(self._turn(self._sent, to), message)
        return lambda: message.wait(self._patience)

    def receive(
        self, into: memoryview, source: int, measure: Callable[[memoryview], int] | None = None
    ) -> Callable[[], None]:  # fmt: skip
        """Take the next message's turn; what is returned waits for it. It raises OSError.

        With ``measure``, the message has the size that this finds in its first HEAD bytes; one that does not fit into ``into``,
        or that ``measure`` refuses, raises WireError, and the connection is of no more use.

        With one connection the thread that waits receives by itself. With several, all are read at any time, or the windows of
        those that are not would close.
        """
        one = self._turn(self._received, source)
        message = Message(rest=into, measure=measure)
        if self.streams > 1:
            self._carrier.receive(one, message)
            return lambda: message.wait(self._patience)

        def wait() -> None:
            look = self._patience.begin(len(into))
            while not _take(one, message, socket.MSG_WAITALL):
                look(len(message.rest))
            message.wait(self._patience)

        return wait

    def _turn(self, counts: list[int], peer: int) -> socket.socket:
        streams = self._peers[peer]
        counts[peer] += 1
        return streams[counts[peer] % len(streams)]

    def close(self) -> None:
        self._carrier.stop()
        for one in (one for peer in self._peers for one in peer):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # else a thread that waits for it would wait on
            one.close()


class _Carrier:
    """Moves messages in order, on many connections, as there is room or data. Its thread starts with the first that waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._out: dict[socket.socket, deque[Message]] = {}
        self._in: dict[socket.socket, deque[Message]] = {}
        self._selector = selectors.DefaultSelector()
        self._alarm, self._wake = socket.socketpair()
        self._selector.register(self._alarm, selectors.EVENT_READ)
        self._watched: dict[socket.socket, int] = {}
        self._thread: threading.Thread | None = None

    def send(self, one: socket.socket, message: Message) -> None:
        with self._lock:
            queue = self._out.setdefault(one, deque())
            if not queue and _push(one, message):
                return
            queue.append(message)
        self._look_after(one, selectors.EVENT_WRITE)

    def receive(self, one: socket.socket, message: Message) -> None:
        with self._lock:
            self._in.setdefault(one, deque()).append(message)
        self._look_after(one, selectors.EVENT_READ)

    def _look_after(self, one: socket.socket, event: int) -> None:
        if self._watched.get(one, 0) & event:
            return
        if self._thread is None:
            target = weakref.WeakMethod(self._serve)
            self._thread = threading.Thread(target=_serve, args=(self._selector, target), name="thinwire-io", daemon=True)
            self._thread.start()
        self._wake.send(b"w")

    def _serve(self, ready: list[tuple[socket.socket, int]]) -> bool:
        """Move what can be moved; False to end."""
        for one, events in ready:
            if one is self._alarm:
                if b"s" in self._alarm.recv(4096):
                    return False
                continue
            with self._lock:
                for queue, move in ((self._out.get(one), _push), (self._in.get(one), _take)):
                    if queue and events & (selectors.EVENT_WRITE if move is _push else selectors.EVENT_READ):
                        while queue and move(one, queue[0]):
                            queue.popleft()
        with self._lock:
            self._watch()
        return True

    def _watch(self) -> None:
        wanted: dict[socket.socket, int] = {}
        for queues, event in ((self._out, selectors.EVENT_WRITE), (self._in, selectors.EVENT_READ)):
            for one, queue in queues.items():
                if queue:
                    wanted[one] = wanted.get(one, 0) | event
        for one in wanted.keys() | self._watched.keys():
            before, now = self._watched.get(one, 0), wanted.get(one, 0)
            if not before:
                self._selector.register(one, now)
            elif not now:
                self._selector.unregister(one)
            elif before != now:
                self._selector.modify(one, now)
        self._watched = wanted

    def stop(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            with contextlib.suppress(OSError):
                self._wake.send(b"s")
            self._thread.join(1.0)
        self._selector.close()
        self._alarm.close()
        self._wake.close()


def _serve(selector: selectors.BaseSelector, target: weakref.WeakMethod[Callable[..., bool]]) -> None:
    while True:
        ready = [(key.fileobj, events) for key, events in selector.select()]
        serve = target()
        if serve is None or not serve(ready):
            return
        del serve


def _push(one: socket.socket, message: Message) -> bool:
    """Hand over what fits; True once all of it is, or the connection is broken."""
    try:
        while message.rest:
            message.rest = message.rest[one.send(message.rest, socket.MSG_DONTWAIT) :]
    except BlockingIOError:
        return False
    except OSError as error:
        message.error = error
    message.done.set()
    return True


def _take(one: socket.socket, message: Message, flags: int = socket.MSG_DONTWAIT) -> bool:
    """Receive what is there, or with MSG_WAITALL what comes in a tick; True once it is all, or the connection is broken."""
    try:
        while message.goes_on():
            count = one.recv_into(message.rest, len(message.rest), flags)
            if not count:
                raise ConnectionResetError("the other side closed the connection: it has ended or was killed")
            message.rest = message.rest[count:]
            if flags == socket.MSG_WAITALL and message.rest:
                return False  # a tick has passed with a part only
    except BlockingIOError:
        return False
    except (OSError, WireError) as error:
        message.error = error
    message.done.set()
    return True


def _prepare(one: socket.socket) -> None:
    """No delay for small messages, and an end to waiting for a peer whose machine has gone."""
    one.settimeout(None)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(1e6 * _TICK_SECONDS)))
    for name, value in (("KEEPIDLE", 30), ("KEEPINTVL", 15), ("KEEPCNT", 6), ("USER_TIMEOUT", 1000 * _GONE_SECONDS)):
        if hasattr(socket, f"TCP_{name}"):  # Linux
            one.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)


def _exactly(one: socket.socket, size: int) -> bytes:
    data, end = b"", time.monotonic() + _GREETING_SECONDS
    while len(data) < size:
        part = one.recv(size - len(data))
        if not part or time.monotonic() > end:
            raise OSError("no greeting")
        data += part
    return data
