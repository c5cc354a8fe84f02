"""Compilation on first use, cached on disk so that many ranks of several versions can share the cache.

Numba keys its cache by one source file's date. A kernel here inlines helpers of other files, so the stamp is the hash of
all kernel sources; and since processes that write the same index at once can mix it up, compiling and loading happen
under one lock file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import numba
from numba import types

_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
INT, BOOL = types.int64, types.boolean
BYTES, FLOATS = types.uint8[::1], types.float32[::1]
# Takes writable memory too, so that a message straight from a file or a socket needs no copy.
READ_BYTES = types.Array(types.uint8, 1, "C", readonly=True)

_process_lock: Final = threading.Lock()

inline: Final = numba.njit(forceinline=True, **_OPTIONS)
"""Decorator of a helper that kernels of any file call; it is compiled into its callers."""


def sources_stamp(folder: Path = Path(__file__).parent) -> str:
    """Hash of every kernel source: one changed line makes every cached kernel stale."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _machine_lock(folder: Path) -> Generator[None]:
    """One process at a time; the system drops the lock of a process that dies, and one that is frozen is not waited for."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / "thinwire.lock", "wb")  # noqa: SIM115  closed below, after the lock
    except OSError:
        handle = open(Path(tempfile.gettempdir()) / "thinwire.lock", "wb")  # noqa: SIM115  a read-only cache folder
    with handle:
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    break  # to compile it twice is only slower: Numba replaces cache files as a whole
                time.sleep(0.01)
        yield


_PATIENCE_SECONDS: Final = 5.0


def _dispatcher(function: Callable[..., Any]) -> tuple[Any, bool]:
    """Numba's function, and whether it is cached: where no folder can be written, it works without, and says so."""
    try:
        return numba.njit(signature_or_function=function, cache=True, **_OPTIONS), True
    except RuntimeError as error:
        text = f"every process compiles kernels anew ({error}); set NUMBA_CACHE_DIR to a folder that can be written"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return numba.njit(signature_or_function=function, **_OPTIONS), False


class Kernel:
    """A function with one signature, compiled (or loaded from the cache) the first time it is called."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.signature = types.none(*arguments)
        self._dispatcher, self._cached = _dispatcher(function)
        self._ready = False

    def __call__(self, *args: Any) -> Any:
        if not self._ready:
            self.prepare()
        return self._dispatcher(*args)

    def prepare(self) -> None:
        """Compile or load now; safe from any number of threads and processes."""
        with _process_lock:
            if self._ready:
                return
            if self._cached:
                cache = self._dispatcher._cache  # Numba has no public hook for the stamp
                cache._cache_file._source_stamp = sources_stamp()
                with _machine_lock(Path(cache.cache_path)):
                    self._dispatcher.compile(self.signature)
            else:
                self._dispatcher.compile(self.signature)
            # An argument of another type is a bug here; compiling for it would do so outside of the lock.
            self._dispatcher.disable_compile()
            self._ready = True


def kernel(*arguments: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorator of an entry point: one explicit signature, so that a cache entry can only ever mean one thing."""
    return lambda function: Kernel(function, arguments)
