"""Forms of error feedback: what becomes of the residual.

With the tensor g, the residual e, what is sent Q(g + e) and what the wire loses of it, l = g + e - Q(g + e):

    Plain           e <- l                         all of it: sum of what was sent = sum of g - e
    Decayed         e <- beta l                    SparseLoCo (arXiv:2508.15706): what is old fades
    MovingAverage   e <- beta e + (1 - beta) l     LoCo (arXiv:2407.04480): sum of what was sent = sum of g - e / (1 - beta),
                                                   but for the rounding of its storage in 8 bits
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC
from typing import ClassVar, final

from thinwire.codec.base import text
from thinwire.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feedback(ABC):
    """What ``compress(feedback=...)`` takes: fields, and the one line of text that says the same."""

    label: ClassVar[str]
    lead: ClassVar[str] = "beta"
    """The field that stands behind the label."""

    @final
    def spec(self) -> str:
        """One line of ASCII, e.g. "average:0.9;bits=32": what ranks and states compare, and what ``feedback=`` takes."""
        told = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        leading = told.pop(self.lead, None)
        others = [f"{f.name}={text(told[f.name])}" for f in dataclasses.fields(self) if told.get(f.name, f.default) != f.default]
        return ";".join([self.label if leading is None else f"{self.label}:{leading!r}", *others])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form(Feedback):
    """What becomes of the residual: ``keep`` times the old one and ``gain`` times what the wire lost.

    ``second_shot=False`` leaves the error of the second shot, which the owner of a shard feeds back, out of it: for study.
    """

    second_shot: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.second_shot, bool):
            raise ConfigError(f"{self.label}: second_shot={self.second_shot!r} is not allowed; allowed: True, False")

    @property
    def keep(self) -> float:
        return 0.0

    @property
    def gain(self) -> float:
        return 1.0

    @property
    def packed(self) -> bool:
        """Whether residuals are kept in 8 bits."""
        return False

    @property
    def reset_steps(self) -> int | None:
        """After so many steps residuals start at zero again; None for never."""
        return None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain(Form):
    """All that the wire lost is sent with the next tensor."""

    label: ClassVar[str] = "plain"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Decayed(Form):
    """``beta`` of what the wire lost is sent with the next tensor, above 0 and below 1."""

    label: ClassVar[str] = "decay"
    beta: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta(self.label, self.beta)

    @property
    def gain(self) -> float:
        return self.beta


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MovingAverage(Form):
    """The moving average of what the wire lost is sent with the next tensor; ``beta`` above 0 and below 1.

    ``bits`` 8 keeps it as rows of ``int8``, 8.125 bits an element; 32 as fp32. With ``reset``, it starts at zero again after so
    many steps, LoCo's T_c.
    """

    label: ClassVar[str] = "average"
    beta: float = 0.9
    bits: int = 8
    reset: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta(self.label, self.beta)
        if isinstance(self.bits, bool) or self.bits not in (8, 32):
            raise ConfigError(f"{self.label}: bits={self.bits!r} is not allowed; allowed: 8, 32")
        if self.reset is not None and (isinstance(self.reset, bool) or not isinstance(self.reset, int) or self.reset < 1):
            raise ConfigError(f"{self.label}: reset={self.reset!r} is out of range; allowed: 1 or more, or None for never")

    @property
    def keep(self) -> float:
        return self.beta

    @property
    def gain(self) -> float:
        return 1.0 - self.beta

    @property
    def packed(self) -> bool:
        return self.bits == 8

    @property
    def reset_steps(self) -> int | None:
        return self.reset


def _check_beta(label: str, beta: object) -> None:
    number = float(beta) if isinstance(beta, (int, float)) and not isinstance(beta, bool) else math.nan
    if not 0 < number < 1:
        raise ConfigError(f"{label}: beta={beta!r} is out of range; allowed: above 0, below 1")
