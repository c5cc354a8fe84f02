"""``mnist``: handwritten digits and a small convolutional network, 216,650 parameters, SGD with momentum."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DistributedSampler

from thinwire.workloads import idx
from thinwire.workloads.base import Batch, Workload

BUNDLED: Final = Path(__file__).parent / "data" / "mnist"
_MEAN, _DEVIATION = 0.1307, 0.3081


@dataclasses.dataclass(frozen=True, kw_only=True)
class MnistConfig:
    """``lr`` is the first step's; it falls linearly to zero. Constant rates of 0.01 and 0.03 end at 97.9 %, not 98.2 %."""

    batch: int = 128
    """Images a rank and step."""
    lr: float = 0.05
    momentum: float = 0.9


class Mnist(Workload):
    """Data from ``folder`` (four idx files, plain or .gz), or the 7,000 digits that the package ships."""

    name = "mnist"
    epochs = 3

    def __init__(self, folder: Path | None = None, config: MnistConfig | None = None) -> None:
        """Raises DataError if a file is missing or damaged."""
        self.config = config or MnistConfig()
        place = folder or BUNDLED
        self._train = _tensors(*idx.images_and_labels(place, "train"))
        self._test = _tensors(*idx.images_and_labels(place, "t10k"))
        counts = f"{len(self._train.targets):,} + {len(self._test.targets):,} images"
        self.data = f"{counts} of MNIST " + (f"in {folder}" if folder else "that come with thinwire")

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(21632, idx.CLASSES))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.config.lr, momentum=self.config.momentum)

    def steps(self, ranks: int) -> int:
        part = -(-len(self._train.targets) // ranks)
        return -(-part // self.config.batch)

    def batches(self, epoch: int, seed: int, rank: int, ranks: int) -> Iterator[Batch]:
        size = range(len(self._train.targets))
        sampler: DistributedSampler[int] = DistributedSampler(size, ranks, rank, seed=seed)  # pyright: ignore[reportArgumentType]  it needs a length only
        sampler.set_epoch(epoch)
        for chosen in torch.tensor(list(sampler)).split(self.config.batch):
            yield Batch(self._train.inputs[chosen], self._train.targets[chosen])

    def held_out(self, rank: int, ranks: int) -> Iterable[Batch]:
        inputs, targets = self._test.inputs[rank::ranks], self._test.targets[rank::ranks]
        return [Batch(x, y) for x, y in zip(inputs.split(500), targets.split(500), strict=True) if len(y)]

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets)


def _tensors(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> Batch:
    """Normalized images (n, 1, 28, 28) fp32 and labels (n,) int64."""
    pixels = torch.from_numpy(images.astype(np.float32) / 255)
    return Batch(((pixels - _MEAN) / _DEVIATION)[:, None], torch.from_numpy(labels.astype(np.int64)))
