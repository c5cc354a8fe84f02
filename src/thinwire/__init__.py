"""thinwire sends the tensors of distributed PyTorch training in a few bits per element and keeps the training correct.

Importing it imports neither torch nor Numba; the names that need torch load it when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thinwire import codec
from thinwire._version import __version__
from thinwire.codec.base import Codec
from thinwire.errors import (
    CollectiveTimeout,
    ConfigError,
    DataError,
    DisagreementError,
    PeerLost,
    ThinwireError,
    TransportError,
    WireError,
)

if TYPE_CHECKING:
    from thinwire import feedback as feedback
    from thinwire import optim as optim
    from thinwire.codec.registry import codec as codec
    from thinwire.feedback import DeepGradient
    from thinwire.functional import Work, all_gather, all_reduce, reduce_scatter
    from thinwire.metrics import Stats
    from thinwire.training.ddp import Handle, compress

_LAZY = {
    "DeepGradient": "thinwire.feedback",
    "Handle": "thinwire.training.ddp",
    "Stats": "thinwire.metrics",
    "Work": "thinwire.functional",
    "all_gather": "thinwire.functional",
    "all_reduce": "thinwire.functional",
    "compress": "thinwire.training.ddp",
    "reduce_scatter": "thinwire.functional",
}

_MODULES = ("feedback", "optim")
"""What users name as ``thinwire.feedback`` without importing it."""

__all__ = [
    "Codec",
    "CollectiveTimeout",
    "ConfigError",
    "DataError",
    "DeepGradient",
    "DisagreementError",
    "Handle",
    "PeerLost",
    "Stats",
    "ThinwireError",
    "TransportError",
    "WireError",
    "Work",
    "__version__",
    "all_gather",
    "all_reduce",
    "codec",
    "compress",
    "reduce_scatter",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY and name not in _MODULES:
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")
    try:
        if name in _MODULES:
            return importlib.import_module(f"thinwire.{name}")
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"thinwire.{name} needs torch: pip install 'thinwire[torch]'", name="torch") from None
