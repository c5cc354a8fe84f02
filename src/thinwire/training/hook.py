"""DDP's side of a handle: the communication hook, which a model keeps for good, and the handle in force behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any, Protocol

import torch
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]  documented there
from torch.nn.parallel import DistributedDataParallel

from thinwire.collective.transport import Transport
from thinwire.errors import ConfigError
from thinwire.training.guard import guard


class Hooked(Protocol):
    """What takes buckets."""

    active: bool

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]: ...


def is_compressed(model: DistributedDataParallel) -> bool:
    """Whether a handle is in force."""
    slot: Slot | None = getattr(model, "_thinwire", None)
    return slot is not None and slot.handle.active


def register(model: DistributedDataParallel, handle: Hooked, transport: Transport) -> None:
    """Give DDP the hook. It keeps one for good, so a later handle of the same model takes over the first one's."""
    previous: Slot | None = getattr(model, "_thinwire", None)
    if previous is not None:
        previous.handle = handle
        return
    slot = Slot(handle)
    try:
        model.register_comm_hook(slot, _hook)
    except RuntimeError as error:
        raise ConfigError(f"model has a communication hook already; allowed: none before compress ({error})") from None
    vars(model)["_thinwire"] = slot
    guard(model, transport)


class Slot:
    """The handle in force: what DDP hands to the hook as its state."""

    def __init__(self, handle: Hooked) -> None:
        self.handle = handle


def raise_after_backward(tasks: Sequence[Future[None]]) -> None:
    """Have ``backward()`` raise what went wrong in ``tasks``: DDP itself would only say that an exception is no tensor."""

    def look() -> None:
        wait(tasks)  # all of them, so that nothing of this step is still on its way when the script goes on
        for one in tasks:
            one.result()

    # Outside of backward, as where join() stands in for a rank that has ended, DDP waits for the futures themselves.
    with contextlib.suppress(RuntimeError):
        engine: Any = torch.autograd.Variable._execution_engine  # pyright: ignore[reportPrivateUsage]  as FSDP does
        engine.queue_callback(look)


def _hook(state: Slot, bucket: Any) -> Any:
    return state.handle.hook(bucket)


# DDP compares these with the types themselves, which annotations as strings are not.
_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
