"""What must be so before the first step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.errors import ConfigError
from thinwire.policy.choice import Choice
from thinwire.training.assignment import kernels_of


def unwrapped(model: torch.nn.Module) -> DistributedDataParallel:
    """The DDP module, out of torch.compile's. Raises ConfigError for any other, and for one that calls no hook."""
    model = getattr(model, "_orig_mod", model)  # torch.compile(DDP)
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"model is a {type(model).__name__}; allowed: torch.nn.parallel.DistributedDataParallel "
            "(wrap it first: DistributedDataParallel(model))"
        )
    if getattr(model, "_use_python_reducer", False):
        raise ConfigError(
            "model was made with torch._dynamo.config.optimize_ddp='python_reducer', which calls no communication hook; allowed: "
            "True or 'ddp_optimizer', set before DistributedDataParallel(model)"
        )
    return model


def check_arguments(min_elements: object, verify_every: object) -> None:
    """Raises ConfigError for arguments of ``compress`` that are out of range."""
    if isinstance(min_elements, bool) or not isinstance(min_elements, int) or min_elements < 0:
        raise ConfigError(f"min_elements={min_elements!r} is out of range; allowed: 0 or more")
    if verify_every is not None and (isinstance(verify_every, bool) or not isinstance(verify_every, int) or verify_every < 1):
        raise ConfigError(f"verify_every={verify_every!r} is out of range; allowed: 1 or more, or None for never")


def compile_kernels(choice: Choice) -> None:
    """Compile what a step calls, so that no step waits for it, or for a rank that was lost while it compiled."""
    for codec in kernels_of(choice):
        x = torch.zeros(1, 256)
        wire = codec.encode(x, error=torch.empty_like(x))
        codec.decode(wire, 256, out=x, add=True)


def check_parameters(parameters: Mapping[str, torch.Tensor]) -> None:
    """Raises ConfigError for a model without gradients, or of a dtype that is no float of up to 32 bits."""
    if not parameters:
        raise ConfigError("model has no parameter that requires a gradient; allowed: at least one")
    for name, parameter in parameters.items():
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ConfigError(f"parameter {name} has dtype {parameter.dtype}; allowed: float32, float16, bfloat16")
