"""Adam's arithmetic on one parameter, with a variance that may be held; state is in fp32 whatever the parameter is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from thinwire.errors import ConfigError


def state_of(state: dict[str, Any], p: torch.Tensor) -> dict[str, Any]:
    """A parameter's state in an optimizer, made where it is missing."""
    if not state:
        state |= {"step": 0, "variance_step": 0}
        state |= {name: torch.zeros_like(p, dtype=torch.float32) for name in ("exp_avg", "exp_avg_sq")}
    return state


def gradient_into(view: torch.Tensor, p: torch.Tensor, scale: torch.Tensor | None, decay: float) -> None:
    """A parameter's gradient in fp32, without its loss ``scale``, or zero; with ``decay`` times the weights added."""
    if p.grad is None:
        view.zero_()
        return
    if p.grad.layout != torch.strided:
        raise ConfigError(f"a parameter has a gradient of layout {p.grad.layout}; allowed: dense ones (sparse=False)")
    view.copy_(p.grad)
    if scale is not None:
        view.div_(scale.to(view.device))
    if decay:
        view.add_(p.to(view), alpha=decay)


def take_gradient(state: dict[str, Any], mean: torch.Tensor, betas: tuple[float, float]) -> None:
    """Momentum and variance of an exact step."""
    state["step"] += 1
    state["variance_step"] += 1
    state["exp_avg"].lerp_(mean, 1 - betas[0])
    state["exp_avg_sq"].mul_(betas[1]).addcmul_(mean, mean, value=1 - betas[1])


def take_momentum(state: dict[str, Any], mean: torch.Tensor) -> None:
    """A momentum that was averaged; the variance stays."""
    state["step"] += 1
    state["exp_avg"].copy_(mean)


def move(p: torch.Tensor, state: Mapping[str, Any], options: Mapping[str, Any], least_square: float) -> None:
    """Take the step, in torch.optim.AdamW's order of operations; variances count as ``least_square`` where they are less."""
    beta1, beta2 = options["betas"]
    correct = options["bias_correction"] and state["variance_step"] > 0
    bias1, bias2 = (1 - beta1 ** state["step"], 1 - beta2 ** state["variance_step"]) if correct else (1.0, 1.0)
    denominator = state["exp_avg_sq"].sqrt().div_(math.sqrt(bias2))
    if least_square:
        denominator.clamp_(min=math.sqrt(least_square / bias2))
    denominator.add_(options["eps"])
    rate = float(options["lr"])
    weights = p if p.dtype == torch.float32 else p.float()
    if options["decoupled"]:
        weights.mul_(1 - rate * options["weight_decay"])
    weights.addcdiv_(state["exp_avg"], denominator, value=-rate / bias1)
    if weights is not p:
        p.copy_(weights)
