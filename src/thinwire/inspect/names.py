"""Names of a script's parameters, from the modules that are alive; nothing has to be handed over."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

_WRAPPERS: Final = {"module", "_orig_mod", "_fsdp_wrapped_module"}
"""Parts of a name that DDP, torch.compile and FSDP put in."""


def names_of(parameters: Sequence[torch.Tensor]) -> list[str]:
    """One name a parameter, none twice: its module's, or its place and shape where no module has it.

    Names of models that share some get the class of the model in front. The result depends on the order of ``parameters`` and
    on the modules only, so that all ranks of a job find the same names.
    """
    owners = _owners(parameters)
    counts = Counter(name for name, _ in owners.values())
    found: list[str] = []
    for place, parameter in enumerate(parameters):
        name, owner = owners.get(id(parameter), (f"parameter {place} {list(parameter.shape)}", ""))
        found.append(f"{owner}.{name}" if counts[name] > 1 else name)
    return [name if found.index(name) == place else f"{name} ({place})" for place, name in enumerate(found)]


def _owners(parameters: Sequence[torch.Tensor]) -> dict[int, tuple[str, str]]:
    """Name in the outermost module, and the class of that, by the id of the parameter."""
    wanted = {id(parameter) for parameter in parameters}
    # The type is asked, not the object: isinstance would run code of lazy proxies that happen to be alive.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    owners: dict[int, tuple[str, str]] = {}
    for root in (module for module in modules if id(module) not in inner):
        for path, parameter in root.named_parameters():
            if id(parameter) in wanted:
                candidate = _without_wrappers(path), type(_unwrapped(root)).__name__
                # Several roots may hold it, such as a list of parts beside the whole: the longest name says most.
                owners[id(parameter)] = max(owners.get(id(parameter), candidate), candidate, key=lambda one: (len(one[0]), one))
    return owners


def _without_wrappers(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def _unwrapped(module: nn.Module) -> nn.Module:
    while (inner := next((child for name, child in module.named_children() if name in _WRAPPERS), None)) is not None:
        module = inner
    return module
