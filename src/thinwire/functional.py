"""``all_reduce``, ``reduce_scatter`` and ``all_gather`` on tensors: torch.distributed's calls with a codec."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

import torch

from thinwire.collective.handshake import agree
from thinwire.collective.legs import Wire, WireLike, resolve
from thinwire.collective.transport import Group, Transport
from thinwire.collective.two_shot import Op
from thinwire.errors import ConfigError, unknown_name
from thinwire.overlap import worker_of
from thinwire.reducer import Reducer

_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
_reducers: Final[weakref.WeakKeyDictionary[Transport, dict[Wire, Reducer]]] = weakref.WeakKeyDictionary()


class Work:
    """A collective under way, like torch.distributed's: the tensors are ready after :meth:`wait`."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self, timeout: float | None = None) -> bool:
        """Block until done; True. Raises what went wrong, or TimeoutError after ``timeout`` seconds."""
        self._future.result(timeout)
        return True

    def is_completed(self) -> bool:
        return self._future.done()


def all_reduce(
    tensor: torch.Tensor, codec: WireLike = "int8", op: Op = "mean", group: Group = None, async_op: bool = False
) -> Work | None:
    """Mean or sum of ``tensor`` over the ranks of ``group``, in place, sent with ``codec``.

    ``codec="int2/int4"``, or a pair, has one codec to reduce with and one to gather with.
    Any shape and strides; float32, float16 or bfloat16 on the CPU (CUDA tensors are staged through the host); sums are
    fp32. All ranks get the same bits. ``async_op=True`` returns a :class:`Work` at once; the tensor belongs to it until
    waited for. Raises ConfigError for arguments that are not allowed, DisagreementError on all ranks if theirs differ.
    """
    made, shape = _checked("tensor", tensor, codec, op), tuple(tensor.shape)
    facts = {"codec": made.spec(), "dtype": tensor.dtype, "shape": shape, "op": op}

    def task(reducer: Reducer) -> None:
        flat = _flat(tensor)
        reducer.all_reduce(flat, op)
        _put_back(flat, tensor)

    return _start("all_reduce", made, facts, group, async_op, task)


def reduce_scatter(
    output: torch.Tensor, input: torch.Tensor, codec: WireLike = "int8", op: Op = "mean", group: Group = None
) -> None:  # fmt: skip
    """``output`` gets this rank's shard of the mean or sum of ``input``, whose shards are equal and in rank order.

    ``input`` has ranks times the elements of ``output``; types as in :func:`all_reduce`. One quantization; the own part is exact.
    Raises ConfigError and DisagreementError as :func:`all_reduce` does.
    """
    made = _checked("input", input, codec, op)
    _checked("output", output, codec, op)
    _check_sizes("input", input, "output", output, group)
    facts = {"codec": made.spec(), "dtype": input.dtype, "elements": input.numel(), "op": op}

    def task(reducer: Reducer) -> None:
        flat = _flat(output, copy=False)
        reducer.reduce_scatter(flat, _flat(input), op)
        _put_back(flat, output)

    _start("reduce_scatter", made, facts, group, False, task)


def all_gather(
    output: torch.Tensor, input: torch.Tensor, codec: WireLike = "int8", group: Group = None
) -> None:  # fmt: skip
    """``output`` gets the ``input`` of every rank, in rank order, the same bits on all ranks (the own part quantized too).

    ``output`` has ranks times the elements of ``input``; types as in :func:`all_reduce`. Raises as it does.
    """
    made = _checked("input", input, codec, "sum")
    _checked("output", output, codec, "sum")
    _check_sizes("output", output, "input", input, group)
    facts = {"codec": made.spec(), "dtype": input.dtype, "elements": input.numel()}

    def task(reducer: Reducer) -> None:
        flat = _flat(output, copy=False)
        reducer.all_gather(flat, _flat(input))
        _put_back(flat, output)

    _start("all_gather", made, facts, group, False, task)


def _checked(name: str, tensor: Any, codec: WireLike, op: str) -> Wire:
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"{name} is a {type(tensor).__name__}; allowed: a torch tensor")
    if tensor.dtype not in _FLOATS:
        raise ConfigError(f"{name} has dtype {tensor.dtype}; allowed: {', '.join(map(str, _FLOATS))}")
    if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{name} is {tensor.layout} on {tensor.device}; allowed: dense tensors on cpu or cuda")
    if op not in ("mean", "sum"):
        raise unknown_name("op", op, ("mean", "sum"))
    return resolve(codec)


def _check_sizes(large_name: str, large: torch.Tensor, small_name: str, small: torch.Tensor, group: Group) -> None:
    ranks = worker_of(group)[0].size
    if large.numel() != ranks * small.numel() or large.dtype != small.dtype:
        raise ConfigError(
            f"{large_name} has {large.numel()} elements of {large.dtype}, {small_name} {small.numel()} of {small.dtype}; "
            f"allowed: {ranks} times as many (one part a rank), of the same dtype"
        )


def _start(
    name: str, codec: Wire, facts: Mapping[str, object], group: Group, async_op: bool, task: Callable[[Reducer], None]
) -> Work | None:
    transport, worker = worker_of(group)
    if torch.cuda.is_initialized():
        # The worker reads the tensor from another thread; what fills it is queued on this one's stream.
        torch.cuda.current_stream().synchronize()
    reducer = _reducers.setdefault(transport, {}).setdefault(codec, Reducer(transport, codec))

    def run() -> None:
        transport.watch.begin(name)
        agree(transport, name, (), **facts)
        with torch.no_grad():
            task(reducer)

    work = Work(worker.submit(run))
    if async_op:
        return work
    work.wait()
    return None


def _flat(tensor: torch.Tensor, copy: bool = True) -> torch.Tensor:
    """The tensor as flat fp32 on the CPU: its own memory where it is that already, else a copy of its values."""
    tensor = tensor.detach()
    if tensor.is_contiguous() and tensor.dtype == torch.float32 and tensor.device.type == "cpu":
        return tensor.view(-1)
    if not copy:
        return torch.empty(tensor.numel(), dtype=torch.float32)
    return tensor.to(device="cpu", dtype=torch.float32).reshape(-1)


def _put_back(flat: torch.Tensor, tensor: torch.Tensor) -> None:
    if flat.data_ptr() != tensor.data_ptr() or tensor.dtype != torch.float32 or not tensor.is_contiguous():
        tensor.detach().copy_(flat.view(tensor.shape))
