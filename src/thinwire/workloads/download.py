"""The four files of MNIST from the network, checked against known SHA-256 sums, kept in the user's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from thinwire.errors import ConfigError, DataError

FILES: Final = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
MIRRORS: Final = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def mnist(folder: Path | None = None, mirrors: tuple[str, ...] = MIRRORS) -> Path:
    """The folder with all four files, fetched where they are not there yet (11 MB).

    Raises ConfigError without pooch, DataError if no mirror gives the right bytes.
    """
    try:
        import pooch
    except ModuleNotFoundError:
        raise ConfigError("--download needs pooch: pip install 'thinwire[data]'") from None
    target = folder or Path(pooch.os_cache("thinwire")) / "mnist"
    for name, digest in FILES.items():
        _fetch(name, digest, target, mirrors)
    return target


def _fetch(name: str, digest: str, target: Path, mirrors: tuple[str, ...]) -> None:
    import pooch

    reasons: list[str] = []
    for mirror in mirrors:
        try:
            pooch.retrieve(mirror + name, known_hash=f"sha256:{digest}", fname=name, path=target, progressbar=False)
            return
        except Exception as error:  # pooch hands on whatever its HTTP library raises
            reasons.append(f"{mirror}: {type(error).__name__}")
    raise DataError(f"{name} could not be fetched ({'; '.join(reasons)}); allowed instead: --data FOLDER with the files")
