"""What ``compress`` takes for a codec: one for all parameters, two legs, patterns of names, or a budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinwire.collective import legs
from thinwire.collective.legs import Wire, WireLike
from thinwire.errors import ConfigError
from thinwire.policy import auto, patterns
from thinwire.policy.auto import Auto
from thinwire.policy.patterns import Patterns

Choice = Wire | Patterns | Auto
ChoiceLike = WireLike | Mapping[str, WireLike] | Patterns | Auto


def resolve(codec: ChoiceLike) -> Choice:
    """The choice that a name, a spec or a mapping stands for; every choice's ``spec()`` is such a text.

    Raises ConfigError for a name that is not known and for anything that is not allowed in its place.
    """
    made: Any = codec
    if isinstance(made, Patterns | Auto):
        return made
    if isinstance(made, Mapping):
        return patterns.made_of(made)
    if isinstance(made, str) and made.startswith(auto.PREFIX):
        return auto.parse(made)
    if isinstance(made, str) and patterns.looks_like(made):
        return patterns.parse(made)
    return legs.resolve(made)


def short(choice: Choice) -> str:
    """What a person would type, and tables show; see :func:`thinwire.codec.registry.short`."""
    return choice.name if isinstance(choice, Patterns | Auto) else legs.short(choice)


def from_spec(spec: str) -> Choice:
    """The inverse of a choice's ``spec()``. Raises ConfigError for anything that no choice would write."""
    made = resolve(spec)
    if made.spec() != spec:
        raise ConfigError(f"codec spec {spec!r} is not complete; allowed: {made.spec()!r}")
    return made
