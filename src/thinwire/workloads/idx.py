"""The idx files of MNIST, plain or gzipped, read strictly. Format: http://yann.lecun.com/exdb/mnist/"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from thinwire.errors import DataError

IMAGE_SIDE: Final = 28
CLASSES: Final = 10
_UNSIGNED_BYTE: Final = 0x08


def find(folder: Path, name: str) -> Path:
    """The file ``name`` or ``name.gz`` in ``folder``. Raises DataError if there is neither."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder} has no file {name} or {name}.gz; needed: the four idx files of MNIST")


def _read(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def read(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """An idx file of unsigned bytes with so many dimensions. Raises DataError for any other content."""
    data = _read(path)
    head = 4 + 4 * dimensions
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if data[:4] != expected or len(data) < head:
        raise DataError(f"{path} starts with {data[:4].hex(' ')}; an idx file of {dimensions} dimensions: {expected.hex(' ')}")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    size = head + int(np.prod(shape, dtype=object))
    if len(data) != size:
        raise DataError(f"{path} has {len(data)} bytes; its header says {size} ({' x '.join(map(str, shape))} and {head})")
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape)


def images_and_labels(folder: Path, prefix: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images (n, 28, 28) and labels (n,) of "train" or "t10k". Raises DataError for missing or damaged files."""
    image_path = find(folder, f"{prefix}-images-idx3-ubyte")
    label_path = find(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read(image_path, 3), read(label_path, 1)
    if images.shape[1:] != (IMAGE_SIDE, IMAGE_SIDE):
        raise DataError(f"{image_path} has images of {images.shape[1:]}; needed: {(IMAGE_SIDE, IMAGE_SIDE)}")
    if len(images) != len(labels) or not len(images):
        raise DataError(f"{image_path} has {len(images)} images, {label_path} {len(labels)} labels; needed: as many, not 0")
    if labels.max() >= CLASSES:
        raise DataError(f"{label_path} has label {labels.max()}; allowed: 0 to {CLASSES - 1}")
    return images, labels


def write(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """The inverse of :func:`read`, gzipped, with the same bytes every time."""
    head = bytes([0, 0, _UNSIGNED_BYTE, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes(), compresslevel=9, mtime=0))
