"""Catches the gradients of a script's own training steps, before anything reduces them.

A hook on every parameter of every optimizer sees the gradient as backward leaves it, ahead of DDP; micro-steps add up until the
optimizer steps. Then the rank writes them to a file of its own. There is no communication, so no rank waits for another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import unserializable_hook

from thinwire.inspect.captures import Note, write_note, write_tensors
from thinwire.inspect.names import names_of

PATIENCE: Final = 10
"""Steps beyond those asked for, before the recorder stops to wait for another optimizer or for any gradient at all."""


class Enough(BaseException):
    """Ends the script once there is enough; no ``except Exception`` of it holds this up."""


class _Seen:
    """An optimizer, how often it stepped, and the files of its recorded steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.steps, self.files = optimizer, 0, list[str]()

    def parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


class _Slot:
    """A parameter, and what backward gave it since its optimizer stepped. ``unfit`` says why nothing was kept."""

    def __init__(self, parameter: torch.Tensor, wanted: Callable[[], bool]) -> None:
        self.parameter, self.unfit = parameter, "no gradient"
        self._wanted, self._sum = wanted, None

        def hook(gradient: torch.Tensor) -> None:
            self._hook(gradient)

        # Marked, so that saving the parameter with torch.save gives no warning of it.
        parameter.register_hook(unserializable_hook(hook))

    _sum: torch.Tensor | None

    def _hook(self, gradient: torch.Tensor) -> None:
        if not self._wanted():
            return
        if type(gradient) is not torch.Tensor or gradient.layout != torch.strided or not gradient.is_floating_point():
            kind = "" if type(gradient) is torch.Tensor else f"{type(gradient).__name__} "
            self.unfit = f"{kind}{gradient.layout} {gradient.dtype}".replace("torch.", "")
            return
        found = gradient.detach().to(device="cpu", dtype=torch.float32, copy=True)
        earlier = self.parameter.grad
        # A gradient that was cleared meanwhile is that of a step which never came, as when a loss scale overflows.
        if self._sum is not None and earlier is not None and bool(earlier.any()):
            found += self._sum
        self._sum, self.unfit = found, ""

    def take(self) -> npt.NDArray[np.float32] | None:
        found, self._sum = self._sum, None
        return None if found is None else found.numpy()


class Recorder:
    """Records ``steps`` optimizer steps of this process after the first ``after``, into files of ``folder``."""

    def __init__(self, folder: Path, rank: int, steps: int, after: int, on_enough: Callable[[], None]) -> None:
        self.folder, self.rank, self.steps, self.after = folder, rank, steps, after
        self.enough = False
        self.fault: OSError | None = None
        """Why files could not be written."""
        self._on_enough = on_enough
        self._optimizers: dict[int, _Seen] = {}
        self._slots: dict[int, _Slot] = {}
        self._names: dict[int, str] = {}

    @contextlib.contextmanager
    def recording(self) -> Generator[None]:
        """Watch every optimizer that is made or steps within."""
        original = Optimizer.add_param_group

        recorder = self

        def add_param_group(self: Optimizer, param_group: dict[str, Any]) -> None:
            original(self, param_group)
            recorder._watch(self)

        handle = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._step(optimizer))
        Optimizer.add_param_group = add_param_group
        try:
            yield
        finally:
            Optimizer.add_param_group = original
            handle.remove()

    def recorded(self) -> int:
        """Steps so far, of the optimizer that has most."""
        return max((len(one.files) for one in self._optimizers.values()), default=0)

    def finish(self) -> None:
        """Tell the rank that reports that this one's files are complete."""
        unfit = {key: slot.unfit for key, slot in self._slots.items() if slot.unfit}
        self._name()
        files = [one.files for one in self._optimizers.values() if one.files]
        write_note(self.folder, Note(rank=self.rank, files=files, left_out={self._names[key]: why for key, why in unfit.items()}))

    def _watch(self, optimizer: Optimizer) -> _Seen:
        seen = self._optimizers.setdefault(id(optimizer), _Seen(optimizer))
        for parameter in seen.parameters():
            if parameter.requires_grad and id(parameter) not in self._slots:
                self._slots[id(parameter)] = _Slot(parameter, lambda: seen.steps >= self.after and not self.enough)
        return seen

    def _step(self, optimizer: Optimizer) -> None:
        if not self.enough:
            try:
                self._record(self._watch(optimizer))
            except OSError as error:
                self.fault, self.enough = error, True
        if self.enough:
            self._on_enough()
            raise Enough

    def _record(self, seen: _Seen) -> None:
        slots = [self._slots[id(p)] for p in seen.parameters() if id(p) in self._slots]
        values = {id(slot.parameter): value for slot in slots if (value := slot.take()) is not None}
        if values and seen.steps >= self.after and len(seen.files) < self.steps:
            self._write(values, seen)
        seen.steps += 1
        complete = all(len(one.files) >= self.steps for one in self._optimizers.values())
        self.enough = complete or seen.steps >= self.after + self.steps + PATIENCE

    def _write(self, values: dict[int, npt.NDArray[np.float32]], seen: _Seen) -> None:
        self._name()
        number = list(self._optimizers.values()).index(seen)
        place = self.folder / f"rank{self.rank}-optimizer{number}-step{len(seen.files)}.npz"
        write_tensors(place, {self._names[key]: value for key, value in values.items()})
        seen.files.append(place.name)

    def _name(self) -> None:
        """Name the parameters that are new; those that were written keep their names."""
        if all(key in self._names for key in self._slots):
            return
        parameters = [slot.parameter for slot in self._slots.values()]
        taken = set(self._names.values())
        for parameter, name in zip(parameters, names_of(parameters), strict=True):
            if id(parameter) not in self._names:
                self._names[id(parameter)] = f"{name} ({len(self._names)})" if name in taken else name
