"""How a model's gradient elements travel, in numbers and in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from thinwire.policy.choice import Choice
from thinwire.training.assignment import Assignment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """Elements that go compressed and uncompressed, and the names of the parameters that hold the latter."""

    compressed: int
    uncompressed: int
    names_uncompressed: tuple[str, ...]
    bits_per_element: float
    """Effective bits of a compressed element, on average; 32 if there is none."""
    by_codec: tuple[tuple[str, int], ...]
    """Compressed elements by the codec's name."""

    @property
    def total(self) -> int:
        return self.compressed + self.uncompressed

    def counts(self) -> str:
        """Bits, and elements by codec if there are several."""
        each = "; ".join(f"{name}: {elements:,}" for name, elements in self.by_codec)
        return f"{self.bits_per_element:.3f} bits" + (f" ({each})" if len(self.by_codec) > 1 else "")

    def summary(self, codec: Choice, feedback: str, min_elements: int) -> str:
        """One line: codec, bits, feedback's spec, threshold, and what goes uncompressed."""
        if not self.compressed:
            return f"{codec.spec()}: all {self.total:,} gradient elements uncompressed (fp32)"
        return (
            f"{codec.spec()}: {self.compressed:,} of {self.total:,} gradient elements compressed to "
            f"{self.counts()}, feedback {feedback}; "
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


def share_of(parameters: Mapping[str, torch.Tensor], assignment: Assignment) -> Share:
    """The share of a model's parameters, by name, that ``assignment`` compresses."""
    sizes = {name: p.numel() for name, p in parameters.items()}
    plain = {name: size for name, size in sizes.items() if name not in assignment.codecs}
    total, uncompressed = sum(sizes.values()), sum(plain.values())
    return Share(
        compressed=total - uncompressed,
        uncompressed=uncompressed,
        names_uncompressed=tuple(plain),
        bits_per_element=assignment.bits_per_element(sizes),
        by_codec=tuple((codec.name, elements) for codec, elements in assignment.groups(sizes).items()),
    )
