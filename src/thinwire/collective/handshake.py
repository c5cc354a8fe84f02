"""Agree before the first byte: ranks compare what they are about to do, and say what each has if they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from thinwire._version import __version__
from thinwire.collective.transport import Transport
from thinwire.errors import DisagreementError

WIRE_VERSION: Final = 1
_ITEM: Final = "parameter "


def agree(transport: Transport, operation: str, items: Sequence[str], **facts: object) -> None:
    """Raises DisagreementError on every rank, with each rank's facts that differ, unless all ranks say the same.

    ``items`` is a list of which only the first that differs is told.
    """
    mine = {"thinwire": __version__, "wire": WIRE_VERSION, "operation": operation, **facts}
    mine |= {f"{_ITEM}{number}": item for number, item in enumerate(items)}
    text = "\n".join(f"{key}={value}" for key, value in mine.items())
    digest = hashlib.sha256(text.encode()).digest()
    if len(set(transport.gather_bytes(digest))) == 1:
        return
    said = [_facts(part) for part in transport.gather_text(text)]
    differ = [key for key in dict.fromkeys(key for one in said for key in one) if len({one.get(key) for one in said}) > 1]
    several = [key for key in differ if key.startswith(_ITEM)]
    differ = [key for key in differ if key not in several[1:]]
    ranks = "; ".join(
        f"rank {rank}: " + ", ".join(f"{key}={one.get(key, 'nothing')}" for key in differ) for rank, one in enumerate(said)
    )
    raise DisagreementError(f"ranks disagree on {', '.join(differ)} before {operation}: {ranks}")


def _facts(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value for key, _, value in pairs}
