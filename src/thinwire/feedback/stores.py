"""Where residuals are kept between steps: as they are, or in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from thinwire.codec.registry import codec as resolve


class Flats:
    """Residuals in fp32, a flat tensor a bucket, and another of which the step makes the next one."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._flats: dict[tuple[str, ...], torch.Tensor] = {}
        self._next: dict[tuple[str, ...], torch.Tensor] = {}

    @property
    def memory_bytes(self) -> int:
        return sum(flat.nbytes for flat in (*self._flats.values(), *self._next.values()))

    def current(self, names: tuple[str, ...]) -> torch.Tensor:
        if names not in self._flats:
            flat = torch.cat([self.of(name) for name in names])
            stale = [layout for layout in self._flats if set(layout) & set(names)]
            kept = {name: self.of(name).clone() for layout in stale for name in layout if name not in names}
            for layout in stale:
                del self._flats[layout]
            self._flats |= {(name,): value for name, value in kept.items()}
            self._flats[names] = flat
        return self._flats[names]

    def following(self, names: tuple[str, ...]) -> torch.Tensor:
        if names not in self._next:
            self._next = {layout: flat for layout, flat in self._next.items() if not set(layout) & set(names)}
            self._next[names] = torch.zeros_like(self.current(names))
        return self._next[names]

    def hold(self, names: tuple[str, ...]) -> None:
        """It is where it must be."""

    def take_over(self, names: tuple[str, ...]) -> None:
        self._flats[names], self._next[names] = self._next[names], self._flats[names]

    def rescale(self, factor: float) -> None:
        for flat in self._flats.values():
            flat.mul_(factor)

    def load(self, values: Mapping[str, torch.Tensor]) -> None:
        self._next.clear()
        self._flats = {(name,): value for name, value in values.items()}

    def of(self, name: str) -> torch.Tensor:
        for layout, flat in self._flats.items():
            if name in layout:
                start = sum(self._sizes[other] for other in layout[: layout.index(name)])
                return flat[start : start + self._sizes[name]]
        return torch.zeros(self._sizes[name])


class Packed:
    """Residuals as rows of ``int8``, one a parameter, so that no layout of buckets changes a bit of them.

    While a step is under way the next rows are kept beside them. In fp32 there are two tensors of a bucket's size, which the
    buckets use in turn. A row that was decoded encodes to the same bytes again, so a state has all of it.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes, self._codec = sizes, resolve("int8")
        self._rows: dict[str, torch.Tensor] = {}
        self._next: dict[tuple[str, ...], dict[str, torch.Tensor]] = {}
        self._before, self._after = _Scratch(), _Scratch()

    @property
    def memory_bytes(self) -> int:
        return sum(row.nbytes for row in self._rows.values())

    def current(self, names: tuple[str, ...]) -> torch.Tensor:
        if self._before.names != names:
            parts = self._before.take(names, [self._sizes[name] for name in names])
            for name, part in zip(names, parts, strict=True):
                self._read(name, part)
        return self._before.flat

    def following(self, names: tuple[str, ...]) -> torch.Tensor:
        if self._after.names != names:
            self._after.take(names, [self._sizes[name] for name in names])
            self._after.flat.zero_()
        return self._after.flat

    def hold(self, names: tuple[str, ...]) -> None:
        parts = self.following(names).split([self._sizes[name] for name in names])
        self._next[names] = {name: self._encode(part) for name, part in zip(names, parts, strict=True)}

    def take_over(self, names: tuple[str, ...]) -> None:
        self._rows |= self._next.pop(names)
        self._before.names = ()

    def rescale(self, factor: float) -> None:
        for name, row in self._rows.items():
            self._codec.encode(self.of(name).mul_(factor)[None], out=row)
        self._before.names = ()

    def load(self, values: Mapping[str, torch.Tensor]) -> None:
        self._next.clear()
        self._rows = {name: self._encode(value) for name, value in values.items()}
        self._before.names = ()

    def of(self, name: str) -> torch.Tensor:
        value = torch.empty(self._sizes[name])
        self._read(name, value)
        return value

    def _encode(self, value: torch.Tensor) -> torch.Tensor:
        row = torch.empty(1, self._codec.wire_bytes(value.numel()), dtype=torch.uint8)
        self._codec.encode(value[None], out=row)
        return row

    def _read(self, name: str, out: torch.Tensor) -> None:
        if name in self._rows:
            self._codec.decode(self._rows[name], out.numel(), out=out[None])
        else:
            out.zero_()


class _Scratch:
    """A tensor that is as long as the largest bucket so far."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.flat = self._whole = torch.empty(0)

    def take(self, names: tuple[str, ...], sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Its first elements for ``names``, in parts of ``sizes``."""
        if sum(sizes) > self._whole.numel():
            self._whole = torch.empty(sum(sizes))
        self.names, self.flat = names, self._whole[: sum(sizes)]
        return self.flat.split(list(sizes))
