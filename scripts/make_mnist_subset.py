"""Makes the digits that the package ships from the four files of MNIST: 6,000 + 1,000, balanced, always the same.

python scripts/make_mnist_subset.py --data FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from thinwire.workloads import idx
from thinwire.workloads.mnist import BUNDLED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four idx files, plain or .gz")
    folder = parser.parse_args().data
    for prefix, count in (("train", 600), ("t10k", 100)):
        images, labels = idx.images_and_labels(folder, prefix)
        # The first of each digit, in the order of the file.
        chosen = np.sort(np.concatenate([np.flatnonzero(labels == digit)[:count] for digit in range(idx.CLASSES)]))
        idx.write(BUNDLED / f"{prefix}-images-idx3-ubyte.gz", images[chosen])
        idx.write(BUNDLED / f"{prefix}-labels-idx1-ubyte.gz", labels[chosen])
        print(f"{prefix}: {len(chosen)} of {len(images)}")


if __name__ == "__main__":
    main()
