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
