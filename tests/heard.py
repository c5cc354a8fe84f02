"""What thinwire's log says while a test runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def heard(level: int = logging.INFO) -> Iterator[list[str]]:
    """The lines of ``level`` and above, as they come."""
    lines: list[str] = []
    handler, logger = logging.Handler(level), logging.getLogger("thinwire")
    handler.emit = lambda record: lines.append(record.getMessage())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(level, logger.getEffectiveLevel()))
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
