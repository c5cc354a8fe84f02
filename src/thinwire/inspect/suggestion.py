"""The rule that suggests a codec for a layer. It sees figures only, so that anybody can apply it to a table by hand.

    1. Layers with one dimension or fewer than 256 elements go uncompressed: thinwire.compress does so, and they are few.
    2. The error of a codec is the larger of two: that of one encoding, and that of the mean over the ranks. With one rank there
       is no mean; twice the error of one encoding stands for it, what two quantizations of uncorrelated gradients lose.
    3. Of the codecs whose error is at most the tolerance, the one with the fewest bits; of equals the one with the least error.
    4. If none is, the layer goes uncompressed.

The tolerance is 0.02 if nothing else is said: an unbiased error of the mean of that size costs about 2 % more steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from thinwire.codec import REGISTRY
from thinwire.inspect.losses import Loss

MIN_ELEMENTS: Final = 256
"""As :func:`thinwire.compress` has it; a test compares them, because that module needs torch."""

TOLERANCE: Final = 0.02
_MOST_BITS: Final = 16.0
_ROW: Final = 1 << 20


def error(loss: Loss) -> float:
    """What the rule compares with the tolerance."""
    return max(loss.nmse, 2 * loss.nmse if loss.mean_nmse is None else loss.mean_nmse)


def compressible(shape: tuple[int, ...], elements: int) -> bool:
    """Whether a parameter of this shape is compressed at all."""
    return len(shape) > 1 and elements >= MIN_ELEMENTS


def suggest(losses: Iterable[Loss], tolerance: float) -> Loss | None:
    """The codec to take, or None for uncompressed: rules 2 to 4."""
    good = [one for one in losses if error(one) <= tolerance]
    return min(good, key=lambda one: (one.bits_per_element, error(one)), default=None)


def default_codecs() -> list[str]:
    """Registered codecs of 16 bits or fewer, but for those with one scale a row, and those that have feedback by default.

    The scale is one of a whole bucket, which holds several layers: what it loses of one layer alone says too little. With
    feedback, what one step loses comes with later ones, which figures of single steps do not see.
    """
    return [
        name
        for name, codec in REGISTRY.items()
        if codec.bits_per_element(_ROW) <= _MOST_BITS and getattr(codec, "block", 0) is not None and not codec.feedback_default
    ]
