"""A codec for each parameter by the first pattern that matches its name.

``fnmatch`` patterns: ``*`` stands for any characters, dots too, ``?`` for one, ``[...]`` for one of several. A pattern with none
of these is a parameter's full name.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from thinwire.collective.legs import Wire, WireLike, resolve, short
from thinwire.errors import ConfigError

_TEXT: Final = re.compile(r"[^;=|]+=")
ANY: Final = "*"
"""The pattern for the rest, which need not have anything left."""

_WILD: Final = re.compile(r"[*?\[]")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Patterns:
    """Patterns in order, each with its codec."""

    entries: tuple[tuple[str, Wire], ...]

    def __post_init__(self) -> None:
        if not self.entries:
            raise ConfigError("codec={} has no pattern; allowed: at least one, such as {'*': 'int4'}")
        for pattern, _ in self.entries:
            word: Any = pattern
            if not isinstance(word, str) or not word or not word.isprintable() or set(word) & set(";=|"):
                raise ConfigError(f"pattern {word!r} is not allowed; allowed: names and wildcards without ; = |")
        patterns = [pattern for pattern, _ in self.entries]
        for pattern in patterns:
            if patterns.count(pattern) > 1:
                raise ConfigError(f"pattern {pattern!r} is there twice; allowed: each once")

    @property
    def name(self) -> str:
        return "|".join(f"{pattern}={short(codec)}" for pattern, codec in self.entries)

    def spec(self) -> str:
        """``pattern=codec|pattern=codec...`` as one line, which :func:`parse` reads."""
        return "|".join(f"{pattern}={codec.spec()}" for pattern, codec in self.entries)

    def match(self, name: str) -> tuple[str, Wire] | None:
        """The first pattern that matches a parameter's name, and its codec."""
        return next((entry for entry in self.entries if fnmatch.fnmatchcase(name, entry[0])), None)

    def check(self, names: Sequence[str], aliases: Mapping[str, str]) -> None:
        """Raises ConfigError if a pattern but a last ``*`` is the first to match none of ``names``.

        ``aliases`` are other names of tied parameters.
        """
        used = {found[0] for name in names if (found := self.match(name))}
        for number, (pattern, _) in enumerate(self.entries, 1):
            if pattern not in used and not (pattern == ANY and number == len(self.entries)):
                raise ConfigError(self._unused(pattern, names, aliases))

    def _unused(self, pattern: str, names: Sequence[str], aliases: Mapping[str, str]) -> str:
        taken = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if taken:
            earlier = self.match(taken[0])
            assert earlier is not None
            return f"pattern {pattern!r} is never reached: {earlier[0]!r} comes first; allowed: the narrower pattern before it"
        tied = [alias for alias in aliases if fnmatch.fnmatchcase(alias, pattern)]
        if tied:
            return f"pattern {pattern!r} matches {tied[0]}, which is tied and goes as {aliases[tied[0]]}; allowed: that name"
        nearest = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or list(names[:3])
        return f"pattern {pattern!r} matches no parameter; the nearest are {', '.join(nearest)}"

    def unmatched(self, name: str) -> ConfigError:
        """What to raise for a parameter that no pattern matches."""
        patterns = ", ".join(repr(pattern) for pattern, _ in self.entries)
        return ConfigError(f"parameter {name} matches no pattern of {patterns}; allowed: a last pattern '*' for the rest")


def is_literal(pattern: str) -> bool:
    """Whether a pattern is a parameter's full name."""
    return not _WILD.search(pattern)


def looks_like(text: str) -> bool:
    """Whether a text is patterns, and no codec's name or spec."""
    return _TEXT.match(text) is not None


def made_of(mapping: Mapping[str, WireLike]) -> Patterns:
    """Patterns with the codecs that their names stand for. Raises ConfigError for what is no codec of fixed choice."""
    return Patterns(entries=tuple((pattern, _codec(pattern, value)) for pattern, value in mapping.items()))


def parse(text: str) -> Patterns:
    """``pattern=codec|pattern=codec...``. Raises ConfigError for anything else."""
    pairs = [part.partition("=") for part in text.split("|")]
    wrong = [part for part in pairs if not part[1]]
    if wrong:
        raise ConfigError(f"codec={text!r} has no codec for {wrong[0][0]!r}; allowed: pattern=codec, separated by |")
    return Patterns(entries=tuple((pattern.strip(), _codec(pattern, value.strip())) for pattern, _, value in pairs))


def _codec(pattern: str, value: Any) -> Wire:
    if isinstance(value, str) and value.startswith("auto:"):
        raise ConfigError(f"pattern {pattern!r}: {value} is for all parameters or none; allowed: a codec, or two legs")
    try:
        return resolve(value)
    except ConfigError as error:
        raise ConfigError(f"pattern {pattern!r}: {error}") from None
