"""Whether compression pays: what a step's communication exposes, against what it would without, by the cost model."""

from __future__ import annotations

from typing import Final

from thinwire import cost
from thinwire.collective.transport import Link

SKIPPED: Final = 3
WATCHED: Final = 10
_MARGIN: Final = 1.1
_LEAST_SECONDS: Final = 2e-4


class Payoff:
    """Watches the steps after the first few, once, and then has a line to say if compression loses."""

    def __init__(self, codec: str, elements: int, ranks: int, link: Link) -> None:
        self._codec, self._link = codec, link
        network = cost.Network(rate=link.rate, round_trip=link.round_trip)
        self._uncompressed = cost.uncompressed(elements, 32, ranks, network)
        self._steps = 0
        self._exposed = self._busy = 0.0

    def step(self, exposed: float, busy: float) -> str | None:
        """Take a step's exposed seconds and the communication thread's busy ones. Returns the line after the last one."""
        self._steps += 1
        if not SKIPPED < self._steps <= SKIPPED + WATCHED:
            return None
        self._exposed += exposed / WATCHED
        self._busy += busy / WATCHED
        return self._verdict() if self._steps == SKIPPED + WATCHED else None

    def _verdict(self) -> str | None:
        # Uncompressed, backward would hide as much as it hides now.
        hidden = max(0.0, self._busy - self._exposed)
        without = max(0.0, self._uncompressed - hidden)
        if self._exposed < _MARGIN * without + _LEAST_SECONDS:
            return None
        return (
            f"{self._codec} is not paying off here: communication adds {1e3 * self._exposed:.1f} ms to a step, and uncompressed "
            f"it would add about {1e3 * without:.1f} ms (this link: {8 * self._link.rate / 1e9:.2g} Gb/s, round trip "
            f"{1e3 * self._link.round_trip:.2g} ms); codec='none' is faster, and thinwire bench collective shows below which "
            "link rate each codec wins"
        )
