"""Options that several verbs read."""

from __future__ import annotations

from thinwire.codec import codec as resolve
from thinwire.codec.base import Codec
from thinwire.errors import ConfigError


def parse_codecs(names: str) -> list[Codec]:
    """The codecs of a comma-separated list. Raises ConfigError if one is unknown or named twice, or there is none."""
    parts = [name.strip() for name in names.split(",") if name.strip()]
    if not parts or len(set(parts)) < len(parts):
        raise ConfigError(f"--codec {names!r} is empty or names a codec twice; allowed: names separated by commas")
    return [resolve(name) for name in parts]
