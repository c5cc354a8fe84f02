"""``thinwire inspect SCRIPT.py``: the first training steps of a user's script, alone or as ranks under torchrun."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from thinwire.cli.inspect_output import Found, progress
from thinwire.cli.launch import RunEnded
from thinwire.cli.ranks import is_rank
from thinwire.codec.base import Codec
from thinwire.errors import ConfigError, DataError, ThinwireError
from thinwire.inspect import captures
from thinwire.inspect.layers import Collection
from thinwire.inspect.recorder import PATIENCE, Recorder
from thinwire.inspect.script import GRACE_SECONDS, Deadline, ScriptFailed, end_soon, run

_WAIT_SECONDS: Final = 60.0
"""For the other ranks' files, once rank 0 has its own."""
_LISTED: Final = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What to run, and how much of it to look at."""

    path: Path
    arguments: Sequence[str]
    codecs: Sequence[Codec]
    steps: int
    after: int
    keep: Path | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """This process among the ranks: ``here`` of them write where rank 0 can read, this one among them or not."""

    rank: int
    ranks: int
    here: int
    folder: Path

    @property
    def is_read(self) -> bool:
        return self.rank < self.here


def script(job: Job, show: Callable[[Found], None]) -> None:
    """Run the script, end it after its steps, and ``show`` on rank 0 what they were. Never waits for the script without end.

    Raises RunEnded if the script fails, ConfigError if it made no step, DataError if gradients could not be written.
    """
    place = _place(job.keep)
    one_end = threading.Lock()

    def give_up() -> None:
        """The script does not end: report from this thread, and end the process."""
        if not one_end.acquire(blocking=False):
            return
        code = 1
        try:
            _conclude(job, place, recorder, show)
            code = 0
        except ThinwireError as error:
            print(f"thinwire: {error}", file=sys.stderr)
        finally:
            _clean(job, place)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    deadline = Deadline(GRACE_SECONDS, give_up)
    recorder = Recorder(place.folder, place.rank, job.steps, job.after, deadline.start)
    try:
        run(job.path, job.arguments, recorder)
        deadline.cancel()
        one_end.acquire()  # for good: whoever comes second must not report again
        _conclude(job, place, recorder, show)
        end_soon(0)
    except ScriptFailed as failed:
        end_soon(failed.exit_code)
        raise RunEnded(f"{failed}; {recorder.recorded()} of {job.steps} steps were recorded", failed.exit_code) from None
    finally:
        _clean(job, place)


def _place(keep: Path | None) -> _Place:
    alone = not is_rank()
    rank, ranks = (0, 1) if alone else (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    here = min(ranks, int(local)) if local.isdecimal() and keep is None and not alone else ranks
    if keep is not None:
        return _Place(rank=rank, ranks=ranks, here=here, folder=captures.kept(keep, rank))
    folder = Path(tempfile.mkdtemp(prefix="thinwire-inspect-")) if alone else captures.meeting_place(_job_name())
    return _Place(rank=rank, ranks=ranks, here=here, folder=folder)


def _job_name() -> str:
    """The same for the ranks of one start on one machine, and for nothing else."""
    parts = [os.environ.get(name, "") for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    return re.sub(r"[^\w-]", "_", "-".join([str(os.getppid()), *parts]))


def _conclude(job: Job, place: _Place, recorder: Recorder, show: Callable[[Found], None]) -> None:
    if recorder.fault is not None:
        raise DataError(f"gradients cannot be written to {place.folder}: {recorder.fault.strerror}")
    recorder.finish()
    if place.rank == 0:
        notes = captures.wait_for_notes(place.folder, place.here, _WAIT_SECONDS)
        show(_found(job, place, notes))


def _found(job: Job, place: _Place, notes: list[captures.Note]) -> Found:
    pieces = captures.pieces(place.folder, notes)
    if not pieces:
        raise ConfigError(
            f"{job.path} made no optimizer step with a gradient in this process, of {job.steps + PATIENCE} after the first "
            f"{job.after}; allowed: a script that trains with torch.optim in this process (ranks: torchrun -m thinwire inspect)"
        )
    collection = Collection(job.codecs)
    with progress("inspecting", len(pieces)) as advance:
        for piece in pieces:
            collection.add(piece.name, piece.read())
            advance()
    last = {piece.name: piece for piece in pieces}
    layers = collection.layers()
    counted = max((layer.steps for layer in layers), default=0)
    title = f"{job.path}: {counted} steps after the first {job.after}, {len(notes)} rank{'s'[: len(notes) > 1]}"
    return Found(title=title, layers=layers, values=lambda name: last[name].read()[0], notes=_notes(place, notes))


def _notes(place: _Place, notes: list[captures.Note]) -> list[str]:
    lines: list[str] = []
    missing = sorted(set(range(place.ranks)) - {note.rank for note in notes})
    if missing:
        why = "on other machines: --keep FOLDER on a disk that all share has them too" if place.here < place.ranks else "silent"
        lines.append(f"without rank {', '.join(map(str, missing))} ({why})")
    left_out = notes[0].left_out
    if left_out:
        listed = ", ".join(f"{name} ({why})" for name, why in list(left_out.items())[:_LISTED])
        lines.append(f"left out: {listed}{', …' if len(left_out) > _LISTED else ''}")
    return lines


def _clean(job: Job, place: _Place) -> None:
    """Rank 0 removes the folder after reading it; another rank that is not read, or failed, its own files."""
    if job.keep is not None:
        return
    if place.rank == 0:
        captures.remove(place.folder)
    elif not place.is_read or not (place.folder / f"rank{place.rank}.json").exists():
        captures.discard(place.folder, place.rank)
