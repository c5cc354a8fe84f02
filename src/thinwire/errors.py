"""The exception tree: whose mistake it was decides the class, and every message names the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ThinwireError(Exception):
    """Base of every error that thinwire raises on purpose."""


class ConfigError(ThinwireError, ValueError):
    """An argument that the caller can mend: the message has its name, its value and what is allowed."""


class DataError(ThinwireError, ValueError):
    """A data file that is missing, damaged or of another kind than it should be."""


class WireError(ThinwireError, ValueError):
    """Bytes that are not what the wire format allows: truncated, altered, or of another version."""


class DisagreementError(ThinwireError, RuntimeError):
    """The ranks of a group were started with different settings; the message has what each rank said."""


def unknown_name(kind: str, name: object, allowed: Iterable[str]) -> ConfigError:
    """An error for a name that is not in ``allowed``; it puts the nearest names first."""
    names = sorted(allowed)
    nearest = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f"; did you mean {', '.join(map(repr, nearest))}?" if nearest else ""
    return ConfigError(
        f"{kind}={name!r} is not known{hint} Allowed: {', '.join(names)}"
        if hint
        else f"{kind}={name!r} is not known; allowed: {', '.join(names)}"
    )


class TransportError(ThinwireError, RuntimeError):
    """A message that did not get through: the text names the operation, the peer and the bytes."""

    def __init__(self, message: str, ranks: tuple[int, ...] = (), operation: str = "") -> None:
        super().__init__(message)
        self.ranks = ranks
        """The ranks of the group that were lost, as far as is known."""
        self.operation = operation


class PeerLost(TransportError):
    """A rank has ended, was killed, or gave up on this one."""


class CollectiveTimeout(TransportError):
    """Nothing came from a rank within the timeout: it is frozen, cut off, or far behind."""
