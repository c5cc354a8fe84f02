"""What ``feedback=`` means: a form, its spec, a word, or the codec's own default."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from thinwire.codec.base import Codec
from thinwire.codec.cast import Raw
from thinwire.errors import ConfigError
from thinwire.feedback.deep_gradient import DeepGradient, require_sparse
from thinwire.feedback.forms import Decayed, Feedback, MovingAverage, Plain

OFF: Final = "off"
"""What handshakes and states say where there is no feedback."""

ALLOWED: Final = (
    "None, False, True, 'off', 'plain', 'decay:0.95', 'average:0.9', 'dgc:0.9', thinwire.feedback.Plain(), .Decayed(beta=0.95), "
    ".MovingAverage(beta=0.9, bits=8), thinwire.DeepGradient(momentum=0.9)"
)
FORMS: Final[Mapping[str, type[Feedback]]] = {form.label: form for form in (Plain, Decayed, MovingAverage, DeepGradient)}
_WORDS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "none": None}


def form_of(feedback: object, *codecs: Codec) -> Feedback | None:
    """What ``feedback=`` of ``compress`` means with these codecs; None for no feedback, which is the default if none asks for it.

    Raises ConfigError for anything else, and for DeepGradient with a codec that is not sparse.
    """
    form = _form_of(any(one.feedback_default for one in codecs) if feedback is None else feedback)
    if isinstance(form, DeepGradient):
        for one in [one for one in codecs if not isinstance(one, Raw)] or codecs:
            require_sparse(one)
    return form


def _form_of(feedback: object) -> Feedback | None:
    if isinstance(feedback, bool):
        return Plain() if feedback else None
    if isinstance(feedback, Feedback):
        return feedback
    if isinstance(feedback, str):
        return parse(feedback)
    raise ConfigError(f"feedback={feedback!r} is not allowed; allowed: {ALLOWED}")


def spec_of(form: Feedback | None) -> str:
    """A form's spec, or "off"."""
    return OFF if form is None else form.spec()


def parse(spec: str) -> Feedback | None:
    """A form from ``label`` or ``label:beta``, either with ``;field=value`` behind it, or None from "off".

    Raises ConfigError for anything else.
    """
    if spec == OFF:
        return None
    head, *parts = spec.split(";")
    label, colon, lead = head.partition(":")
    if label not in FORMS:
        raise ConfigError(f"feedback={spec!r} is not known; allowed: {ALLOWED}")
    form = FORMS[label]
    fields = [(form.lead, lead)] if colon else []
    fields += [(name, value) for name, _, value in (part.partition("=") for part in parts)]
    known = {f.name for f in dataclasses.fields(form)}
    for name, _ in fields:
        if name not in known or len(fields) != len(dict(fields)):
            raise ConfigError(f"feedback={spec!r} has a bad field {name!r}; allowed, once each: {', '.join(sorted(known))}")
    return form(**{name: _value(value) for name, value in fields})


def _value(word: str) -> Any:
    if re.fullmatch(r"[0-9]{1,9}", word):
        return int(word)
    if re.fullmatch(r"[0-9]{0,9}\.[0-9]{1,20}", word):
        return float(word)
    return _WORDS.get(word, word)
