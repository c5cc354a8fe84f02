"""What was sent and how long it took: counted where it happens, read as one record."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
    """Totals of one rank since the last reading. Bytes are payload: what the codec wrote, without TCP's headers."""

    codec: str = ""
    """The spec of what ``compress`` was asked for."""
    steps: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    elements_compressed: int = 0
    elements_uncompressed: int = 0
    encode_seconds: float = 0.0
    wire_seconds: float = 0.0
    """Time that the communication thread waited for messages."""
    decode_seconds: float = 0.0
    exposed_seconds: float = 0.0
    """Time from the moment the last gradient of a step was ready until its mean was."""
    error: float | None = None
    """With feedback, the size of what this rank's wire lost relative to what it sent, sqrt(sum e^2 / sum x^2); else None."""

    @property
    def compressed_share(self) -> float | None:
        """Share of the gradients' elements that really went compressed; None if none went at all."""
        total = self.elements_compressed + self.elements_uncompressed
        return self.elements_compressed / total if total else None

    def as_dict(self) -> dict[str, str | float | int | None]:
        return {**dataclasses.asdict(self), "compressed_share": self.compressed_share}


class Recorder:
    """Counts for :class:`Stats`; safe to use from the communication thread while another reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, float] = {}

    def add(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._totals[name] = self._totals.get(name, 0) + amount

    @contextmanager
    def timed(self, name: str) -> Generator[None]:
        """Add the seconds that the body takes to ``name``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(**{name: time.perf_counter() - start})

    def take(self) -> Stats:
        """The totals, which start at zero again."""
        with self._lock:
            totals, self._totals = self._totals, {}
        lost, sent = totals.pop("lost_squares", 0.0), totals.pop("sent_squares", 0.0)
        error = (lost / sent) ** 0.5 if sent > 0 else None
        counts = {f.name for f in dataclasses.fields(Stats) if f.type == "int"}
        values = {name: int(value) if name in counts else value for name, value in totals.items()}
        return Stats(error=error, **values)  # pyright: ignore[reportArgumentType]  names come from this module
