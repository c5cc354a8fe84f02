"""How a model's gradient elements travel, in numbers and in words."""

from __future__ import annotations

import dataclasses

from thinwire.codec.base import Codec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """Elements that go compressed and uncompressed, and the names of the parameters that hold the latter."""

    compressed: int
    uncompressed: int
    names_uncompressed: tuple[str, ...]

    @property
    def total(self) -> int:
        return self.compressed + self.uncompressed

    def summary(self, codec: Codec, feedback: bool, min_elements: int) -> str:
        """One line: codec, bits, threshold, and what goes uncompressed."""
        if not self.compressed:
            return f"{codec.spec()}: all {self.total:,} gradient elements uncompressed (fp32)"
        return (
            f"{codec.spec()}: {self.compressed:,} of {self.total:,} gradient elements compressed to "
            f"{codec.expected_bits(self.compressed):.3f} bits, feedback {'on' if feedback else 'off'}; "
            f"{self.uncompressed:,} uncompressed (fewer than {min_elements} elements or one dimension): "
            f"{', '.join(self.names_uncompressed) or 'none'}"
        )

    def little(self, min_elements: int) -> str | None:
        """A warning if less than half goes compressed, else None."""
        if 2 * self.compressed >= self.total:
            return None
        return (
            f"only {100 * self.compressed / self.total:.0f} % of the gradients' elements go compressed; uncompressed: "
            f"{', '.join(self.names_uncompressed)} (fewer than min_elements={min_elements}, one dimension, or sparse)"
        )
