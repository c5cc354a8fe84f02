"""Bytes between ranks: the only place that calls torch.distributed.

thinwire talks on process groups and connections of its own, so that its messages never mix with those of the training script. On
the CPU a step is a pair of messages on TCP connections (sockets.py), one each way, since gloo's own all-to-all is half duplex; on
NCCL it is one all-to-all of bytes. Agreements, and all-reduces without compression, are gloo's.
"""

from __future__ import annotations

import atexit
import gc
import ipaddress
import logging
import math
import os
import struct
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from thinwire.collective.base import Link, Pending
from thinwire.collective.sockets import Connections, Listener, Patience, local_address
from thinwire.collective.watch import Watch
from thinwire.errors import CollectiveTimeout, ConfigError, PeerLost, TransportError, WireError

Group = Any
"""A torch.distributed process group, or None for the default one."""

_transports: Final[weakref.WeakKeyDictionary[Any, Transport]] = weakref.WeakKeyDictionary()


MAX_STREAMS: Final = 64
PINGS: Final = 4
SET_UP_SECONDS: Final = 60.0
MOST_TEXT: Final = 1 << 26
LEAST_PROBE, MOST_PROBE = 1 << 16, 1 << 22
LONG_ENOUGH: Final = 0.02
LONG_ROUND_TRIP: Final = 0.01
_TRADES: Final = 4
_met: Final[dict[str, int]] = {}
"""How often each group has met, by its name."""


class _Works:
    """torch works that end together; a failure says how many bytes, and which peer if anybody knows."""

    def __init__(self, label: str, works: Sequence[Any], watch: Watch) -> None:
        self._label, self._works, self._watch = label, works, watch

    def wait(self) -> None:
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            raise self._watch.broken(self._label, error) from error


class _Exchange:
    """A message each way; a failure says which peer and how many bytes."""

    def __init__(self, watch: Watch, halves: Sequence[tuple[str, int, Callable[[], None]]]) -> None:
        self._watch, self._halves = watch, halves

    def wait(self) -> None:
        for what, peer, half in self._halves:
            try:
                half()
            except TransportError:
                self._watch.check(what)
                raise
            except WireError as error:
                raise TransportError(f"{what}: {error}", ranks=(peer,), operation=self._watch.operation) from error
            except TimeoutError:
                raise self._watch.late(what, peer) from None
            except OSError as error:
                raise self._watch.lost(what, peer, error) from error


class _Landing:
    """Messages that arrive on another device and are copied to their buffers when waited for."""

    def __init__(self, works: _Works, moves: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._works, self._moves = works, moves

    def wait(self) -> None:
        self._works.wait()
        for source, target in self._moves:
            target.copy_(source)


class Transport:
    """The ranks of one group, over a process group of thinwire's own with the same members."""

    def __init__(
        self, group: Group = None, style: str | None = None, streams: int | None = None, timeout: float | None = None
    ) -> None:  # fmt: skip
        """``style`` "sockets" or "all_to_all"; None takes sockets, except on NCCL, which gets its all-to-all.

        ``streams`` connections a pair of ranks; None lets a probe of the round trip choose. ``timeout`` seconds without a byte
        are the end; None takes the group's. Raises CollectiveTimeout with the ranks that did not come.
        """
        require_initialized()
        base = dist.group.WORLD if group is None else group
        self.members: list[int] = dist.get_process_group_ranks(base)
        self.rank, self.size = dist.get_rank(base), dist.get_world_size(base)
        backend = str(dist.get_backend(base))
        self.timeout = _timeout_of(base) if timeout is None else timeout
        self.watch = Watch(self.rank, self.timeout)
        weakref.finalize(self, self.watch.close)
        _meet(base, self.rank, self.size, self.timeout)
        everyone = len(self.members) == dist.get_world_size()
        limit = timedelta(seconds=self.timeout)
        self._control = _own_group(self.members, everyone, "gloo", limit)
        # "cpu:gloo,cuda:nccl" groups and plain gloo move bytes on the CPU, where the kernels are.
        self._bytes = _own_group(self.members, everyone, "nccl", limit) if backend == "nccl" else self._control
        self._device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self.style = style or ("all_to_all" if backend == "nccl" else "sockets")
        self._connections = Connections(self.rank, self.size, Patience(self.timeout, self.watch.check))
        weakref.finalize(self, self._connections.close)
        self.link = self._connect(streams) if self.style == "sockets" and self.size > 1 else Link(rate=math.inf, round_trip=0.0)

    @property
    def streams(self) -> int:
        """Connections between two ranks."""
        return self._connections.streams

    def _connect(self, streams: int | None) -> Link:
        """Connect all pairs, measure the way to the next rank, and open as many connections as it needs."""
        listener = Listener(_own_address(), min(self.timeout, SET_UP_SECONDS))
        _warn_if_public(listener.place)
        try:
            places = self.gather_text(listener.place)
            self.watch.start(self._connections.watches(places, listener))
            self._connections.open(places, listener, 1)
            round_trip = self._worst(min(self._ping() for _ in range(PINGS)))
            self._connections.open(places, listener, streams_for(round_trip) if streams is None else streams)
        finally:
            listener.close()
        return Link(rate=self._rate(round_trip), round_trip=round_trip)

    def _rate(self, round_trip: float) -> float:
        """Bytes/s each way at once, from messages that grow until one takes long enough to be its bytes."""
        size = LEAST_PROBE if round_trip < LONG_ROUND_TRIP else LEAST_PROBE * self.streams
        while True:
            # Several at a time: a rank that starts late finds bytes that came before.
            seconds = self._worst(sum(self._trade(size) for _ in range(_TRADES)))
            if size >= MOST_PROBE or round_trip >= LONG_ROUND_TRIP or seconds > LONG_ENOUGH:
                return _TRADES * size / max(seconds - round_trip / 2, 1e-9)
            size *= 4

    def _ping(self) -> float:
        """Seconds of a byte to the next rank and back, while the one before does the same."""
        data, landed = torch.zeros(2, 1, dtype=torch.uint8)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        start = time.perf_counter()
        self.exchange(data, after, landed, before).wait()
        self.exchange(data, before, landed, after).wait()
        return time.perf_counter() - start

    def _trade(self, size: int) -> float:
        """Seconds in which ``size`` bytes go to the next rank over all connections and as many come from the one before."""
        data, landed = (torch.zeros(self.streams, size // self.streams, dtype=torch.uint8) for _ in range(2))
        to, source = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        start = time.perf_counter()
        for one in [self.exchange(data[k], to, landed[k], source) for k in range(self.streams)]:
            one.wait()
        return time.perf_counter() - start

    def _worst(self, seconds: float) -> float:
        """The largest of all ranks' values."""
        return max(struct.unpack("<d", one)[0] for one in self.gather_bytes(struct.pack("<d", seconds)))

    @property
    def fixed_sizes(self) -> bool:
        """Whether a receiver must know the bytes of a message, as for NCCL's all-to-all; else it may tell them itself."""
        return self.style == "all_to_all"

    def exchange(
        self, send: torch.Tensor | None, to: int, receive: torch.Tensor | None, source: int,
        measure: Callable[[memoryview], int] | None = None,
    ) -> Pending:  # fmt: skip
        """Start sending bytes to one rank and receiving from another (ranks of this group); None moves nothing.

        ``measure``, which ``fixed_sizes`` rules out, finds in the first sockets.HEAD bytes of what arrives how many it has; if
        ``receive`` has fewer, waiting raises TransportError.
        Every rank calls this equally often, since an all-to-all needs all of them; what was started first is waited for first.
        Both buffers belong to the exchange until it was waited for.
        """
        if self.style == "all_to_all":
            return self._exchange_all_to_all(send, to, receive, source)
        self.watch.check()
        halves: list[tuple[str, int, Callable[[], None]]] = []
        if receive is not None:
            half = self._connections.receive(_view(receive), source, measure)
            at_most = "up to " if measure else ""
            halves.append((f"{at_most}{receive.numel()} bytes from rank {source}", source, half))
        if send is not None:
            half = self._connections.send(_view(send), to)
            halves.append((f"{send.numel()} bytes to rank {to}", to, half))
        return _Exchange(self.watch, halves)

    def _exchange_all_to_all(
        self, send: torch.Tensor | None, to: int, receive: torch.Tensor | None, source: int
    ) -> Pending:  # fmt: skip
        empty = torch.empty(0, dtype=torch.uint8, device=self._device)
        sent = empty if send is None else send.to(self._device)
        landed = empty if receive is None else torch.empty(receive.numel(), dtype=torch.uint8, device=self._device)
        out_sizes, in_sizes = [0] * self.size, [0] * self.size
        in_sizes[to], out_sizes[source] = sent.numel(), landed.numel()
        work = dist.all_to_all_single(landed, sent, out_sizes, in_sizes, group=self._bytes, async_op=True)
        works = _Works(f"{sent.numel()} bytes to rank {to}, {landed.numel()} bytes from rank {source}", [work], self.watch)
        return _Landing(works, [] if receive is None else [(landed, receive)])

    def all_reduce_sum(self, tensor: torch.Tensor) -> Pending:
        """Start torch's own all-reduce, in place and uncompressed, on the CPU."""
        self.watch.check()
        label = f"an all-reduce of {tensor.numel() * tensor.element_size()} bytes"
        try:
            work = dist.all_reduce(tensor, group=self._control, async_op=True)
        except RuntimeError as error:
            raise self.watch.broken(label, error) from error
        return _Works(label, [work], self.watch)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """What every rank gave, by rank; all give the same number of bytes. No pickle."""
        self.watch.check()
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        try:
            dist.all_gather(parts, mine, group=self._control)
        except RuntimeError as error:
            raise self.watch.broken(f"{len(data)} bytes from every peer", error) from error
        return [part.numpy().tobytes() for part in parts]

    def gather_text(self, text: str) -> list[str]:
        """What every rank says, by rank; texts may differ in length."""
        data = text.encode()
        sizes = [int.from_bytes(size, "little") for size in self.gather_bytes(len(data).to_bytes(8, "little"))]
        if max(sizes) > MOST_TEXT:
            raise TransportError(f"rank {sizes.index(max(sizes))} announces {max(sizes)} bytes of text; allowed: {MOST_TEXT}")
        padded = self.gather_bytes(data.ljust(max(sizes), b"\0")) if max(sizes) else [b""] * self.size
        return [part[:size].decode(errors="replace") for part, size in zip(padded, sizes, strict=True)]


def _view(buffer: torch.Tensor) -> memoryview:
    array: Any = buffer.numpy()
    return memoryview(array)


def streams_for(round_trip: float) -> int:
    """Connections for a round trip in seconds, so that windows of 4 MB and their growth after a pause fill 1 Gb/s and more."""
    return next((count for limit, count in ((0.004, 1), (0.012, 2), (0.03, 4), (0.06, 8)) if round_trip < limit), 16)


def check_streams(streams: int | None) -> int | None:
    """Raises ConfigError for a number of connections that cannot be."""
    if streams is not None and (isinstance(streams, bool) or not isinstance(streams, int) or not 1 <= streams <= MAX_STREAMS):
        raise ConfigError(f"streams={streams!r} is out of range; allowed: 1 to {MAX_STREAMS}, or None for a probe to choose")
    return streams


def check_timeout(timeout: float | None) -> float | None:
    """Raises ConfigError for a number of seconds that cannot be."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 1 <= timeout < 1e7):
        raise ConfigError(f"timeout={timeout!r} is out of range; allowed: seconds from 1 to 1e7, or None for the process group's")
    return timeout


def _own_address() -> str:
    """The address that gloo would take, which is what the other ranks can reach."""
    host = getattr(distributed_c10d._get_default_store(), "host", None)  # pyright: ignore[reportPrivateUsage]  no public way to it
    return local_address(host or os.environ.get("MASTER_ADDR"), os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0])


def _own_group(members: list[int], everyone: bool, backend: str, limit: timedelta) -> Group:
    # Only the members of a subgroup may be here, so they must not wait for the others.
    try:
        return dist.new_group(members, timeout=limit, backend=backend, use_local_synchronization=not everyone)
    except RuntimeError as error:
        raise TransportError(f"set-up of a {backend} group of ranks {members}: {error}", operation="set-up") from error


def _timeout_of(group: Any) -> float:
    """The group's own timeout in seconds, or torch's default."""
    device = torch.device("cuda" if str(dist.get_backend(group)) == "nccl" else "cpu")
    try:
        return float(group._get_backend(device).options._timeout.total_seconds())
    except (AttributeError, RuntimeError):
        return distributed_c10d.default_pg_timeout.total_seconds()


def _meet(group: Any, rank: int, size: int, timeout: float) -> None:
    """Wait in torch's store until every rank of the group is here, so that those that are not can be named."""
    number = _met[group.group_name] = _met.get(group.group_name, -1) + 1
    keys = [f"thinwire/{group.group_name}/{number}/{one}" for one in range(size)]
    try:
        store = distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]  no public way to it
        store.set(keys[rank], "here")
        try:
            store.wait(keys, timedelta(seconds=timeout))
        except dist.DistStoreError:
            missing = tuple(one for one in range(size) if not store.check([keys[one]]))
            raise CollectiveTimeout(
                f"rank {rank} lost rank {', '.join(map(str, missing))} in set-up: 0 bytes came; it did not start, or "
                f"did not call the same, within {timeout:g} s",
                ranks=missing,
                operation="set-up",
            ) from None
    except dist.DistNetworkError as error:
        raise PeerLost(
            f"rank {rank} in set-up: torch's store has gone, so its host has ended: {error}", operation="set-up"
        ) from error


def _warn_if_public(place: str) -> None:
    address, port, _ = place.split()
    if ipaddress.ip_address(address).is_global:
        logging.getLogger("thinwire").warning(
            f"listens at {address} port {port}, which is not a private address: what is sent is neither encrypted nor "
            "authenticated (docs/security.md)"
        )


@atexit.register
def _close() -> None:
    """Connections end before the interpreter does, or their threads would find it gone."""
    _transports.clear()
    gc.collect()


def require_initialized() -> None:
    """Raises ConfigError if this process belongs to no process group."""
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError("no process group; call torch.distributed.init_process_group first (torchrun sets what it needs)")


def of(group: Group = None, streams: int | None = None, timeout: float | None = None) -> Transport:
    """The transport of a group, made on first use: then, every rank of the group must call this. Raises ConfigError
    without a process group, on a rank that is not in ``group``, or if the group has other ``streams`` or ``timeout`` already."""
    require_initialized()
    base = dist.group.WORLD if group is None else group
    if base is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(base) < 0:
        raise ConfigError(f"group does not contain this rank ({dist.get_rank()}); call this on its members only")
    if base not in _transports:
        _transports[base] = Transport(base, streams=check_streams(streams), timeout=check_timeout(timeout))
    made = _transports[base]
    if streams is not None and made.style == "sockets" and made.size > 1 and made.streams != streams:
        raise ConfigError(f"streams={streams} but the group has {made.streams} already; allowed: {made.streams} or None")
    if timeout is not None and timeout != made.timeout:
        raise ConfigError(f"timeout={timeout} but the group has {made.timeout:g} s already; allowed: {made.timeout:g} or None")
    return made


def gather_bytes(data: bytes, group: Group = None) -> list[bytes]:
    """:meth:`Transport.gather_bytes` of the group's transport."""
    return of(group).gather_bytes(data)
