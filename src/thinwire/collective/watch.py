"""Who is still there: a connection to every peer on which each says that it lives, how far it is, and whom it lost.

A killed process closes its connections, which the kernel tells at once; a frozen one and a cut network are silent. Ranks
that wait for one another all stop when one of them is lost, so the one that a rank waits for is often not the one to blame:
a rank that fails says whom it lost before it ends, and where everybody is late, the silent one or the one furthest behind
is named.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from thinwire.errors import CollectiveTimeout, PeerLost, TransportError

_HEAD: Final = struct.Struct("<BIQH")
_BEAT, _LOST, _BYE = 1, 2, 3
_MOST_TEXT: Final = 400
_SETTLE_SECONDS: Final = 0.3
"""A rank's own last word may be behind the news that its connections are closed."""
_GRACE_SECONDS: Final = 2.0


class _Peer:
    """What is known of one rank."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank, self.connection = rank, connection
        self.heard = time.monotonic()
        self.sequence = 0
        self.inbox = bytearray()
        self.left: str | None = None
        self.ended: float | None = None


class Watch:
    """One rank's view of its peers. ``failure`` is the first loss that became known; it stays."""

    def __init__(self, rank: int, timeout: float) -> None:
        self.rank, self.timeout = rank, timeout
        self.operation = "set-up"
        self.sequence = 0
        self.failure: tuple[type[TransportError], tuple[int, ...], str] | None = None
        self._peers: dict[int, _Peer] = {}
        self._lock = threading.Lock()
        self._beat = min(1.0, timeout / 8)
        self._selector = selectors.DefaultSelector()
        self._closed = False

    def start(self, connections: dict[int, socket.socket]) -> None:
        """Watch these peers; the thread ends with the object."""
        for rank, one in connections.items():
            one.setblocking(False)
            self._peers[rank] = _Peer(rank, one)
            self._selector.register(one, selectors.EVENT_READ, self._peers[rank])
        threading.Thread(target=_serve, args=(weakref.ref(self), self._beat), name="thinwire-watch", daemon=True).start()

    def begin(self, operation: str) -> None:
        """A collective starts; errors name it, and peers learn how far this rank is."""
        self.operation = operation
        self.sequence += 1

    def check(self, what: str = "0 bytes, since it was lost before") -> None:
        """Raises the failure that is known; ``what`` this rank was waiting for."""
        if self.failure is not None:
            raise self._error(what)

    def lost(self, what: str, peer: int | None, error: BaseException) -> TransportError:
        """The error for a connection to ``peer`` that broke: the rank that was lost first, if anybody knows it."""
        self._until(lambda: self.failure is not None, _GRACE_SECONDS)
        if self.failure is None:
            self._fail(PeerLost, [] if peer is None else [peer], f"{error}")
        return self._error(what)

    def broken(self, what: str, error: BaseException) -> TransportError:
        """The error for a collective of torch's that failed, which does not say who is to blame."""
        self._until(lambda: self.failure is not None, _GRACE_SECONDS)
        if self.failure is None and "timed out" in str(error).lower():
            return self.late(what, None)
        return self.lost(what, None, error)

    def late(self, what: str, peer: int | None) -> TransportError:
        """The error for a peer from which nothing came in time: the silent ranks, or those furthest behind, or it."""
        if self.failure is None:
            now, others = time.monotonic(), list(self._peers.values())
            silent = [one.rank for one in others if now - one.heard > self.timeout / 2 and one.left is None]
            least = min((one.sequence for one in others), default=self.sequence)
            behind = [one.rank for one in others if one.sequence == least < self.sequence]
            if silent:
                why = f"nothing was heard of it for {self.timeout:g} s: frozen, or cut off from the network"
            elif behind:
                why = f"it lives, but is behind: at its collective {least}, this rank at {self.sequence}"
            else:
                why = f"nothing came for {self.timeout:g} s"
            self._fail(CollectiveTimeout, silent or behind or ([] if peer is None else [peer]), why)
        return self._error(what)

    def _error(self, what: str) -> TransportError:
        assert self.failure is not None
        kind, ranks, why = self.failure
        names = ", ".join(map(str, ranks)) or "unknown"
        text = f"rank {self.rank} lost rank {names} in {self.operation}: {why}; waiting for {what}"
        return kind(text, ranks=ranks, operation=self.operation)

    def _fail(self, kind: type[TransportError], ranks: list[int], why: str) -> None:
        """The first failure is the one that counts; peers hear of it."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = (kind, tuple(ranks), why)
        for one in ranks[:1]:
            self._tell(_LOST, one, why)

    def close(self) -> None:
        """Say goodbye. With an exception on its way out of this process, the others hear which."""
        if self._closed:
            return
        self._closed = True
        error = getattr(sys, "last_value", None)
        self._tell(_BYE, self.rank, "" if error is None else f"{type(error).__name__}: {error}")
        for one in self._peers.values():
            with contextlib.suppress(OSError):
                one.connection.shutdown(socket.SHUT_RDWR)
            one.connection.close()

    def _tell(self, kind: int, rank: int, text: str = "") -> None:
        data = text.encode(errors="replace")[:_MOST_TEXT]
        message = _HEAD.pack(kind, rank, self.sequence, len(data)) + data
        for one in list(self._peers.values()):
            with contextlib.suppress(OSError):
                one.connection.send(message)

    def _until(self, done: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._peers and not done() and time.monotonic() < end:
            time.sleep(0.02)

    def serve(self) -> bool:
        """One round of listening; False once closed."""
        if self._closed:
            return False
        try:
            ready = self._selector.select(min(self._beat, _SETTLE_SECONDS / 2))
        except (OSError, ValueError):
            return False
        for key, _ in ready:
            self._hear(key.data)
        self._conclude()
        return True

    def beat(self) -> None:
        self._tell(_BEAT, self.rank)

    def _hear(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(4096)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            data, peer.left = b"", peer.left or (None if self._closed else f"{error}")
        if not data:
            peer.ended = time.monotonic()
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(peer.connection)
            return
        peer.heard = time.monotonic()
        peer.inbox += data
        while len(peer.inbox) >= _HEAD.size:
            kind, rank, sequence, length = _HEAD.unpack_from(peer.inbox)
            if length > _MOST_TEXT or kind not in (_BEAT, _LOST, _BYE):
                peer.ended, peer.left = time.monotonic(), "it sent what no rank of thinwire would"
                self._selector.unregister(peer.connection)
                return
            if len(peer.inbox) < _HEAD.size + length:
                return
            text = bytes(peer.inbox[_HEAD.size : _HEAD.size + length]).decode(errors="replace")
            del peer.inbox[: _HEAD.size + length]
            self._understand(peer, kind, rank, sequence, text)

    def _understand(self, peer: _Peer, kind: int, rank: int, sequence: int, text: str) -> None:
        peer.sequence = sequence
        if kind == _BYE:
            peer.left = text
        elif kind == _LOST:
            me = rank == self.rank
            why = f"rank {peer.rank} gave up on this rank ({text})" if me else f"{text} (rank {peer.rank} says)"
            self._fail(PeerLost, [peer.rank if me else rank], why)

    def _conclude(self) -> None:
        """Peers whose connection has ended without a goodbye, or with an exception, are lost."""
        now = time.monotonic()
        for one in self._peers.values():
            if one.ended is None or now - one.ended < _SETTLE_SECONDS or one.left == "":
                continue
            why = "its connection closed: it has ended or was killed" if one.left is None else f"it ended with {one.left}"
            self._fail(PeerLost, [one.rank], why)


def _serve(owner: weakref.ref[Watch], beat: float) -> None:
    last = 0.0
    while (watch := owner()) is not None and watch.serve():
        if time.monotonic() - last >= beat:
            watch.beat()
            last = time.monotonic()
        del watch
