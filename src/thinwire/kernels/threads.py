"""A small pool that runs kernels on pieces of a row; kernels release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from thinwire.errors import ConfigError

# Below this many elements a piece, handing it to another thread costs more than it saves.
SMALLEST_PIECE = 1 << 18

_threads: int | None = None
_pool: ThreadPoolExecutor | None = None


def get_num_threads() -> int:
    """Threads that kernels may use; until set, the processors that this process may run on, at most 4."""
    return _threads or min(4, len(os.sched_getaffinity(0)))


def set_num_threads(count: int) -> None:
    """Let kernels use up to ``count`` threads. Raises ConfigError below 1."""
    global _threads, _pool
    if count < 1:
        raise ConfigError(f"threads={count!r} is out of range; allowed: 1 or more")
    if count != _threads:
        _pool = None
    _threads = count


def in_pieces(function: Callable[[int, int], object], n: int, align: int) -> None:
    """Call ``function(start, stop)`` over [0, n) in pieces whose starts are multiples of ``align``."""
    global _pool
    count = min(get_num_threads(), n // SMALLEST_PIECE)
    if count <= 1:
        if n:
            function(0, n)
        return
    step = -(-n // (count * align)) * align
    if _pool is None:
        _pool = ThreadPoolExecutor(get_num_threads() - 1, thread_name_prefix="thinwire-kernel")
    later = [_pool.submit(function, start, min(start + step, n)) for start in range(step, n, step)]
    function(0, min(step, n))
    for piece in later:
        piece.result()


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)
