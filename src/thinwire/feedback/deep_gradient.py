"""Deep Gradient Compression (Lin, Han, Mao, Wang and Dally 2018, arXiv:1712.01887): momentum before the wire, for sparse codecs.

A rank that sends 1 in 1,000 elements sums the others up for many steps. If the optimizer had momentum, it would be missing for
all that time; so each rank has it itself, and the optimizer is SGD without. With the local gradient g, on each of N ranks:

    g <- g min(1, clip sqrt(N) / |g|)          local clipping: g/N, a rank's part of the mean, to the paper's clip / sqrt(N)
    u <- m u + g                               momentum correction: the velocity
    v <- v + u     (Nesterov: v + m u + g)     accumulation
    send Q(v), the largest entries of v        v <- v - Q(v)
    u <- 0 where Q(v) is not 0                 momentum factor masking: what is sent late must not push in an old direction

The paper sets v to 0 where it is sent; here what rounding took stays. Its threshold is a layer's; here every chunk of a bucket
has its own k entries. In the warm-up the density is 1/4 (75 % sparsity), and a quarter of that at each following stage
(93.75 %, 98.4375 %, 99.6 %), until the codec's own is reached (99.9 % is ``topk`` with k=4). Parameters that travel
uncompressed get the same momentum, after their mean.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, final

from thinwire.codec.topk import TopK
from thinwire.collective.legs import Wire
from thinwire.errors import ConfigError
from thinwire.feedback.forms import Feedback


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepGradient(Feedback):
    """Use as ``compress(model, tw.codec("topk", k=4), feedback=DeepGradient(momentum=0.9))``, with SGD without momentum.

    ``clip`` is the norm of the mean of all gradients that local clipping is to keep to, None for no clipping: with it, no bucket
    is sent before the last one is ready. ``warm_up_steps`` are the steps until the codec's own density is reached, 0 for
    none. Raises ConfigError for numbers out of range.
    """

    label: ClassVar[str] = "dgc"
    lead: ClassVar[str] = "momentum"
    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None
    warm_up_steps: int = 0
    masking: bool = True

    def __post_init__(self) -> None:
        _check("momentum", self.momentum, 0 <= _number(self.momentum) < 1, "0 or more, below 1")
        _check("clip", self.clip, self.clip is None or 0 < _number(self.clip) < math.inf, "above 0, finite, or None")
        steps = self.warm_up_steps
        _check("warm_up_steps", steps, isinstance(steps, int) and _number(steps) >= 0, "0 or more")

    def codec_at(self, codec: TopK, step: int) -> TopK:
        """What is sent at a step: ``codec``, or in the warm-up the same with more entries."""
        densities = [codec.chunk >> (2 * stage) for stage in range(1, 8)]
        stages = [k for k in densities if k > codec.k]
        if step >= self.warm_up_steps or not stages:
            return codec
        return dataclasses.replace(codec, k=stages[step * len(stages) // self.warm_up_steps])


def _number(value: object) -> float:
    """A number, or NaN, which is in no range."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def _check(name: str, value: object, good: bool, allowed: str) -> None:
    if not good:
        raise ConfigError(f"{name}={value!r} is out of range; allowed: {allowed}")


def require_sparse(codec: Wire) -> TopK:
    """The codec, if :class:`DeepGradient` can be used with it. Raises ConfigError if not."""
    if not isinstance(codec, TopK):
        raise ConfigError(f"codec={codec.name!r} is not sparse, which feedback=DeepGradient(...) needs; allowed: 'topk'")
    return codec
