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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from thinwire.errors import TransportError

_HELLO: Final = struct.Struct("<16sII")
_SET_UP_SECONDS: Final = 60.0
_SILENCE_SECONDS: Final = 1800
_GONE_SECONDS: Final = 120
_MOST_AT_ONCE: Final = 32


@dataclasses.dataclass(kw_only=True)
class Message:
    """What is left of a message on its way into the kernel's buffer, or out of it."""

    rest: memoryview
    done: threading.Event = dataclasses.field(default_factory=threading.Event)
    error: OSError | None = None

    def wait(self) -> None:
        """Until all of it has moved. Raises OSError."""
        self.done.wait()
        if self.error is not None:
            raise self.error


class Listener:
    """Where the other ranks of a group reach this one. The token keeps strangers out."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.token = os.urandom(16)
        self._socket = socket.create_server((address, 0), family=family, backlog=1024)
        self._socket.settimeout(_SET_UP_SECONDS)
        self.place = f"{address} {self._socket.getsockname()[1]} {self.token.hex()}"

    def accept(self, count: int) -> dict[tuple[int, int], socket.socket]:
        """``count`` connections by rank and number. Raises TransportError if they do not come in a minute."""
        found: dict[tuple[int, int], socket.socket] = {}
        while len(found) < count:
            try:
                one, _ = self._socket.accept()
            except TimeoutError:
                raise TransportError(f"{count - len(found)} connections did not come within {_SET_UP_SECONDS:g} s") from None
            with contextlib.suppress(OSError):
                one.settimeout(_SET_UP_SECONDS)
                token, rank, number = _HELLO.unpack(_exactly(one, _HELLO.size))
                if token == self.token:
                    found[rank, number] = one
                    continue
            one.close()
        return found

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

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._peers: list[list[socket.socket]] = [[] for _ in range(size)]
        self._sent, self._received = [0] * size, [0] * size
        self._carrier = _Carrier()

    @property
    def streams(self) -> int:
        return max(1, *(len(one) for one in self._peers))

    def open(self, places: list[str], listener: Listener, count: int) -> None:
        """Have ``count`` connections to every peer: those to lower ranks are made here, the others come."""
        numbers = range(self.streams if self._peers[self.rank - 1] else 0, count)
        outgoing = [(peer, number) for peer in range(self.rank) for number in numbers]
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            made = [pool.submit(connect, places[peer], self.rank, number) for peer, number in outgoing]
            found = listener.accept((self.size - 1 - self.rank) * len(numbers))
            found.update(zip(outgoing, [one.result() for one in made], strict=True))
        for (peer, _), one in sorted(found.items()):
            _prepare(one)
            self._peers[peer].append(one)

    def send(self, data: memoryview, to: int) -> Callable[[], None]:
        """Start sending; what is returned waits until ``data`` may be used again. It raises OSError."""
        message = Message(rest=data)
        self._carrier.send(self._turn(self._sent, to), message)
        return message.wait

    def receive(self, into: memoryview, source: int) -> Callable[[], None]:
        """Take the next message's turn; what is returned waits for it. It raises OSError.

        With one connection the thread that waits receives by itself. With several, all are read at any time, or the windows of
        those that are not would close.
        """
        one = self._turn(self._received, source)
        message = Message(rest=into)
        if self.streams > 1:
            self._carrier.receive(one, message)
            return message.wait

        def wait() -> None:
            while not _take(one, message, socket.MSG_WAITALL):
                pass
            message.wait()

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
    """Receive what is there, or all with MSG_WAITALL; True once all of it is, or the connection is broken."""
    try:
        while message.rest:
            count = one.recv_into(message.rest, len(message.rest), flags)
            if not count:
                raise ConnectionResetError("the other side closed the connection: it has ended or was killed")
            message.rest = message.rest[count:]
    except BlockingIOError as error:
        if flags == socket.MSG_DONTWAIT:
            return False
        message.error = TimeoutError(f"nothing came for {_SILENCE_SECONDS} s ({error.strerror})")
    except OSError as error:
        message.error = error
    message.done.set()
    return True


def _prepare(one: socket.socket) -> None:
    """No delay for small messages, and an end to waiting for a peer whose machine has gone."""
    one.settimeout(None)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _SILENCE_SECONDS, 0))
    for name, value in (("KEEPIDLE", 30), ("KEEPINTVL", 15), ("KEEPCNT", 6), ("USER_TIMEOUT", 1000 * _GONE_SECONDS)):
        if hasattr(socket, f"TCP_{name}"):  # Linux
            one.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)


def _exactly(one: socket.socket, size: int) -> bytes:
    data, end = b"", time.monotonic() + _SET_UP_SECONDS
    while len(data) < size:
        part = one.recv(size - len(data))
        if not part or time.monotonic() > end:
            raise OSError("no greeting")
        data += part
    return data
