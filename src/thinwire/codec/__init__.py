"""Codecs: rows of floats <-> rows of bytes. Importable without torch.

The package itself can be called: ``thinwire.codec("int4")`` is :func:`thinwire.codec.registry.codec`, so that the name serves
both as the function and as the place of its parts.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from thinwire.codec.base import Codec
from thinwire.codec.registry import REGISTRY, codec, describe, from_spec, short

__all__ = ["REGISTRY", "Codec", "codec", "describe", "from_spec", "short"]


class _CallablePackage(types.ModuleType):
    def __call__(self, name: str | Codec, **fields: Any) -> Codec:
        return codec(name, **fields)


sys.modules[__name__].__class__ = _CallablePackage
