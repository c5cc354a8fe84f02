"""``thinwire inspect FILE...``: tensors of files, of which each is a rank's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thinwire.cli.inspect_output import Found, progress
from thinwire.codec.base import Codec
from thinwire.inspect.files import open_ranks
from thinwire.inspect.layers import Collection


def files(paths: Sequence[Path], codecs: Sequence[Codec]) -> Found:
    """Raises as :func:`thinwire.inspect.files.open_ranks`."""
    opened = open_ranks(paths)
    collection = Collection(codecs)
    with progress("inspecting", len(opened[0].shapes)) as advance:
        for name in opened[0].shapes:
            collection.add(name, [one.read(name) for one in opened])
            advance()
    what = f"{paths[0]}" if len(paths) == 1 else f"{len(paths)} ranks: {', '.join(map(str, paths))}"
    ignored = opened[0].ignored
    listed = ", ".join(f"{name} {kind}" for name, kind in list(ignored.items())[:5]) + (", …" if len(ignored) > 5 else "")
    notes = [f"left out, not floats or without elements: {listed}"] if ignored else []
    return Found(title=what, layers=collection.layers(), values=opened[0].read, notes=notes)
