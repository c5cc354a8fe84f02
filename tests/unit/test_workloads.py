"""Data is read strictly, models are what they say, batches are each rank's own."""

from __future__ import annotations

import gzip
import shutil

import numpy as np
import pytest
import torch

import thinwire as tw
from thinwire.workloads import idx
from thinwire.workloads.download import mnist as download
from thinwire.workloads.gpt import Gpt, GptConfig, GptWorkload
from thinwire.workloads.mnist import BUNDLED, Mnist

FILES = sorted(path.name for path in BUNDLED.glob("*.gz"))


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        shutil.copy(BUNDLED / name, tmp_path / name)
    return tmp_path


def test_the_bundled_digits_are_balanced():
    assert len(FILES) == 4
    for prefix, count in (("train", 600), ("t10k", 100)):
        images, labels = idx.images_and_labels(BUNDLED, prefix)
        assert images.shape == (10 * count, 28, 28)
        assert (np.bincount(labels, minlength=10) == count).all()
        assert 20 < images.mean() < 50


def test_plain_and_gzipped_files_read_the_same(folder):
    for name in FILES:
        (folder / name.removesuffix(".gz")).write_bytes(gzip.decompress((folder / name).read_bytes()))
        (folder / name).unlink()
    for a, b in zip(idx.images_and_labels(folder, "t10k"), idx.images_and_labels(BUNDLED, "t10k"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_writing_is_reproducible(tmp_path):
    images, _ = idx.images_and_labels(BUNDLED, "t10k")
    idx.write(tmp_path / "a.gz", images)
    idx.write(tmp_path / "b.gz", images)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    np.testing.assert_array_equal(idx.read(tmp_path / "a.gz", 3), images)


def damage(folder, name, change):
    path = folder / name
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("t10k-images-idx3-ubyte.gz", lambda d: d[:-1], "its header says"),
        ("t10k-images-idx3-ubyte.gz", lambda d: d + b"\0", "its header says"),
        ("t10k-images-idx3-ubyte.gz", lambda d: d[:10], "starts with"),
        ("t10k-images-idx3-ubyte.gz", lambda d: b"", "starts with"),
        ("t10k-images-idx3-ubyte.gz", lambda d: b"\x00\x00\x0d\x03" + d[4:], "starts with 00 00 0d 03"),
        ("train-labels-idx1-ubyte.gz", lambda d: d[:8] + b"\x0a" + d[9:], "label 10"),
        ("train-labels-idx1-ubyte.gz", lambda d: d[:4] + b"\x00\x00\x00\x05" + d[8:13], "5 labels"),
        ("train-images-idx3-ubyte.gz", lambda d: d[:4] + b"\xff" * 12 + d[16:], "its header says"),
    ],
)
def test_damaged_files(folder, name, change, words):
    damage(folder, name, change)
    with pytest.raises(tw.DataError, match=words) as caught:
        Mnist(folder)
    assert name in str(caught.value)


def test_missing_and_broken_files(folder):
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(tw.DataError, match="cannot be read"):
        Mnist(folder)
    path.unlink()
    with pytest.raises(tw.DataError, match=r"no file train-images-idx3-ubyte or train-images-idx3-ubyte.gz"):
        Mnist(folder)
    with pytest.raises(tw.DataError, match="no file"):
        Mnist(folder / "nowhere")


def test_download_says_what_to_do_instead(tmp_path):
    with pytest.raises(tw.DataError, match="--data FOLDER"):
        download(tmp_path, mirrors=("http://127.0.0.1:9/",))


def test_mnist_parts_cover_the_data_once_and_are_each_ranks_own():
    workload = Mnist()
    assert sum(p.numel() for p in workload.model().parameters()) == 216_650
    seen = [b.inputs for rank in range(2) for b in workload.batches(0, 0, rank, 2)]
    assert sum(len(x) for x in seen) == 6000
    assert len({x.numpy().tobytes() for batch in seen for x in batch}) > 5990
    assert len(seen) == 2 * workload.steps(2)
    first, again, other = (next(iter(workload.batches(e, 0, 0, 2))).targets for e in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert sum(len(b.targets) for rank in range(3) for b in workload.held_out(rank, 3)) == 1000


def test_gpt_sees_no_future_and_has_3_million_parameters():
    torch.manual_seed(0)
    config = GptConfig()
    model = Gpt(config)
    assert 3_000_000 <= sum(p.numel() for p in model.parameters()) <= 10_000_000
    tokens = torch.randint(256, (2, config.context))
    changed = tokens.clone()
    changed[:, 70] = (changed[:, 70] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert before.shape == (2, config.context, 256)
    torch.testing.assert_close(before[:, :70], after[:, :70])
    assert not torch.allclose(before[:, 70:], after[:, 70:])


def test_gpt_targets_are_the_next_bytes(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(bytes(range(256)) * 300)
    workload = GptWorkload(file)
    batches = [next(iter(workload.batches(0, 0, rank, 2))) for rank in range(2)]
    for inputs, targets in batches:
        assert torch.equal((inputs + 1) % 256, targets)
    assert not torch.equal(batches[0].inputs, batches[1].inputs)
    with pytest.raises(tw.DataError, match="cannot be read"):
        GptWorkload(tmp_path / "none")
    (tmp_path / "short").write_bytes(b"short")
    with pytest.raises(tw.DataError, match="5 bytes"):
        GptWorkload(tmp_path / "short")


def test_the_standard_library_is_the_default_text():
    assert "standard library" in GptWorkload().data
