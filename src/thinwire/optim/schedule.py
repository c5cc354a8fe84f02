"""In which steps the variance is updated, from gradients that are averaged exactly; in all others momenta go compressed."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, final

from thinwire.errors import ConfigError, unknown_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """The steps of exact averages up to the optimizer's ``freeze_step``; after it there are none."""

    @abstractmethod
    def updates(self, step: int) -> bool:
        """Whether ``step`` (1, 2, ...), which is not after ``freeze_step``, updates the variance."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmUp(Schedule):
    """1-bit Adam (arXiv:2102.02888): all steps up to ``freeze_step``."""

    def updates(self, step: int) -> bool:
        return True


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroOne(Schedule):
    """0/1 Adam (arXiv:2202.06009): ``scaler`` steps one after another, as many in every second step, in every fourth, ...

    The j-th and the next update are 2^floor(j / scaler) steps apart; the paper's kappa, 16 there.
    """

    scaler: int = 16

    def __post_init__(self) -> None:
        if isinstance(self.scaler, bool) or not isinstance(self.scaler, int) or self.scaler < 1:
            raise ConfigError(f"scaler={self.scaler!r} is out of range; allowed: 1 or more")

    def updates(self, step: int) -> bool:
        # Stage s has the steps above scaler * (2^s - 1), in intervals of 2^s.
        interval = 1 << (((step - 1) // self.scaler + 1).bit_length() - 1)
        return (step - self.scaler * (interval - 1)) % interval == 0


_NAMES: Final[Mapping[str, Schedule]] = {"warm_up": WarmUp(), "zero_one": ZeroOne()}


def schedule_of(variance_update: object) -> Schedule:
    """A schedule, or the one of a name. Raises ConfigError for anything else."""
    if isinstance(variance_update, Schedule):
        return variance_update
    if not isinstance(variance_update, str) or variance_update not in _NAMES:
        raise unknown_name("variance_update", variance_update, [*_NAMES, "thinwire.optim.ZeroOne(scaler=16)"])
    return _NAMES[variance_update]
