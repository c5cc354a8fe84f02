"""The command line as a person meets it: real processes, their output and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ranks as real

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"PYTHONWARNINGS": "default"}


def thinwire(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thinwire", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train mnist --codec int9", ["'int9'", "int8"]),
        ("train mnist --codec int8,int8", ["twice"]),
        ("train mnist --codec ,", ["empty"]),
        ("train mnist --codec auto:x", ["'auto:x'", "auto:BITS"]),
        ("train mnist --codec *=int4|head=int9", ["'head'", "'int9'"]),
        ("bench converge --codecs int4/int3/int2", ["3 legs"]),
        ("train mnist --ranks 0", ["--ranks 0", "1 or more"]),
        ("train mnist --epochs -1", ["--epochs -1"]),
        ("train mnist --lr -0.5", ["--lr -0.5"]),
        ("train mnist --data /nowhere", ["/nowhere", "train-images"]),
        ("train mnist --data /nowhere --download", ["one of them"]),
        ("train mnist --json /nowhere/out.json", ["/nowhere/out.json", "exists"]),
        ("train gpt --data /nowhere", ["/nowhere"]),
        ("train cifar", ["cifar"]),
        ("bench kernel --codec zip", ["'zip'"]),
        ("bench kernel --size 0", ["--size 0"]),
        ("codecs --elements x", ["--elements"]),
        ("fly", ["fly"]),
    ],
)
def test_mistakes_exit_with_2_and_one_clear_message(arguments, words):
    done = thinwire(*arguments.split())
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr + done.stdout
    assert "Warning" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_version_and_codecs(tmp_path):
    assert thinwire("--version").stdout.startswith("thinwire 0.")
    done = thinwire("codecs", "--json", str(tmp_path / "codecs.json"))
    assert done.returncode == 0
    rows = {row["codec"]: row for row in json.loads((tmp_path / "codecs.json").read_text())["rows"]}
    assert set(rows) >= {"none", "bf16", "fp16", "int8", "int2", "minmax8", "minmax16"}
    assert rows["int4"]["bits_per_element"] <= 4.3
    assert all(row["source"] and name in done.stdout for name, row in rows.items())


def test_bench_kernel(tmp_path):
    done = thinwire("bench", "kernel", "--codec", "int8,none", "--size", "2", "--repeat", "2", "--json", str(tmp_path / "k.json"))
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "k.json").read_text())["rows"]
    ours = [row for row in rows if row["codec"] in ("int8", "none")]
    assert [(row["codec"], row["op"]) for row in ours] == [
        (codec, op) for codec in ("int8", "none") for op in ("encode", "decode", "decode_add")
    ]
    assert all(row["wrong"] == 0 and row["gbps_in"] > 0 and row["ratio_to_copy"] > 0 for row in ours)
    assert ours[0]["nmse"] < 4.3e-5


def test_train_mnist_end_to_end(tmp_path):
    file = tmp_path / "train.json"
    done = thinwire(*f"train mnist --ranks 2 --codec none,int8,int4 --steps 6 --seed 3 --json {file}".split())
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["codec"] for row in rows] == ["none", "int8", "int4"]
    for row, bits in zip(rows, (32, 8.2, 4.3), strict=True):
        assert row["replicas_identical"] is True
        assert row["ranks"] == 2
        assert row["steps"] == 6
        assert row["bits_per_element"] <= bits
        assert row["exposed_ms"] > 0
        assert row["step_ms"] > 0
        assert 0.2 < row["accuracy"] < 1
        assert row["codec"] in done.stdout
    assert rows[1]["wire_bytes_per_step"] < rows[0]["wire_bytes_per_step"] / 3.9
    assert rows[0]["accuracy_difference"] == 0
    assert abs(rows[1]["loss"] - rows[0]["loss"]) < 0.01


def test_train_gpt_as_one_rank_of_torchrun(tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"all work and no play makes jack a dull boy\n" * 3000)
    command = f"train gpt --codec int4 --feedback --steps 2 --data {text} --json {tmp_path / 'g.json'}".split()
    environment = {**ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(real.free_port()), "WORLD_SIZE": "2"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen([sys.executable, "-m", "thinwire", *command], env={**environment, "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    (row,) = json.loads((tmp_path / "g.json").read_text())["rows"]
    assert row["workload"] == "gpt"
    assert row["replicas_identical"] is True
    assert row["accuracy_difference"] is None


def _example(rank: int, port: int) -> subprocess.Popen[str]:
    arguments = f"--rank {rank} --world_size 2 --master_addr 127.0.0.1 --master_port {port} --bits 4 --epochs 1"
    command = [sys.executable, str(ROOT / "examples/mnist_ddp.py"), *arguments.split()]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_the_example_as_in_its_own_words():
    port = real.free_port()
    both = [_example(rank, port) for rank in range(2)]
    out, _ = (process.communicate(timeout=120)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    accuracy = float(out.split("accuracy ")[1].split(" %")[0])
    assert accuracy > 85
    assert "with 4 bits" in out
