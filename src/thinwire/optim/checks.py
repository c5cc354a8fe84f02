"""Arguments of optimizers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thinwire.codec.base import Codec
from thinwire.errors import ConfigError
from thinwire.feedback.forms import Form
from thinwire.feedback.specs import form_of


def check_options(*, freeze_step: object, floor: object, min_elements: object) -> None:
    """Raises ConfigError for what is out of range."""
    _check("freeze_step", freeze_step, isinstance(freeze_step, int) and _number(freeze_step) >= 1, "1 or more")
    _check("floor", floor, 0 <= _number(floor) < math.inf, "0 or more, finite")
    _check("min_elements", min_elements, isinstance(min_elements, int) and _number(min_elements) >= 0, "0 or more")


def residual_form(feedback: object, codec: Codec) -> Form | None:
    """The form of feedback of momenta. Raises ConfigError for what ``compress`` does not allow, and for DeepGradient."""
    form = form_of(feedback, codec)
    if isinstance(form, Form) or form is None:
        return form
    raise ConfigError(f"feedback={form.spec()!r} has momentum of its own; allowed: forms of residuals, e.g. 'plain' or 'off'")


def check_group(group: Mapping[str, Any]) -> None:
    """Raises ConfigError for a param group with numbers out of range."""
    lr, eps, decay = group["lr"], group["eps"], group["weight_decay"]
    _check("lr", lr, 0 <= _number(lr) < math.inf, "0 or more, finite")
    _check("eps", eps, 0 <= _number(eps) < math.inf, "0 or more, finite")
    _check("weight_decay", decay, 0 <= _number(decay) < math.inf, "0 or more, finite")
    betas = group["betas"]
    good = isinstance(betas, (tuple, list)) and len(betas) == 2 and all(0 <= _number(one) < 1 for one in betas)
    _check("betas", betas, good, "two numbers, 0 or more, below 1")
    for name in ("decoupled", "bias_correction"):
        _check(name, group[name], isinstance(group[name], bool), "True, False")


def check_covers(named: Mapping[str, torch.Tensor], parameters: Sequence[torch.Tensor], group: object, taken: bool) -> None:
    """Raises ConfigError unless an optimizer of ``parameters`` can take over communication of a DDP model of ``named`` ones."""
    if group is not None:
        raise ConfigError("group and model together; allowed: one of them (a DDP model has its own process group)")
    if taken:
        raise ConfigError("model is compressed already; allowed: one handle or OneBitAdam a model (call its remove() first)")
    known = {id(p) for p in parameters}
    for name, p in named.items():
        if p.requires_grad and id(p) not in known:
            raise ConfigError(f"parameter {name} of model is not in params; allowed: an optimizer of all that require a gradient")
    strangers = len(known - {id(p) for p in named.values()})
    if strangers:
        raise ConfigError(f"{strangers} of params are not in model; allowed: parameters of model only")


def _number(value: object) -> float:
    """A number, or NaN, which is in no range. A tensor of one element, as torch allows for lr, is one."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def _check(name: str, value: object, good: bool, allowed: str) -> None:
    if not good:
        raise ConfigError(f"{name}={value!r} is out of range; allowed: {allowed}")
