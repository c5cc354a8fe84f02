"""Agree before the first byte: ranks compare what they are about to do, and say what each has if they differ."""

from __future__ import annotations

import hashlib
from typing import Final

from thinwire._version import __version__
from thinwire.collective.transport import Transport
from thinwire.errors import DisagreementError

WIRE_VERSION: Final = 1


def agree(transport: Transport, operation: str, **facts: object) -> None:
    """Raises DisagreementError on every rank, with each rank's facts that differ, unless all ranks say the same."""
    mine = {"thinwire": __version__, "wire": WIRE_VERSION, "operation": operation, **facts}
    text = "\n".join(f"{key}={value}" for key, value in mine.items())
    digest = hashlib.sha256(text.encode()).digest()
    if len(set(transport.gather_bytes(digest))) == 1:
        return
    said = [_facts(part) for part in transport.gather_text(text)]
    differ = [key for key in dict.fromkeys(key for one in said for key in one) if len({one.get(key) for one in said}) > 1]
    ranks = "; ".join(
        f"rank {rank}: " + ", ".join(f"{key}={one.get(key, 'nothing')}" for key in differ) for rank, one in enumerate(said)
    )
    raise DisagreementError(f"ranks disagree on {', '.join(differ)} before {operation}: {ranks}")


def _facts(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value for key, _, value in pairs}
