"""Which codec each parameter's gradient travels with, and as which tensors those of a bucket are sent.

A parameter with one dimension or fewer than ``min_elements`` elements goes uncompressed, unless a pattern without a wildcard is
its full name: that is taken at its word. Sparse gradients always do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import torch
from torch import nn

from thinwire.codec.base import Codec
from thinwire.codec.cast import Raw
from thinwire.collective.legs import Wire, legs_of
from thinwire.controller import Controller
from thinwire.errors import ConfigError
from thinwire.policy.auto import Auto
from thinwire.policy.choice import Choice
from thinwire.policy.patterns import ANY, Patterns, is_literal

_GAP: Final = 16
"""A run is sent as it lies if no more than one in so many elements of it is a zero in place of an uncompressed one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assignment:
    """The codec of each compressed parameter by name; what is not in it goes uncompressed (fp32)."""

    codecs: Mapping[str, Wire]
    alike: bool
    """Whether one codec was asked for, for all: then a bucket is sent whole, as it lies."""

    def changed(self, codecs: Mapping[str, Wire]) -> Assignment:
        """The same with other codecs for some of the compressed parameters."""
        return dataclasses.replace(self, codecs={**self.codecs, **codecs})

    def groups(self, sizes: Mapping[str, int]) -> dict[Wire, int]:
        """Elements of each codec among parameters of these sizes."""
        found: dict[Wire, int] = {}
        for name, size in sizes.items():
            if name in self.codecs:
                codec = self.codecs[name]
                found[codec] = found.get(codec, 0) + size
        return found

    def bits_per_element(self, sizes: Mapping[str, int]) -> float:
        """Effective bits of a compressed element, the mean over parameters of these sizes; 32 if none is compressed."""
        groups = self.groups(sizes)
        total = sum(groups.values())
        return sum(n * codec.expected_bits(n) for codec, n in groups.items()) / total if total else 32.0

    def rows(self, sizes: Mapping[str, int]) -> list[dict[str, object]]:
        """A row a parameter: name, elements, codec and effective bits."""
        made: list[dict[str, object]] = []
        for name, size in sizes.items():
            codec = self.codecs.get(name, Raw())
            made.append(
                {"parameter": name, "elements": size, "codec": codec.spec(), "bits_per_element": codec.expected_bits(size)}
            )
        return made


def assign(
    choice: Choice, parameters: Mapping[str, torch.Tensor], min_elements: int, sparse: Collection[int] = (),
    aliases: Mapping[str, str] | None = None,
) -> Assignment:  # fmt: skip
    """The assignment of ``choice`` to all parameters of a model; ``sparse`` has the ids of those with sparse gradients.

    Raises ConfigError if a trainable parameter matches no pattern, a pattern has no parameter, or nothing would be compressed.
    """
    dense = {name: p for name, p in parameters.items() if id(p) not in sparse and p.numel()}
    large = {name for name, p in dense.items() if p.dim() > 1 and p.numel() >= min_elements}
    if isinstance(choice, Patterns):
        return _by_pattern(choice, parameters, set(dense), large, min_elements, aliases or {})
    trainable = {name: p.numel() for name, p in parameters.items() if p.requires_grad}
    if not isinstance(choice, Raw) and not large & set(trainable):
        raise ConfigError(
            f"{choice.name} would compress nothing: each of the {len(trainable)} parameters has one dimension, fewer "
            f"than min_elements={min_elements} elements or sparse gradients; allowed: a smaller min_elements, or codec='none'"
        )
    if isinstance(choice, Auto):
        (first,) = set(choice.init(layers_of(parameters, large)).values())
        return Assignment(codecs={name: first for name in parameters if name in large}, alike=False)
    return _uniform(choice, large)


def layers_of(parameters: Mapping[str, torch.Tensor], compressed: Collection[str]) -> dict[str, int]:
    """What a policy decides on: the elements of each trainable parameter that is compressed."""
    return {name: p.numel() for name, p in parameters.items() if p.requires_grad and name in compressed}


def controller_for(choice: Choice, parameters: Mapping[str, torch.Tensor], assignment: Assignment) -> Controller | None:
    """What decides anew while training goes on, or None if all is decided."""
    return Controller(choice, layers_of(parameters, assignment.codecs)) if isinstance(choice, Auto) else None


def _uniform(codec: Wire, names: Collection[str]) -> Assignment:
    return Assignment(codecs={} if isinstance(codec, Raw) else dict.fromkeys(sorted(names), codec), alike=True)


def _by_pattern(
    patterns: Patterns, parameters: Mapping[str, torch.Tensor], dense: set[str], large: set[str], min_elements: int,
    aliases: Mapping[str, str],
) -> Assignment:  # fmt: skip
    patterns.check(list(parameters), aliases)
    codecs: dict[str, Wire] = {}
    idle = {pattern: 0 for pattern, codec in patterns.entries if not isinstance(codec, Raw)}
    for name, parameter in parameters.items():
        found = patterns.match(name)
        if found is None:
            if parameter.requires_grad:
                raise patterns.unmatched(name)
            continue
        pattern, codec = found
        if isinstance(codec, Raw):
            continue
        if name in large or (name in dense and is_literal(pattern)):
            codecs[name] = codec
            idle.pop(pattern, None)
        elif pattern in idle:
            idle[pattern] += 1
    for pattern, count in idle.items():
        if not count or (pattern == ANY and codecs):
            continue
        raise ConfigError(
            f"pattern {pattern!r} would compress nothing: each of its {count} parameters has one dimension, fewer than "
            f"min_elements={min_elements} elements or sparse gradients; allowed: 'none', a smaller min_elements, or full names"
        )
    for codec in set(codecs.values()):
        if _uniform(codec, large).codecs == codecs:
            return _uniform(codec, large)
    return Assignment(codecs=codecs, alike=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What one codec sends of a bucket as one tensor: ``spans`` of it one after another; a single one is sent as it lies."""

    codec: Wire
    spans: tuple[slice, ...]
    elements: int
    """Of compressed parameters; the rest of the spans are zeros in place of uncompressed ones."""

    @property
    def size(self) -> int:
        """Elements of the tensor."""
        return sum(span.stop - span.start for span in self.spans)


def parts_of(names: Sequence[str], sizes: Sequence[int], assignment: Assignment) -> tuple[Part, ...]:
    """The tensors of a bucket that holds parameters of these sizes one after another, in the order of their first elements."""
    spans: dict[Wire, list[slice]] = {}
    start = exact = 0
    before = {0: 0}
    """Uncompressed elements before each border between two parameters."""
    for name, size in zip(names, sizes, strict=True):
        codec, stop = assignment.codecs.get(name), start + size
        exact += size if codec is None else 0
        before[stop] = exact
        if codec is not None and size:
            mine = spans.setdefault(codec, [])
            if mine and mine[-1].stop == start:
                mine[-1] = slice(mine[-1].start, stop)
            else:
                mine.append(slice(start, stop))
        start = stop
    if assignment.alike:
        return tuple(Part(codec=codec, spans=(slice(0, start),), elements=start - exact) for codec in spans)
    return tuple(_part(codec, mine, before) for codec, mine in spans.items())


def _part(codec: Wire, spans: Sequence[slice], exact: Mapping[int, int]) -> Part:
    """One codec's; ``exact`` has the uncompressed elements of the bucket before each border between two parameters."""
    elements = sum(span.stop - span.start for span in spans)
    run = slice(spans[0].start, spans[-1].stop)
    gaps = run.stop - run.start - elements
    lies = gaps == exact[run.stop] - exact[run.start] and _GAP * gaps <= elements
    return Part(codec=codec, spans=(run,) if lies else tuple(spans), elements=elements)


def codecs_of(choice: Choice) -> list[Wire]:
    """All that a choice may send with."""
    if isinstance(choice, Patterns):
        return list(dict.fromkeys(codec for _, codec in choice.entries))
    return list(choice.candidates) if isinstance(choice, Auto) else [choice]


def kernels_of(choice: Choice) -> list[Codec]:
    """The single codecs behind :func:`codecs_of`, each once."""
    return list(dict.fromkeys(leg for codec in codecs_of(choice) for leg in legs_of(codec)))


def tied_names(model: nn.Module) -> dict[str, str]:
    """Other names of parameters that several modules share, with the name that ``named_parameters()`` gives."""
    first = {id(p): name for name, p in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if first[id(p)] != name}
