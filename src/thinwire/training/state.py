"""What a handle keeps at a checkpoint: residuals by rank and parameter, and the order in which buckets came.

Tensors are under the rank's own key, since torch.distributed.checkpoint stores one copy of what has the same key on all
ranks. They have the parameter's shape, so that neither bucket layout nor memory format matters. The order of the buckets decides
which elements share a block and who sums them; DDP's first step after a restart has another, so it is kept for that step's sake.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from thinwire.errors import ConfigError
from thinwire.training.bucket import shaped_like

STATE_VERSION: Final = 3
Order = list[list[str]]


def pack(codec: str, rank: int, ranks: int, residuals: Mapping[str, torch.Tensor], order: Order, scale: float) -> dict[str, Any]:
    """The state of one rank."""
    return {
        "version": STATE_VERSION,
        "codec": codec,
        "ranks": ranks,
        "loss_scale": scale,
        "order": json.dumps(order),
        "residuals": {f"rank{rank}": dict(residuals)},
    }


def unpack(
    states: Mapping[str, Any] | Sequence[Mapping[str, Any]], codec: str, rank: int, ranks: int
) -> tuple[dict[str, torch.Tensor] | None, Order, float]:  # fmt: skip
    """This rank's residuals (None: start at zero), the order of the buckets ([]: DDP's) and the loss scale they were kept at.

    With the number of ranks that the state was saved by, a rank gets its own. With another number and the states of all of them,
    every rank gets their mean, so that what is owed to the mean of the gradients is kept; with fewer, residuals start at zero,
    and the log says so. Raises ConfigError for a state of another version or codec, or without this rank's part.
    """
    every = [states] if isinstance(states, Mapping) else list(states)
    if not every:
        raise ConfigError("state is an empty list; allowed: one state, or one of every rank that saved")
    for one in every:
        _check(one, codec, every[0])
    first, parts = every[0], {key: value for one in every for key, value in one["residuals"].items()}
    saved = int(first["ranks"])
    if saved == ranks:
        if f"rank{rank}" not in parts:
            raise ConfigError(f"state has residuals of {', '.join(sorted(parts)) or 'no rank'}; allowed here: of rank{rank}")
        return dict(parts[f"rank{rank}"]), json.loads(first["order"]), float(first["loss_scale"])
    log = logging.getLogger("thinwire")
    missing = [other for other in range(saved) if f"rank{other}" not in parts]
    if missing:
        log.warning(
            f"state was saved by {saved} ranks and this is {ranks}: residuals start at zero, since those of ranks "
            f"{', '.join(map(str, missing))} are not given (load_state_dict takes a list of all ranks' states)"
        )
        return None, [], float(first["loss_scale"])
    log.info(f"state was saved by {saved} ranks and this is {ranks}: every rank takes the mean of their residuals")
    every_part = [parts[f"rank{other}"] for other in range(saved)]
    means = {name: torch.stack([part[name] for part in every_part]).mean(0) for name in every_part[0]}
    return means, [], float(first["loss_scale"])


def messages(states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> int:
    """How many messages the saved run had encoded, which seed the noise of stochastic rounding."""
    return int(_first(states)["messages"])


def policy(states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """What a policy had decided when the state was saved: the same on all ranks."""
    return str(_first(states)["policy"])


def _first(states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return states if isinstance(states, Mapping) else states[0]


def _check(state: Mapping[str, Any], codec: str, first: Mapping[str, Any]) -> None:
    if state.get("version") != STATE_VERSION:
        raise ConfigError(f"state has version {state.get('version')!r}; allowed: {STATE_VERSION}")
    if state["codec"] != codec:
        raise ConfigError(f"state is of codec {state['codec']!r}; allowed: {codec!r}")
    if state["ranks"] != first["ranks"]:
        raise ConfigError(f"states are of {first['ranks']} and {state['ranks']} ranks; allowed: states of one checkpoint")


def shaped(flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A copy of a residual, which lies in memory as the parameter does, in the parameter's shape and contiguous."""
    return shaped_like(flat, parameter).clone(memory_format=torch.contiguous_format)


def flattened(name: str, value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`shaped`. Raises ConfigError for another shape."""
    if value.shape != parameter.shape:
        raise ConfigError(
            f"residuals do not fit: {name} has {value.numel()} elements of shape {tuple(value.shape)} in the state; "
            f"allowed: {tuple(parameter.shape)}"
        )
    flat = torch.empty(parameter.numel())
    shaped_like(flat, parameter).copy_(value)
    return flat
