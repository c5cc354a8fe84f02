"""Tensors by name from ``.npz`` and ``.safetensors`` files: a layer at a time, and nothing in a file is ever run.

Only headers are read at first, and sizes are checked against the file, so that a damaged header costs no memory.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import tokenize
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, final

import numpy as np
import numpy.typing as npt

from thinwire.errors import ConfigError, DataError

SUFFIXES: Final = (".npz", ".safetensors")
_BROKEN: Final = (
    OSError, ValueError, EOFError, LookupError, RuntimeError, MemoryError, TypeError, ArithmeticError,
    zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError,
)  # fmt: skip
"""What zipfile and NumPy raise on damaged files: RuntimeError for encrypted ones, the last two for headers, which are literals of
Python."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entry:
    shape: tuple[int, ...]
    dtype: str
    is_float: bool


_SHOWN: Final = 200


class TensorFile(ABC):
    """One file of named tensors."""

    def __init__(self, path: Path) -> None:
        """Raises DataError if the file cannot be read or has no float tensors with elements."""
        self.path = path
        entries = self._entries()
        self.shapes = {name: one.shape for name, one in entries.items() if one.is_float and math.prod(one.shape)}
        """The float tensors that have elements, in the order of the file."""
        self.ignored = {name: f"{one.dtype}{list(one.shape)}" for name, one in entries.items() if name not in self.shapes}
        """Everything else: dtype and shape by name."""
        if not self.shapes:
            found = ", ".join(f"{name} {what}" for name, what in list(self.ignored.items())[:5]) or "nothing"
            raise DataError(f"{path} has no float tensors with elements (it has {found}); needed: one or more")

    @abstractmethod
    def _entries(self) -> dict[str, _Entry]: ...

    @abstractmethod
    def read(self, name: str) -> npt.NDArray[Any]:
        """One tensor of ``shapes``. Raises DataError if its bytes are damaged."""


def open_file(path: Path) -> TensorFile:
    """The tensors of a file.

    Raises ConfigError for another suffix or where safetensors is not installed, DataError for what cannot be read.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} ends in {path.suffix!r}; allowed: {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"{path} is a folder; needed: a file" if path.is_dir() else f"{path} does not exist")
    return Npz(path) if path.suffix == ".npz" else Safetensors(path)


@final
class Npz(TensorFile):
    """NumPy's archive. Object arrays, which could hold anything, are refused."""

    def _entries(self) -> dict[str, _Entry]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = [one for one in archive.infolist() if one.filename.endswith(".npy")]
                return {one.filename.removesuffix(".npy"): self._entry(archive, one) for one in members}
        except _BROKEN as error:
            raise self._unreadable(error) from None

    def _entry(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Entry:
        with archive.open(member) as file:
            shape, dtype = _npy_header(file)
            head = file.tell()
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects, which are not read; allowed: arrays of numbers")
        if head + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(f"{member.filename} has {member.file_size} bytes; its header says {dtype.name}{list(shape)}")
        return _Entry(shape=shape, dtype=dtype.name, is_float=dtype.kind == "f")

    def read(self, name: str) -> npt.NDArray[Any]:
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                return archive[name]
        except _BROKEN as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: BaseException) -> DataError:
        # A damaged header is part of some messages, whole.
        return DataError(f"{self.path} cannot be read as .npz: {str(error)[:_SHOWN] or type(error).__name__}")


def _npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of NumPy's format; allowed: {', '.join(map(str, readers))}")
    shape, _, dtype = readers[version](file)
    return shape, dtype


_SAFETENSORS: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@final
class Safetensors(TensorFile):
    """Hugging Face's format. Its own package checks the header; bf16, which NumPy has not, is widened here."""

    def _entries(self) -> dict[str, _Entry]:
        try:
            from safetensors import SafetensorError, safe_open
        except ModuleNotFoundError:
            raise ConfigError(f"{self.path} needs safetensors: pip install 'thinwire[safetensors]'") from None
        try:
            with safe_open(self.path, framework="np") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
                found = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
            with self.path.open("rb") as file:
                self._start, self._offsets = _safetensors_offsets(file)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise DataError(f"{self.path} cannot be read as .safetensors: {error}") from None
        order = sorted(found, key=self._offsets.__getitem__)
        return {
            name: _Entry(shape=shape, dtype=kind, is_float=kind in _SAFETENSORS)
            for name in order
            for shape, kind in [found[name]]
        }

    def read(self, name: str) -> npt.NDArray[Any]:
        start, stop, kind = self._offsets[name]
        dtype = np.dtype(_SAFETENSORS[kind])
        try:
            data = np.fromfile(self.path, dtype=dtype, count=(stop - start) // dtype.itemsize, offset=self._start + start)
            data = data.reshape(self.shapes[name])
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path} cannot be read as .safetensors: {name}: {error}") from None
        return (data.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else data


def _safetensors_offsets(file: BinaryIO) -> tuple[int, dict[str, tuple[int, int, str]]]:
    """Where the data starts, and first byte, end and dtype of each tensor: https://huggingface.co/docs/safetensors."""
    (size,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return 8 + size, {name: (*one["data_offsets"], one["dtype"]) for name, one in header.items()}


def open_ranks(paths: Sequence[Path]) -> list[TensorFile]:
    """The files of several ranks. Raises as :func:`open_file`, and ConfigError for the first name or shape that differs."""
    files = [open_file(path) for path in paths]
    first = files[0]
    for other in files[1:]:
        for name in [*first.shapes, *other.shapes]:
            if first.shapes.get(name) != other.shapes.get(name):
                raise ConfigError(
                    f"{first.path} and {other.path} differ at {name!r}: {_said(first, name)} and {_said(other, name)}; "
                    "allowed: the same float tensors in all files"
                )
    return files


def _said(file: TensorFile, name: str) -> str:
    return f"shape {list(file.shapes[name])}" if name in file.shapes else "not there"
