"""Whether compression pays: what a step's communication exposes, against what it would without, by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from thinwire import cost
from thinwire.collective.base import Link

SKIPPED: Final = 3
WATCHED: Final = 10
_MARGIN: Final = 1.1
_LEAST_SECONDS: Final = 2e-4


class Payoff:
    """Watches the steps after the first few, once; the ranks together then have a line to say if compression loses."""

    def __init__(self, codec: str, elements: int, ranks: int, link: Link) -> None:
        self._codec, self._link = codec, link
        network = cost.Network(rate=link.rate, round_trip=link.round_trip)
        self._uncompressed = cost.uncompressed(elements, 32, ranks, network)
        self._steps = 0
        self._seen: list[tuple[float, float]] = []

    def step(self, exposed: float, busy: float) -> bytes | None:
        """Take a step's exposed seconds and the communication thread's busy ones; after the last step, what this rank saw."""
        self._steps += 1
        if not SKIPPED < self._steps <= SKIPPED + WATCHED:
            return None
        self._seen.append((exposed, busy))
        return np.array(self._seen, dtype="<f8").tobytes() if self._steps == SKIPPED + WATCHED else None

    def verdict(self, seen: Sequence[bytes]) -> str | None:
        """The line to say, from what every rank saw; None if compression does not lose.

        A rank that is ready first waits for the slower one, and no network would shorten that: of each step, the rank that was
        ready last counts, the one that was exposed least.
        """
        every = np.array([np.frombuffer(one, dtype="<f8").reshape(-1, 2) for one in seen])
        last = every[..., 0].argmin(axis=0)
        exposed, busy = (float(value) for value in every[last, np.arange(last.size)].mean(axis=0))
        # Uncompressed, backward would hide as much as it hides now.
        hidden = max(0.0, busy - exposed)
        without = max(0.0, self._uncompressed - hidden)
        if exposed < _MARGIN * without + _LEAST_SECONDS:
            return None
        return (
            f"{self._codec} is not paying off here: communication adds {1e3 * exposed:.1f} ms to a step, and uncompressed "
            f"it would add about {1e3 * without:.1f} ms (this link: {8 * self._link.rate / 1e9:.2g} Gb/s, round trip "
            f"{1e3 * self._link.round_trip:.2g} ms); codec='none' is faster, and thinwire bench collective shows below which "
            "link rate each codec wins"
        )
