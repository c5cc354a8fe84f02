"""Bytes between ranks: the only place that calls torch.distributed.

thinwire talks on process groups of its own, so that its messages never mix with those of the training script. On gloo a
step is a pair of point-to-point messages, one each way, since gloo's own all-to-all is half duplex; on NCCL it is one
all-to-all of bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from thinwire.errors import ConfigError, TransportError

Group = Any
"""A torch.distributed process group, or None for the default one."""

_transports: Final[weakref.WeakKeyDictionary[Any, Transport]] = weakref.WeakKeyDictionary()


class Pending(Protocol):
    """Something that was started and can be waited for."""

    def wait(self) -> None: ...


class _Works:
    """torch works that end together; a failure says which peer and how many bytes."""

    def __init__(self, label: str, works: Sequence[Any]) -> None:
        self._label, self._works = label, works

    def wait(self) -> None:
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            raise TransportError(f"{self._label}: {error}") from error


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

    def __init__(self, group: Group = None, style: str | None = None) -> None:
        """``style`` "pairs" or "all_to_all"; None takes pairs, except on NCCL, which gets its all-to-all."""
        require_initialized()
        base = dist.group.WORLD if group is None else group
        self.members: list[int] = dist.get_process_group_ranks(base)
        self.rank, self.size = dist.get_rank(base), dist.get_world_size(base)
        backend = str(dist.get_backend(base))
        everyone = len(self.members) == dist.get_world_size()
        self._control = _own_group(self.members, everyone, "gloo")
        # "cpu:gloo,cuda:nccl" groups and plain gloo move bytes on the CPU, where the kernels are.
        self._bytes = _own_group(self.members, everyone, "nccl") if backend == "nccl" else self._control
        self._device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self.style = style or ("all_to_all" if backend == "nccl" else "pairs")

    def exchange(
        self, send: torch.Tensor | None, to: int, receive: torch.Tensor | None, source: int
    ) -> Pending:  # fmt: skip
        """Start sending bytes to one rank and receiving from another (ranks of this group); None moves nothing.

        Every rank calls this equally often, since an all-to-all needs all of them.
        Both buffers belong to the exchange until it was waited for.
        """
        if self.style == "all_to_all":
            return self._exchange_all_to_all(send, to, receive, source)
        works: list[Any] = []
        if receive is not None:
            works.append(dist.irecv(receive, src=self.members[source], group=self._bytes))
        if send is not None:
            works.append(dist.isend(send, dst=self.members[to], group=self._bytes))
        label = f"rank {self.rank}: {_size(send)} bytes to rank {to}, {_size(receive)} bytes from rank {source}"
        return _Works(label, works)

    def _exchange_all_to_all(
        self, send: torch.Tensor | None, to: int, receive: torch.Tensor | None, source: int
    ) -> Pending:  # fmt: skip
        empty = torch.empty(0, dtype=torch.uint8, device=self._device)
        sent = empty if send is None else send.to(self._device)
        landed = empty if receive is None else torch.empty(receive.numel(), dtype=torch.uint8, device=self._device)
        out_sizes, in_sizes = [0] * self.size, [0] * self.size
        in_sizes[to], out_sizes[source] = sent.numel(), landed.numel()
        work = dist.all_to_all_single(landed, sent, out_sizes, in_sizes, group=self._bytes, async_op=True)
        works = _Works(f"rank {self.rank}: all-to-all with rank {to} and rank {source}", [work])
        return _Landing(works, [] if receive is None else [(landed, receive)])

    def all_reduce_sum(self, tensor: torch.Tensor) -> Pending:
        """Start torch's own all-reduce, in place and uncompressed, on the CPU."""
        work = dist.all_reduce(tensor, group=self._control, async_op=True)
        return _Works(f"rank {self.rank}: all-reduce of {tensor.numel()} elements", [work])

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """What every rank gave, by rank; all give the same number of bytes. No pickle."""
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(parts, mine, group=self._control)
        return [part.numpy().tobytes() for part in parts]

    def gather_text(self, text: str) -> list[str]:
        """What every rank says, by rank; texts may differ in length."""
        data = text.encode()
        sizes = [int.from_bytes(size, "little") for size in self.gather_bytes(len(data).to_bytes(8, "little"))]
        padded = self.gather_bytes(data.ljust(max(sizes), b"\0")) if max(sizes) else [b""] * self.size
        return [part[:size].decode() for part, size in zip(padded, sizes, strict=True)]


def _size(buffer: torch.Tensor | None) -> int:
    return 0 if buffer is None else buffer.numel()


def _own_group(members: list[int], everyone: bool, backend: str) -> Group:
    # Only the members of a subgroup may be here, so they must not wait for the others.
    return dist.new_group(members, backend=backend, use_local_synchronization=not everyone)


def require_initialized() -> None:
    """Raises ConfigError if this process belongs to no process group."""
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError("no process group; call torch.distributed.init_process_group first (torchrun sets what it needs)")


def of(group: Group = None) -> Transport:
    """The transport of a group, made on first use: then, every rank of the group must call this. Raises ConfigError
    without a process group, or on a rank that is not in ``group``."""
    require_initialized()
    base = dist.group.WORLD if group is None else group
    if base is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(base) < 0:
        raise ConfigError(f"group does not contain this rank ({dist.get_rank()}); call this on its members only")
    if base not in _transports:
        _transports[base] = Transport(base)
    return _transports[base]


def gather_bytes(data: bytes, group: Group = None) -> list[bytes]:
    """:meth:`Transport.gather_bytes` of the group's transport."""
    return of(group).gather_bytes(data)
