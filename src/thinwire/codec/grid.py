"""``grid``: uniform steps relative to a block's root mean square, made for the entropy coder.

    s = step * rms        k = clip(round(x / s), -128, 127)        x' = (k - shrink * sign(k)) * s        shrink = g(step)

Codes take 8 bits as they are, of which ``entropy(grid)`` sends what they carry: for Gaussian numbers log2(4.13 / step) bits with
steps up to 1. At high rates no scalar quantizer with an entropy coder is better than a uniform one, and at low rates hardly any
(Sullivan 1996). ``shrink`` moves levels towards zero, to the mean of what a cell holds: without it the error at 1 bit is a third
larger. g(step) = min(step (0.075 + 0.02 step), 0.36) is within 1 % of the best for Gaussian numbers. Elements beyond 127 steps
are clipped: none are if step >= sqrt(block) / 127. Wire bytes of a row: 2 a block and n.

``rounding="stochastic"`` is round(v + u), u uniform in (-1/2, 1/2) as in ``intB``, where v is x / s on the scale on which the
levels are whole numbers: |v| = min(|x / s| / (1 - shrink), |x / s| + shrink). So E[x'] = x for all that is not clipped.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final, Literal, final

from thinwire.codec.base import F32, U8, Codec, check_block, check_rounding, drawn, quiet
from thinwire.errors import ConfigError
from thinwire.kernels import ops_grid
from thinwire.kernels.ops import Rows

BLOCKS: Final = (32, 4096)
STEPS: Final = (0.0625, 4.0)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid(Codec):
    """Codes of 8 bits in units of ``step`` root mean squares of the block."""

    block: int = 1024
    step: float = 0.5
    rounding: Literal["nearest", "stochastic"] = quiet("nearest")
    source: ClassVar[str] = "Gish & Pierce 1968; Sullivan 1996, doi:10.1109/18.532878"

    def __post_init__(self) -> None:
        check_block("grid", self.block, *BLOCKS)
        check_rounding("grid", self.rounding)
        good = isinstance(self.step, (int, float)) and not isinstance(self.step, bool)
        if not good or not STEPS[0] <= self.step <= STEPS[1]:
            raise ConfigError(f"grid: step={self.step!r} is out of range; allowed: {STEPS[0]} to {STEPS[1]}")
        # 1 and 1.0 are one codec, with one spec.
        object.__setattr__(self, "step", float(self.step))

    @property
    def name(self) -> str:
        return "grid"

    @property
    def shrink(self) -> float:
        """How far levels are moved towards zero, in steps."""
        return min(self.step * (0.075 + 0.02 * self.step), 0.36)

    def _code_section(self, n: int) -> tuple[int, int] | None:
        return 2 * -(-n // self.block), 8

    def _payload_bytes(self, n: int) -> int:
        return 2 * -(-n // self.block) + n

    def _encode(self, rows: Rows, wire: U8, error: F32 | None, seed: int) -> None:
        ops_grid.grid_encode(rows, wire, self.block, self.step, self.shrink, error, drawn(self.rounding, seed))

    def _decode(self, wire: U8, out: F32, add: bool) -> None:
        ops_grid.grid_decode(wire, out, self.block, self.shrink, add)
