"""Names and what they resolve to: exactly one class and its defaults."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Final

from thinwire.codec import affine, cast, float8, integer, minmax, mxfp4
from thinwire.codec.base import Codec
from thinwire.errors import ConfigError, unknown_name

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

REGISTRY: Final[Mapping[str, Codec]] = {
    made.name: made
    for made in [
        cast.Raw(),
        cast.BFloat16(),
        cast.Float16(),
        *(integer.Int(bits=bits, **_INT_DEFAULTS[bits]) for bits in reversed(integer.BITS)),
        *(minmax.MinMax(bits=bits) for bits in reversed(minmax.BITS) if bits > 1),
        *(affine.Affine(bits=bits) for bits in reversed(affine.BITS)),
        float8.Float8(format="e4m3"),
        float8.Float8(format="e5m2"),
        mxfp4.MxFp4(),
    ]
}
"""Every name with the codec that its defaults give."""


def codec(name: str | Codec, **fields: Any) -> Codec:
    """The codec of a registered name, with ``fields`` in place of its defaults: ``codec("int4", block=64)``.

    A codec is returned as it is, or with the fields replaced. Raises ConfigError for an unknown name or field (with the
    nearest known ones) and for values out of range.
    """
    if isinstance(name, Codec):
        return _with_fields(name, fields)
    if isinstance(name, str) and name in REGISTRY:
        return _with_fields(REGISTRY[name], fields)
    raise unknown_name("codec", name, REGISTRY)


def _with_fields(base: Codec, fields: Mapping[str, Any]) -> Codec:
    if not fields:
        return base
    allowed = [f.name for f in dataclasses.fields(base) if f.name != base.in_name]
    for field in fields:
        if field == base.in_name:
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


def from_spec(text: str) -> Codec:
    """The inverse of :meth:`Codec.spec`. Raises ConfigError for anything that no codec would write."""
    name, *parts = text.split(";")
    fields: dict[str, Any] = {}
    for part in parts:
        key, separator, value = part.partition("=")
        if not separator or key in fields:
            raise ConfigError(f"codec spec {text!r} has a bad field {part!r}; allowed: field=value, once each")
        fields[key] = _value(value)
    # Not codec(name, **fields): the text may have a field called "name".
    made = _with_fields(codec(name), fields)
    if made.spec() != text:
        raise ConfigError(f"codec spec {text!r} is not complete; allowed: {made.spec()!r}")
    return made


def _value(text: str) -> int | str | None:
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS:
        return int(text)
    return None if text == "none" else text


def describe(n: int = 1 << 20) -> list[dict[str, object]]:
    """A row a codec: name, effective bits an element in rows of ``n``, fields and source."""
    return [
        {
            "codec": name,
            "bits_per_element": made.bits_per_element(n),
            "fields": ", ".join(made.spec().split(";")[1:]),
            "source": made.source,
        }
        for name, made in REGISTRY.items()
    ]
