"""What must be so before the first step."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from thinwire.codec.base import Codec
from thinwire.errors import ConfigError


def compile_kernels(codec: Codec) -> None:
    """Compile what a step calls, so that no step waits for it, or for a rank that was lost while it compiled."""
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
