"""Replicas that have drifted apart: every parameter is hashed on every rank, and the first that differs is named.

Drift is silent: an optimizer step on one rank only, a parameter that no gradient reaches, memory that flips a bit. Gradients
are the same on all ranks, so nothing brings replicas together again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Final

import torch

from thinwire.collective.transport import Transport
from thinwire.errors import DisagreementError

_BYTES: Final = 8


def verify(transport: Transport, parameters: Mapping[str, torch.Tensor], step: int) -> None:
    """Raises DisagreementError on every rank, with the first parameter that differs and the ranks that are alone, if any does."""
    mine = b"".join(map(digest, parameters.values()))
    everyone = transport.gather_bytes(mine)
    if len(set(everyone)) == 1:
        return
    for number, name in enumerate(parameters):
        parts = [one[_BYTES * number : _BYTES * (number + 1)] for one in everyone]
        if len(set(parts)) > 1:
            common, _ = Counter(parts).most_common(1)[0]
            apart = [rank for rank, part in enumerate(parts) if part != common]
            said = ", ".join(f"rank {rank}: {part.hex()}" for rank, part in enumerate(parts))
            raise DisagreementError(
                f"replicas differ before step {step}: parameter {name} is the first, on rank {', '.join(map(str, apart))} "
                f"(hashes: {said}); allowed: the same bits on all ranks"
            )


def digest(tensor: torch.Tensor) -> bytes:
    """The first bytes of the SHA-256 of a tensor's values."""
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(data.tobytes()).digest()[:_BYTES]
