"""Memory for messages that is used again: fresh memory costs a page fault every 4 KiB."""

from __future__ import annotations

from collections import deque

import torch


class Buffers:
    """Bytes to borrow and to give back; tensors of many sizes share a few buffers, since these have powers of two."""

    def __init__(self) -> None:
        self._free: dict[int, deque[torch.Tensor]] = {}

    @property
    def kept(self) -> int:
        """Bytes that nobody has at present."""
        return sum(buffer.numel() for free in self._free.values() for buffer in free)

    def borrow(self, size: int) -> torch.Tensor:
        """(``size``,) uint8 of any content."""
        free = self._free.get(_capacity(size))
        whole = free.pop() if free else torch.empty(_capacity(size), dtype=torch.uint8)
        return whole[:size]

    def give_back(self, buffer: torch.Tensor) -> None:
        """Take back what :meth:`borrow` gave."""
        capacity = _capacity(buffer.numel())
        self._free.setdefault(capacity, deque()).append(buffer.as_strided((capacity,), (1,)))


def _capacity(size: int) -> int:
    return 1 << (size - 1).bit_length()
