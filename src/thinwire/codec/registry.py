"""Names and what they resolve to: exactly one class and its defaults."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from thinwire.codec import affine, cast, entropy, float8, gauss, grid, hadamard, integer, minmax, mxfp4, topk
from thinwire.codec.base import Codec, Wrapper, text
from thinwire.errors import ConfigError, unknown_name

_DEEPEST: Final = 3
"""How often a codec may be wrapped."""

_WORDS: Final[Mapping[str, bool | None]] = {"none": None, "true": True, "false": False}
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_DIGITS: Final = 20
"""Digits of the longest number in a spec: no field is larger, and Python refuses to read some thousands with another error."""

_INT_DEFAULTS: Final[dict[int, dict[str, Any]]] = {
    2: {"block": 32, "scale": "log8"},
    3: {"block": 32, "scale": "log8"},
    4: {"block": 32, "scale": "log8"},
    5: {"block": 64, "scale": "bf16"},
    6: {"block": 64, "scale": "bf16"},
    7: {"block": 128, "scale": "bf16"},
    8: {"block": 128, "scale": "bf16"},
}

_GAUSS_DEFAULTS: Final[dict[int, dict[str, Any]]] = {
    4: {"block": 256, "fit": "rms"},
    3: {"block": 64, "fit": "least"},
    2: {"block": 128, "fit": "rms"},
    1: {"block": 256, "fit": "least"},
}

REGISTRY: Final[Mapping[str, Codec]] = {
    made.name: made
    for made in [
        cast.Raw(),
        cast.BFloat16(),
        cast.Float16(),
        *(integer.Int(bits=bits, **_INT_DEFAULTS[bits]) for bits in reversed(integer.BITS)),
        *(gauss.Gauss(bits=bits, **fields) for bits, fields in _GAUSS_DEFAULTS.items()),
        grid.Grid(),
        *(minmax.MinMax(bits=bits) for bits in reversed(minmax.BITS) if bits > 1),
        *(affine.Affine(bits=bits) for bits in reversed(affine.BITS)),
        float8.Float8(format="e4m3"),
        float8.Float8(format="e5m2"),
        mxfp4.MxFp4(),
        topk.TopK(k=41, chunk=4096, bits=4),
    ]
}
"""Every name with the codec that its defaults give."""


WRAPPERS: Final[Mapping[str, type[Wrapper]]] = {made.label: made for made in (hadamard.Hadamard, entropy.Entropy)}
"""What wraps a codec, by the name that stands before the parenthesis: ``hadamard(int4)``."""


def codec(name: str | Codec, **fields: Any) -> Codec:
    """The codec of a name, with ``fields`` in place of its defaults: ``codec("int4", block=64)``.

    Fields may also stand in the text, ``codec("int4;block=64")``, and what wraps another codec has that in parentheses,
    ``codec("hadamard(int4;block=64)", block=256)``. A codec is returned as it is, or with the fields replaced. Raises ConfigError
    for an unknown name or field (with the nearest known ones) and for values out of range.
    """
    made = name if isinstance(name, Codec) else _parse(name, _DEEPEST)
    return _with_fields(made, fields)


def from_spec(spec: str) -> Codec:
    """The inverse of :meth:`Codec.spec`. Raises ConfigError for anything that no codec would write."""
    made = _parse(spec, _DEEPEST)
    if made.spec() != spec:
        raise ConfigError(f"codec spec {spec!r} is not complete; allowed: {made.spec()!r}")
    return made


def short(made: Codec) -> str:
    """What a person would type, and tables show: the name, and the fields that differ from what it stands for alone.

    :func:`codec` reads it; two codecs that differ in a field have two of them, where ``name`` would be the same.
    """
    if isinstance(made, Wrapper):
        head, base = f"{made.label}({short(made.inner)})", WRAPPERS[made.label](inner=made.inner)
    else:
        head, base = made.name, REGISTRY[made.name]
    told = [name for name in made.field_names() if name != "inner" and getattr(made, name) != getattr(base, name)]
    return ";".join([head, *(f"{name}={text(getattr(made, name))}" for name in told)])


def _parse(spec: Any, depth: int) -> Codec:
    """``name;field=value;...``, where the name may be ``wrapper(the same for the inner codec)``."""
    head, parts = _split(spec) if isinstance(spec, str) else (spec, [])
    fields: dict[str, Any] = {}
    for part in parts:
        key, separator, value = part.partition("=")
        if not separator or key in fields:
            raise ConfigError(f"codec spec {spec!r} has a bad field {part!r}; allowed: field=value, once each")
        fields[key] = _value(value)
    return _with_fields(_named(head, depth), fields)


def _split(spec: str) -> tuple[str, list[str]]:
    """The name up to its closing parenthesis, and the fields behind it."""
    end = spec.rfind(")") + 1
    head, *parts = spec[end:].split(";")
    return spec[:end] + head, parts


def _named(name: Any, depth: int) -> Codec:
    if isinstance(name, str) and name in REGISTRY:
        return REGISTRY[name]
    label, opened, rest = name.partition("(") if isinstance(name, str) else ("", "", "")
    if not opened or label not in WRAPPERS or not rest.endswith(")"):
        raise unknown_name("codec", name, [*REGISTRY, *(f"{wrapper}(codec)" for wrapper in WRAPPERS)])
    if not depth:
        raise ConfigError(f"codec {name!r} wraps too often; allowed: {_DEEPEST} times")
    return WRAPPERS[label](inner=_parse(rest[:-1], depth - 1))


def _with_fields(base: Codec, fields: Mapping[str, Any]) -> Codec:
    if not fields:
        return base
    allowed = [name for name in base.field_names() if name != "inner"]
    for field in fields:
        if field in base.named:
            raise ConfigError(f"{base.name}: {field}={fields[field]!r} is part of the name; allowed: another name")
        if field not in allowed:
            raise _unknown_field(base.name, field, allowed)
    return dataclasses.replace(base, **fields)


def _unknown_field(name: str, field: str, allowed: list[str]) -> ConfigError:
    if not allowed:
        return ConfigError(f"{name}: field {field!r} is not known; {name} has no fields")
    nearest = difflib.get_close_matches(field, allowed, n=1, cutoff=0.4)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ";"
    return ConfigError(f"{name}: field {field!r} is not known{hint} allowed: {', '.join(allowed)}")


def _value(word: str) -> int | float | str | bool | None:
    if len(word) <= _DIGITS and _NUMBER.fullmatch(word):
        return float(word) if "." in word else int(word)
    return _WORDS.get(word, word)


def describe(n: int = 1 << 20) -> list[dict[str, object]]:
    """A row a codec: name, effective bits an element in rows of ``n``, fields and source. Wrappers stand around int4."""
    wrapped = [codec(f"{label}(int4)") for label in WRAPPERS]
    return [
        {
            "codec": made.name,
            "bits_per_element": made.expected_bits(n),
            "fields": ", ".join(f"{name}={text(getattr(made, name))}" for name in made.field_names() if name != "inner"),
            "source": made.source,
        }
        for made in [*REGISTRY.values(), *wrapped]
    ]
