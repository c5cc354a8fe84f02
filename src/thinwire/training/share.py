"""How a model's gradient elements travel, in numbers and in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch

from thinwire.codec.base import Codec
from thinwire.codec.cast import Raw
from thinwire.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """Elements that go compressed and uncompressed, and the names of the parameters that hold the latter."""

    compressed: int
    uncompressed: int
    names_uncompressed: tuple[str, ...]

    @property
    def total(self) -> int:
        return self.compressed + self.uncompressed

    def summary(self, codec: Codec, feedback: str, min_elements: int) -> str:
        """One line: codec, bits, feedback's spec, threshold, and what goes uncompressed."""
        if not self.compressed:
            return f"{codec.spec()}: all {self.total:,} gradient elements uncompressed (fp32)"
        return (
            f"{codec.spec()}: {self.compressed:,} of {self.total:,} gradient elements compressed to "
            f"{codec.expected_bits(self.compressed):.3f} bits, feedback {feedback}; "
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

    def check(self, codec: Codec, parameters: int, min_elements: int) -> None:
        """Raises ConfigError if ``codec`` would have nothing to compress."""
        if not isinstance(codec, Raw) and not self.compressed:
            raise ConfigError(
                f"{codec.name} would compress nothing: each of the {parameters} parameters has one dimension, fewer "
                f"than min_elements={min_elements} elements or sparse gradients; allowed: a smaller min_elements, or codec='none'"
            )


def share_of(parameters: Mapping[str, torch.Tensor], compressed: Callable[[torch.Tensor], bool]) -> Share:
    """The share of a model's parameters, by name, for which ``compressed`` says so."""
    plain = {name: p.numel() for name, p in parameters.items() if not compressed(p)}
    total, uncompressed = sum(p.numel() for p in parameters.values()), sum(plain.values())
    return Share(compressed=total - uncompressed, uncompressed=uncompressed, names_uncompressed=tuple(plain))
