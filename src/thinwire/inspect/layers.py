"""Samples of layers, gathered over steps, and the rows that come of them."""

from __future__ import annotations

import dataclasses
import math
import statistics as numbers
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy.typing as npt

from thinwire.codec import Codec
from thinwire.inspect.losses import Loss, loss
from thinwire.inspect.statistics import Statistics, correlation, finite, flat, statistics
from thinwire.inspect.suggestion import compressible, error, suggest

UNCOMPRESSED: Final = "none"
_FP32_BITS: Final = 32.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer over all steps and ranks: means, but for ``absmax``, which is the largest."""

    name: str
    shape: tuple[int, ...]
    elements: int
    ranks: int
    steps: int
    absmax: float
    rms: float
    kurtosis: float | None
    block_kurtosis: float | None
    zeros: float
    nonfinite: float
    correlation: float | None
    losses: dict[str, Loss]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sample:
    statistics: list[Statistics]
    correlation: float | None
    losses: list[Loss]


class Collection:
    """Takes gradients a layer and step at a time, keeps figures only, and gives the layers in the order of their coming."""

    def __init__(self, codecs: Sequence[Codec]) -> None:
        self.codecs = list(codecs)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._samples: dict[str, list[_Sample]] = {}

    def add(self, name: str, tensors: Sequence[npt.NDArray[Any]]) -> None:
        """The gradient of one layer on every rank, all of one shape; what has no elements is left out."""
        if not tensors[0].size:
            return
        values = [flat(x) for x in tensors]
        figures = [statistics(x) for x in values]
        clean = [finite(x) for x in values]
        sample = _Sample(statistics=figures, correlation=correlation(clean), losses=[loss(clean, codec) for codec in self.codecs])
        self._shapes.setdefault(name, tensors[0].shape)
        self._samples.setdefault(name, []).append(sample)

    def layers(self) -> list[Layer]:
        """What was found so far."""
        return [_layer(name, self._shapes[name], samples) for name, samples in self._samples.items()]


def _layer(name: str, shape: tuple[int, ...], samples: Sequence[_Sample]) -> Layer:
    every = [one for sample in samples for one in sample.statistics]
    # What is not finite has no square: the mean is over the others.
    finite_elements = sum(one.elements * (1 - one.nonfinite) for one in every)
    return Layer(
        name=name,
        shape=shape,
        elements=every[0].elements,
        ranks=max(len(sample.statistics) for sample in samples),
        steps=len(samples),
        absmax=max(one.absmax for one in every),
        rms=math.sqrt(math.fsum(one.squares for one in every) / finite_elements) if finite_elements else 0.0,
        kurtosis=_mean(one.kurtosis for one in every),
        block_kurtosis=_mean(one.block_kurtosis for one in every),
        zeros=numbers.fmean(one.zeros for one in every),
        nonfinite=numbers.fmean(one.nonfinite for one in every),
        correlation=_mean(sample.correlation for sample in samples),
        losses=_losses(samples),
    )


def _losses(samples: Sequence[_Sample]) -> dict[str, Loss]:
    found: dict[str, Loss] = {}
    for parts in zip(*(sample.losses for sample in samples), strict=True):
        nmse, mean = numbers.fmean(one.nmse for one in parts), _mean(one.mean_nmse for one in parts)
        found[parts[0].codec] = dataclasses.replace(parts[0], nmse=nmse, mean_nmse=mean)
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return numbers.fmean(known) if known else None


def choose(layer: Layer, tolerance: float) -> Loss:
    """The suggested codec of a layer with what it loses there; fp32 loses nothing."""
    chosen = suggest(layer.losses.values(), tolerance) if compressible(layer.shape, layer.elements) else None
    mean = 0.0 if layer.ranks > 1 else None
    return chosen or Loss(codec=UNCOMPRESSED, bits_per_element=_FP32_BITS, nmse=0.0, mean_nmse=mean)


def rows(layers: Sequence[Layer], tolerance: float) -> list[dict[str, Any]]:
    """A row a layer: its figures, the suggestion and, under ``codecs``, what each codec loses."""
    return [_row(layer, choose(layer, tolerance)) for layer in layers]


def _row(layer: Layer, chosen: Loss) -> dict[str, Any]:
    row = {"layer": layer.name, "shape": list(layer.shape)}
    row |= {
        field.name: getattr(layer, field.name)
        for field in dataclasses.fields(layer)
        if field.name not in ("name", "shape", "losses")
    }
    return row | dataclasses.asdict(chosen) | {"codecs": {name: _figures(one) for name, one in layer.losses.items()}}


def _figures(one: Loss) -> dict[str, float | None]:
    """As JSON has them: null for what is not finite."""
    parts = {"bits_per_element": one.bits_per_element, "nmse": one.nmse, "mean_nmse": one.mean_nmse, "error": error(one)}
    return {name: value if value is not None and math.isfinite(value) else None for name, value in parts.items()}


def total(layers: Sequence[Layer], tolerance: float) -> dict[str, Any]:
    """The row of all layers: bits of the suggestions by elements, errors by the squares of the gradients."""
    chosen = [choose(layer, tolerance) for layer in layers]
    elements = sum(layer.elements for layer in layers)
    energy = [layer.elements * layer.rms**2 for layer in layers]
    # The squares of the mean of N gradients with correlation c are (1 + (N - 1) c) / N of theirs.
    shares = [max(0.0, (1 + (layer.ranks - 1) * (layer.correlation or 0.0)) / layer.ranks) for layer in layers]
    energy_of_mean = [squares * share for squares, share in zip(energy, shares, strict=True)]

    def by_elements(values: Iterable[float]) -> float:
        return math.fsum(layer.elements * value for layer, value in zip(layers, values, strict=True)) / max(elements, 1)

    several = any(layer.ranks > 1 for layer in layers)
    return {
        "layer": "total",
        "shape": None,
        "elements": elements,
        "ranks": max((layer.ranks for layer in layers), default=0),
        "steps": max((layer.steps for layer in layers), default=0),
        "absmax": max((layer.absmax for layer in layers), default=0.0),
        "rms": math.sqrt(math.fsum(energy) / max(elements, 1)),
        "kurtosis": None,
        "block_kurtosis": None,
        "zeros": by_elements(layer.zeros for layer in layers),
        "nonfinite": by_elements(layer.nonfinite for layer in layers),
        "correlation": None,
        "codec": "mixed",
        "bits_per_element": by_elements(one.bits_per_element for one in chosen),
        "nmse": _weighted(energy, [one.nmse for one in chosen]),
        "mean_nmse": _weighted(energy_of_mean, [one.mean_nmse or 0.0 for one in chosen]) if several else None,
        "codecs": {},
    }


def _weighted(weights: Sequence[float], values: Sequence[float]) -> float:
    whole = math.fsum(weights)
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / whole if whole else 0.0
