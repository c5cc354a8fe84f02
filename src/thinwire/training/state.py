"""What a handle keeps at a checkpoint: residuals by rank and parameter, and the order in which buckets came.

Tensors are under the rank's own key, since torch.distributed.checkpoint stores one copy of what has the same key on all
ranks. They have the parameter's shape, so that neither bucket layout nor memory format matters. The order of the buckets decides
which elements share a block and who sums them; DDP's first step after a restart has another, so it is kept for that step's sake.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from thinwire.errors import ConfigError
from thinwire.feedback import Momenta, Residuals
from thinwire.training.bucket import shaped_like

STATE_VERSION: Final = 3
Order = list[list[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """The codec and the form of feedback that residuals came from, as specs, and the steps that were committed to them."""

    codec: str
    feedback: str
    steps: int


def pack(
    origin: Origin, rank: int, ranks: int, residuals: Mapping[str, torch.Tensor], order: Order, scale: float
) -> dict[str, Any]:  # fmt: skip
    """The state of one rank."""
    return {
        "version": STATE_VERSION,
        "codec": origin.codec,
        "feedback": origin.feedback,
        "feedback_steps": origin.steps,
        "ranks": ranks,
        "loss_scale": scale,
        "order": json.dumps(order),
        "residuals": {f"rank{rank}": dict(residuals)},
    }


def unpack(
    states: Mapping[str, Any] | Sequence[Mapping[str, Any]], origin: Origin, rank: int, ranks: int
) -> tuple[dict[str, torch.Tensor] | None, Order, float]:  # fmt: skip
    """This rank's residuals (None: start at zero), the order of the buckets ([]: DDP's) and the loss scale they were kept at.

    With the number of ranks that the state was saved by, a rank gets its own. With another number and the states of all of them,
    every rank gets their mean, so that what is owed to the mean of the gradients is kept; with fewer, residuals start at zero,
    and the log says so. Raises ConfigError for a state of another version, codec or form of feedback, or without this
    rank's part.
    """
    every = [states] if isinstance(states, Mapping) else list(states)
    if not every:
        raise ConfigError("state is an empty list; allowed: one state, or one of every rank that saved")
    for one in every:
        _check(one, origin, every[0])
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


def feedback_steps(states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> int:
    """The steps that were committed to the residuals of a state, which :func:`unpack` has checked."""
    return int((states if isinstance(states, Mapping) else states[0])["feedback_steps"])


def policy(states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """What a policy had decided when the state was saved: the same on all ranks."""
    return str((states if isinstance(states, Mapping) else states[0])["policy"])


def _check(state: Mapping[str, Any], origin: Origin, first: Mapping[str, Any]) -> None:
    if state.get("version") != STATE_VERSION:
        raise ConfigError(f"state has version {state.get('version')!r}; allowed: {STATE_VERSION}")
    if state["codec"] != origin.codec:
        raise ConfigError(f"state is of codec {state['codec']!r}; allowed: {origin.codec!r}")
    if state["feedback"] != origin.feedback:
        raise ConfigError(f"state has residuals of feedback={state['feedback']!r}; allowed: {origin.feedback!r}, as here")
    if state["ranks"] != first["ranks"]:
        raise ConfigError(f"states are of {first['ranks']} and {state['ranks']} ranks; allowed: states of one checkpoint")


def kept(
    feedback: Residuals | Momenta | None, parameters: Mapping[str, torch.Tensor], compressed: set[str]
) -> dict[str, torch.Tensor]:  # fmt: skip
    """What feedback keeps of ``parameters``, in their shape: residuals of the ``compressed`` ones by name, velocities of all."""
    parts = {} if feedback is None else feedback.parts
    names = {part: sorted(compressed if part == "" else parameters) for part in parts}
    return {part + n: shaped(parts[part].of(n), parameters[n]) for part in parts for n in names[part]}


def take_over(
    feedback: Residuals | Momenta, found: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor], compressed: set[str]
) -> None:
    """The inverse of :func:`kept`; what is not in it starts at zero. Raises ConfigError if it does not fit."""
    left = dict(found)
    flats: dict[str, dict[str, torch.Tensor]] = {}
    for part in sorted(feedback.parts, reverse=True):  # the one without a name of its own takes the rest
        mine = {key: left.pop(key) for key in list(left) if key.startswith(part)}
        named = {key.removeprefix(part): value for key, value in mine.items()}
        flats[part] = {n: flattened(n, v, parameters[n]) if n in parameters else v for n, v in named.items()}
    for part, residuals in feedback.parts.items():
        owed = compressed if part == "" else set(parameters)
        zeros = {n: torch.zeros(size) for n, size in residuals.sizes.items() if n not in owed}
        residuals.load_state_dict({**zeros, **flats[part]})


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


def messages(states: Mapping[str, Any] | Sequence[Mapping[str, Any]], rank: int) -> int:
    """The messages that this rank had sent when the state was saved; those of the busiest rank if it was not there."""
    every = [states] if isinstance(states, Mapping) else list(states)
    sent = {key: int(value) for one in every for key, value in one["messages"].items()}
    return sent.get(f"rank{rank}", max(sent.values(), default=0))
