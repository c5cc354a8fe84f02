"""``gpt``: a byte-level decoder-only transformer of 3.3 million parameters on text, AdamW.

Pre-norm blocks without biases (Radford et al. 2019; Chowdhery et al. 2022), causal attention, learned positions, the head tied
to the embedding.
"""

from __future__ import annotations

import dataclasses
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from thinwire.errors import DataError
from thinwire.workloads.base import Batch, Workload

VOCABULARY: Final = 256
_VALIDATION_WINDOWS: Final = 64
_SMALLEST_TEXT: Final = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptConfig:
    """``batch`` windows of ``context`` bytes a rank and step."""

    layers: int = 4
    heads: int = 4
    width: int = 256
    context: int = 128
    batch: int = 8
    lr: float = 1e-3
    weight_decay: float = 0.1
    steps_per_epoch: int = 100


class Block(nn.Module):
    """Attention and a two-layer network, each on a normalized input and added to it."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) -> the same shape."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """(batch, time) bytes -> (batch, time, 256) logits of the next byte."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return functional.linear(self.norm(self.blocks(x)), self.embedding.weight)


class GptWorkload(Workload):
    """Trains on the bytes of ``file``, or on the Python standard library's own source; the last tenth is held out."""

    name = "gpt"
    epochs = 1

    def __init__(self, file: Path | None = None, config: GptConfig | None = None) -> None:
        """Raises DataError if the file cannot be read or is too short."""
        self.config = config or GptConfig()
        text = _read(file) if file else _standard_library()
        if len(text) < _SMALLEST_TEXT:
            raise DataError(f"{file or 'the standard library'} has {len(text):,} bytes; needed: {_SMALLEST_TEXT:,} or more")
        tokens = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).astype(np.int64))
        cut = len(tokens) * 9 // 10
        self._train, self._validation = tokens[:cut], tokens[cut:]
        self.data = f"{len(tokens):,} bytes of " + (str(file) if file else "the Python standard library's source")

    def model(self) -> nn.Module:
        return Gpt(self.config)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        config = self.config
        return torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay)

    def steps(self, ranks: int) -> int:
        return self.config.steps_per_epoch

    def batches(self, epoch: int, seed: int, rank: int, ranks: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(hash((seed, epoch, rank)) & 0x7FFFFFFF)
        last = len(self._train) - self.config.context - 1
        for _ in range(self.steps(ranks)):
            yield self._windows(self._train, torch.randint(last, (self.config.batch,), generator=generator))

    def held_out(self, rank: int, ranks: int) -> Iterable[Batch]:
        last = len(self._validation) - self.config.context - 1
        starts = torch.linspace(0, last, _VALIDATION_WINDOWS).long()[rank::ranks]
        return [self._windows(self._validation, part) for part in starts.split(self.config.batch) if len(part)]

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def _windows(self, tokens: torch.Tensor, starts: torch.Tensor) -> Batch:
        places = starts[:, None] + torch.arange(self.config.context + 1)
        windows = tokens[places]
        return Batch(windows[:, :-1], windows[:, 1:])


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None


def _standard_library() -> bytes:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
