"""Tensors from files: what is read, what is refused and with which words, and ``thinwire inspect FILE`` as a person meets it."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import thinwire as tw
from samples import gaussian
from thinwire.inspect.files import open_file, open_ranks
from thinwire.inspect.suggestion import default_codecs

KEYS = {
    "layer", "shape", "elements", "ranks", "steps", "absmax", "rms", "kurtosis", "block_kurtosis", "zeros", "nonfinite",
    "correlation", "codec", "bits_per_element", "nmse", "mean_nmse", "codecs",
}  # fmt: skip


def thinwire(*arguments: object, folder=None, code: str | None = None) -> subprocess.CompletedProcess[str]:
    start = ["-m", "thinwire"] if code is None else ["-c", code]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"COLUMNS": "140"}
    command = [sys.executable, "-W", "error", *start, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)


@pytest.fixture
def npz(tmp_path):
    def write(name: str = "a.npz", **tensors):
        np.savez(tmp_path / name, **tensors)
        return tmp_path / name

    return write


def member(path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, content)


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def test_float_tensors_of_an_npz_and_nothing_else(npz):
    half, single, big = gaussian(4, 4).astype(np.float16), gaussian(4, 4), gaussian(3, 3).astype(">f8")
    file = open_file(npz(half=half, single=single, big=big, step=np.array(3), empty=np.empty((0, 3), dtype=np.float32)))
    assert file.shapes == {"half": (4, 4), "single": (4, 4), "big": (3, 3)}
    assert file.ignored == {"step": "int64[]", "empty": "float32[0, 3]"}
    np.testing.assert_array_equal(file.read("big"), big)


def test_compressed_and_fortran_ordered_arrays(tmp_path):
    np.savez_compressed(tmp_path / "c.npz", x=np.asfortranarray(gaussian(5, 7)))
    np.testing.assert_array_equal(open_file(tmp_path / "c.npz").read("x"), gaussian(5, 7))


def test_safetensors_of_every_float(tmp_path):
    x = torch.from_numpy(gaussian(4, 8))
    kinds = {"f32": x, "f16": x.half(), "bf16": x.bfloat16(), "f64": x.double(), "i": torch.arange(3), "z": torch.empty(0)}
    save_file(kinds, tmp_path / "x.safetensors", metadata={"step": "3"})
    file = open_file(tmp_path / "x.safetensors")
    assert set(file.shapes) == {"f32", "f16", "bf16", "f64"}
    for name in file.shapes:
        np.testing.assert_array_equal(file.read(name), kinds[name].double().numpy())


class Evil:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_objects_are_refused_and_never_run(tmp_path, npz, capsys):
    path = tmp_path / "o.npz"
    member(path, "bad.npy", npy(np.array([Evil()], dtype=object)))
    with pytest.raises(tw.DataError, match=r"bad.npy holds Python objects"):
        open_file(path)
    (tmp_path / "p.npz").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(tw.DataError, match=r"cannot be read as .npz"):
        open_file(tmp_path / "p.npz")
    assert "never run" not in capsys.readouterr().out


def header(text: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 4096)}\n"), "its header says"),
        (npy(np.zeros(10, dtype=np.float32))[:-1], "has 167 bytes"),
        (npy(np.zeros(10, dtype=np.float32)) + b"\0", "has 169 bytes"),
        (b"\x93NUMPY\x09\x00", "version"),
        (b"not numpy at all", "magic"),
        (b"", "cannot be read"),
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}\n"), "cannot be read"),
        (header(b"__import__('os').system('true')\n"), "cannot be read"),
        (header(b"{" * 5000), "cannot be read"),
    ],
)
def test_damaged_members(tmp_path, content, words):
    member(tmp_path / "d.npz", "x.npy", content)
    with pytest.raises(tw.DataError, match=words):
        open_file(tmp_path / "d.npz")


def test_bytes_that_changed_are_found_when_they_are_read(npz):
    path = npz(x=gaussian(100, 100))
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(tw.DataError, match=r"cannot be read as .npz: .*CRC"):
        open_file(path).read("x")


@pytest.mark.parametrize("size", [0, 1, 8, 100, 1000])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_truncated_files(tmp_path, suffix, size):
    path = tmp_path / f"t{suffix}"
    x = torch.from_numpy(gaussian(40, 40))
    if suffix == ".npz":
        np.savez(path, x=x.numpy())
    else:
        save_file({"x": x}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(tw.DataError, match=f"cannot be read as {suffix}"):
        open_file(path)


def test_the_first_difference_between_ranks_is_named(npz):
    x, y = gaussian(20, 20), gaussian(10, 40)
    first = npz("a.npz", a=x, b=x, c=x)
    with pytest.raises(tw.ConfigError, match=r"differ at 'b': shape \[20, 20\] and shape \[10, 40\]"):
        open_ranks([first, npz("b.npz", a=x, b=y)])
    with pytest.raises(tw.ConfigError, match=r"differ at 'c': shape \[20, 20\] and not there"):
        open_ranks([first, npz("c.npz", a=x, b=x)])
    with pytest.raises(tw.ConfigError, match=r"differ at 'd': not there and shape \[20, 20\]"):
        open_ranks([first, first, npz("d.npz", a=x, b=x, c=x, d=x)])


def test_two_ranks_end_to_end(npz, tmp_path):
    w, v = gaussian(2, 4096).reshape(2, 64, 64), gaussian(2, 64, 1)
    v[0, :16], v[0, 20] = 0, np.nan
    paths = [
        npz(f"rank{rank}.npz", **{"blocks.0.norm_1.weight": w[rank], "bias": v[rank]}, step=np.array(7)) for rank in range(2)
    ]
    done = thinwire("inspect", *paths, "--json", tmp_path / "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "left out, not floats or without elements: step int64[]" in done.stdout
    assert "NaN, Inf" in done.stdout
    rows = {row["layer"]: row for row in json.loads((tmp_path / "out.json").read_text())["rows"]}
    assert list(rows) == ["blocks.0.norm_1.weight", "bias", "total"]
    assert all(set(row) == KEYS for row in rows.values())
    weight, bias = rows["blocks.0.norm_1.weight"], rows["bias"]
    assert (weight["codec"], weight["ranks"], weight["steps"], weight["shape"]) == ("gauss4", 2, 1, [64, 64])
    assert 0.008 < weight["nmse"] < 0.0115 < weight["mean_nmse"] < 0.018
    assert set(weight["codecs"]) == set(default_codecs())
    assert weight["codecs"]["gauss4"]["nmse"] == weight["nmse"]
    assert (bias["codec"], bias["bits_per_element"], bias["zeros"], bias["nonfinite"]) == ("none", 32, 0.125, 1 / 128)


def test_tables_fit_120_characters(npz):
    done = thinwire("inspect", *[npz(**{"blocks.10.norm_1.weight": gaussian(3000, 1000) * np.float32(1e-9)})] * 2)
    assert "NaN" not in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 120


def test_options_change_the_answer(npz, tmp_path):
    path = npz(w=gaussian(64, 64))
    file = tmp_path / "o.json"
    for arguments, expected in (
        ("--tolerance 1e-3", "int7"),
        ("--tolerance 1 --codecs int4,int2", "int2"),
        ("--tolerance 0", "none"),
        ("--codecs minmax8", "minmax8"),
    ):
        assert thinwire("inspect", path, *arguments.split(), "--json", file).returncode == 0
        row = json.loads(file.read_text())["rows"][0]
        assert row["codec"] == expected, arguments
        assert row["mean_nmse"] is None


def test_npz_needs_no_torch(npz):
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv[0] = 'thinwire'\n"
        "from thinwire.cli.app import main; main()"
    )  # fmt: skip
    done = thinwire("inspect", npz(w=gaussian(64, 64)), code=code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "int4" in done.stdout


def test_safetensors_that_is_not_installed(tmp_path):
    save_file({"x": torch.ones(3)}, tmp_path / "x.safetensors")
    code = "import sys; sys.modules['safetensors'] = None\nfrom thinwire.cli.app import main; main()"
    done = thinwire("inspect", tmp_path / "x.safetensors", code=code)
    assert done.returncode == 2
    assert "pip install 'thinwire[safetensors]'" in done.stderr


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_plots(npz, tmp_path, suffix, magic):
    path = npz(w=gaussian(64, 64), v=gaussian(64, 65), flat=np.zeros((64, 64), dtype=np.float32), b=gaussian(1, 30)[0])
    done = thinwire("inspect", path, "--plot", tmp_path / f"p{suffix}", "--layer", "*")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / f"p{suffix}").read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("gtp", ["'gtp'", "did you mean 'gpt'", "SCRIPT.py"]),
        ("gpt mnist", ["gpt with 'mnist'"]),
        ("none.npz", ["none.npz does not exist"]),
        ("none.safetensors", ["none.safetensors does not exist"]),
        ("none.py", ["none.py does not exist"]),
        ("notes.txt", ["notes.txt is of no known kind", ".npz"]),
        ("folder.npz", ["folder.npz is a folder"]),
        ("w.npz gpt", ["gpt ends in ''"]),
        ("ints.npz", ["no float tensors", "x int64[3]", "needed: one or more"]),
        ("text.npz", ["text.npz cannot be read as .npz"]),
        ("w.npz --steps 0", ["--steps 0", "1 or more"]),
        ("w.npz --after -1", ["--after -1"]),
        ("w.npz --ranks 0", ["--ranks 0"]),
        ("w.npz --tolerance nan", ["--tolerance nan"]),
        ("w.npz --tolerance -1", ["--tolerance -1.0"]),
        ("w.npz --codecs int9", ["'int9'", "int8"]),
        ("w.npz --codecs ,", ["empty"]),
        ("w.npz --plot p.gif", ["p.gif", ".png, .svg"]),
        ("w.npz --plot nowhere/p.png", ["nowhere/p.png", "exists"]),
        ("w.npz --plot p.png --layer q*", ["layer='q*'", "allowed: w"]),
        ("w.npz --json nowhere/x.json", ["nowhere/x.json"]),
        ("gpt --data nowhere", ["nowhere cannot be read"]),
        ("mnist --seed 9223372036854775808", ["64 bits"]),
        ("", ["sources"]),
    ],
)
def test_mistakes(npz, tmp_path, arguments, words):
    npz("w.npz", w=gaussian(20, 20))
    npz("ints.npz", x=np.arange(3))
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "folder.npz").mkdir()
    done = thinwire("inspect", *arguments.split(), folder=tmp_path)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
