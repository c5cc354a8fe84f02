"""Options that several verbs read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from thinwire.codec import codec as resolve
from thinwire.codec.base import Codec
from thinwire.errors import ConfigError
from thinwire.policy import choice
from thinwire.policy.choice import Choice

T = TypeVar("T")


def parse_codecs(names: str) -> list[Codec]:
    """The codecs of a comma-separated list. Raises ConfigError if one is unknown or named twice, or there is none."""
    return _each(names, resolve)


def parse_choices(names: str) -> list[Choice]:
    """The same for what ``compress`` takes: also ``int2/int4``, ``auto:4`` and ``*.bias=none|head.*=int8|*=int4``."""
    return _each(names, choice.resolve)


def _each(names: str, read: Callable[[str], T]) -> list[T]:
    parts = [name.strip() for name in names.split(",") if name.strip()]
    if not parts or len(set(parts)) < len(parts):
        raise ConfigError(f"--codec {names!r} is empty or names a codec twice; allowed: names separated by commas")
    return [read(name) for name in parts]
