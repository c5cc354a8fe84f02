"""Coverage-guided fuzzing of frames with atheris: ``python tests/fuzz/fuzz_frames.py -runs=1000000`` (libFuzzer's options).

Only thinwire.codec is instrumented, where bytes are checked; what kernels do with rows is the business of test_rows.py. A
finding is written to a file crash-* in the current folder, and running the harness with its name repeats it. Atheris does
not come back from its last run, so the figures are printed in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["thinwire.codec"]):
    from thinwire.codec import frame
from thinwire.errors import WireError

from mutations import HEADER, Mutator, seal  # isort: skip


class Harness:
    """One run is one message; it counts what became of them."""

    def __init__(self) -> None:
        self.accepted = self.refused = 0
        self.mutator = Mutator(0)

    def run(self, data: bytes) -> None:
        """Decode a message: any error but WireError, or rows of another shape than declared, is a finding."""
        try:
            decoded = frame.loads(data)
        except WireError:
            self.refused += 1
            return
        self.accepted += 1
        _, _, _, _, rows, _, n, _ = HEADER.unpack_from(data)
        assert decoded.shape == (rows, n)
        assert decoded.dtype == np.float32

    def change(self, data: bytes, max_size: int, seed: int) -> bytes:
        """The next message: a new one, this one as libFuzzer changes it, or as :class:`Mutator` does; often sealed."""
        chance = self.mutator.chance
        chance.seed(seed)
        kind = chance.randrange(4)
        if kind == 0:
            changed = self.mutator.message()
        elif kind == 1:
            changed = self.mutator.mutate(data)
        else:
            changed = atheris.Mutate(data, len(data)) if data else b"T"
        changed = bytes(seal(bytearray(changed))) if chance.random() < 0.5 else changed
        return changed[:max_size]


def runs_of(arguments: list[str]) -> int:
    """How many runs the options ask for; -1 is no end."""
    return int(next((text.partition("=")[2] for text in reversed(arguments) if text.startswith("-runs=")), "-1"))


def main() -> None:
    harness, last = Harness(), runs_of(sys.argv)

    def run(data: bytes) -> None:
        harness.run(data)
        if harness.accepted + harness.refused == last:
            print(f"{last} runs: {harness.accepted} accepted, {harness.refused} refused", flush=True)

    atheris.Setup([*sys.argv, "-max_len=8192"], run, custom_mutator=harness.change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
