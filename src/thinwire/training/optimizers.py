"""Whether the optimizer is one that may stand behind momentum that the ranks have themselves: looked at in its first step."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from thinwire.errors import ConfigError


class Active(Protocol):
    """A handle."""

    active: bool


def watch_optimizers(handle: Active, parameters: Iterable[torch.Tensor]) -> None:
    """Have the ``step()`` of each optimizer of ``parameters`` raise ConfigError, at its first call, if it is not plain SGD.

    One that is neither SGD nor known to have momentum cannot be checked: the log says so.
    """
    owner, mine = weakref.ref(handle), {id(one) for one in parameters}
    checked: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def look(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        alive = owner()
        if alive is None or not alive.active or optimizer in checked:
            return
        if any(id(one) in mine for group in optimizer.param_groups for one in group["params"]):
            check_optimizer(optimizer)
            checked.add(optimizer)

    removable = register_optimizer_step_pre_hook(look)
    weakref.finalize(handle, removable.remove)


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises ConfigError for an optimizer with momentum; a warning for one that is not torch.optim.SGD."""
    name = type(optimizer).__name__
    for group in optimizer.param_groups:
        found = {key: group[key] for key in ("momentum", "betas") if group.get(key)}
        if found:
            said = ", ".join(f"{key}={value!r}" for key, value in found.items())
            raise ConfigError(
                f"optimizer is {name} with {said}, and feedback=DeepGradient(...) has momentum already; allowed: "
                "torch.optim.SGD(..., momentum=0)"
            )
    if not isinstance(optimizer, torch.optim.SGD):
        logging.getLogger("thinwire").warning(
            f"optimizer {name} is not torch.optim.SGD: whether it has momentum of its own, which feedback=DeepGradient(...) "
            "does not allow for, was not checked"
        )
