"""Gradients of a script's ranks on their way to the one that reports: files of a folder, and a note of each rank when it is done.

rank0-optimizer0-step0.npz      a step of one optimizer on one rank, by parameter
rank0.json                      what the rank wrote, and what it left out
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.errors import ConfigError
from thinwire.inspect.files import TensorFile, open_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note:
    """What one rank wrote: file names by optimizer and step, and why parameters were left out, by name."""

    rank: int
    files: list[list[str]]
    left_out: dict[str, str]


def write_tensors(place: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """An ``.npz`` of any names; np.savez takes no tensor that is called "file"."""
    with zipfile.ZipFile(place, "w", allowZip64=True) as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(tensor), allow_pickle=False)


def write_note(folder: Path, note: Note) -> None:
    """Whole or not at all: the reader takes what is there for complete."""
    part = folder / f"rank{note.rank}.part"
    part.write_text(json.dumps(dataclasses.asdict(note)))
    part.replace(folder / f"rank{note.rank}.json")


def meeting_place(job: str) -> Path:
    """A folder of this user's that all processes of ``job`` on this machine find. Raises ConfigError if another user has it."""
    folder = Path(tempfile.gettempdir()) / f"thinwire-inspect-{os.getuid()}-{job}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to somebody else; allowed: --keep FOLDER, a folder of your own")
    return folder


def kept(folder: Path, rank: int) -> Path:
    """The user's folder, made if absent. Raises ConfigError if it has this rank's files already or cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--keep {folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--keep {folder} cannot be written to; allowed: a folder of your own")
    if any(folder.glob(f"rank{rank}[.-]*")):
        raise ConfigError(f"--keep {folder} has gradients of an earlier run; allowed: a new or empty folder")
    return folder


def discard(folder: Path, rank: int) -> None:
    """Remove one rank's files, and the folder after the last."""
    for path in folder.glob(f"rank{rank}[.-]*"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove(folder: Path) -> None:
    """Remove the folder of a job."""
    shutil.rmtree(folder, ignore_errors=True)


def wait_for_notes(folder: Path, ranks: int, seconds: float) -> list[Note]:
    """The notes of ``ranks`` ranks, or those that are there after so long; by rank."""
    end = time.monotonic() + seconds
    while len(found := sorted(folder.glob("rank*.json"))) < ranks and time.monotonic() < end:
        time.sleep(0.05)
    notes = [Note(**json.loads(path.read_text())) for path in found]
    return sorted(notes, key=lambda note: note.rank)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """One layer at one step, still in the files of the ranks."""

    name: str
    files: list[TensorFile]

    def read(self) -> list[npt.NDArray[Any]]:
        """Every rank's gradient; where a rank did not use the parameter it is zero, as it is for DDP."""
        shape = next(file.shapes[self.name] for file in self.files if self.name in file.shapes)
        return [file.read(self.name) if self.name in file.shapes else np.zeros(shape, dtype=np.float32) for file in self.files]


def pieces(folder: Path, notes: list[Note]) -> list[Piece]:
    """All layers of every optimizer and step that all ranks have."""
    found: list[Piece] = []
    for optimizer in range(min(len(note.files) for note in notes)):
        for step in range(min(len(note.files[optimizer]) for note in notes)):
            files = [open_file(folder / note.files[optimizer][step]) for note in notes]
            names = dict.fromkeys(name for file in files for name in file.shapes)
            found += [Piece(name=name, files=files) for name in names]
    return found
