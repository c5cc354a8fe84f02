"""train and bench on the lab's links, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest


def thinwire(arguments: str, tmp_path) -> list[dict]:
    file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "thinwire", *arguments.split(), "--json", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert ended.returncode == 0, ended.stderr
    assert "lab: " in ended.stderr
    return json.loads(file.read_text())["rows"]


def test_bench_collective(timed_lab, tmp_path):
    options = "--ranks 2 --sizes 64KB,1MB --codecs none,bf16,int8,int4 --repeat 3 --link 200mbit --delay 1ms"
    rows = thinwire(f"bench collective {options}", tmp_path)
    assert [(row["codec"], row["size_bytes"]) for row in rows] == [
        (name, size) for size in (64_000, 1_000_000) for name in ("none", "torch bf16", "bf16", "int8", "int4")
    ]
    for row in rows:
        assert row["wrong"] == 0
        assert row["replicas_identical"] is True
        share = 2 * (row["ranks"] - 1) / row["ranks"]
        assert row["busbw_gbps"] == pytest.approx(share * 8 * row["size_bytes"] / row["seconds"] / 1e9)
        assert row["wire_over_link"] == pytest.approx(row["busbw_gbps"] * row["bits_per_element"] / 32 / 0.2)
        # A link has no more than its rate; the burst is worth a few percent of these sizes.
        assert 0 < row["wire_over_link"] < 1.6
        assert row["predicted_seconds"] > 0
    by_name = {row["codec"]: row for row in rows if row["size_bytes"] == 1_000_000}
    assert by_name["none"]["fraction_of_ideal"] == pytest.approx(1)
    for name, bits in (("bf16", 16), ("int8", 8.125), ("int4", 4.266)):
        row = by_name[name]
        assert row["bits_per_element"] == pytest.approx(bits, abs=0.01)
        assert row["fraction_of_ideal"] == pytest.approx(
            by_name["none"]["seconds"] / row["seconds"] / (32 / row["bits_per_element"])
        )
    assert by_name["none"]["nmse"] < 1e-12 < by_name["bf16"]["nmse"] < by_name["int8"]["nmse"] < by_name["int4"]["nmse"] < 0.02


def test_train_on_a_link(plain_lab, tmp_path):
    rows = thinwire("train mnist --codec none,int8 --steps 12 --link 100mbit --hosts 2", tmp_path)
    none, int8 = rows
    assert none["replicas_identical"]
    assert int8["replicas_identical"]
    # The bytes alone take 69 and 18 ms; the burst spares one of them, at most.
    assert none["exposed_ms"] > 60
    assert int8["exposed_ms"] > 15
    assert int8["wire_bytes_per_step"] < 0.26 * none["wire_bytes_per_step"]


def test_bench_train_beside_torchs_hooks(plain_lab, tmp_path):
    rows = thinwire("bench train mnist --codecs int8 --accuracy 0.5 --every 5 --steps 40 --link 500mbit", tmp_path)
    names = ["DDP fp32", "DDP fp16 hook", "DDP bf16 hook", "DDP PowerSGD", "DDP 8-bit hook", "int8"]
    assert [row["codec"] for row in rows] == names
    for row in rows:
        assert row["replicas_identical"], row
        assert row["reached"], row
        assert row["accuracy"] >= 0.5
        assert row["seconds"] > 0
        assert row["speed_up"] > 0


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("bench collective --sizes 16", "'16'"),
        ("bench collective --sizes 1TB", "'1TB'"),
        ("bench collective --delay 5ms", "--delay 5ms"),
        ("bench collective --link 1gbit --streams 0", "streams=0"),
        ("bench collective --codecs int88", "int88"),
        ("bench collective --repeat 0", "--repeat 0"),
        ("bench collective --ranks 1", "--ranks 1"),
        ("bench train --ranks 0", "--ranks 0"),
        ("bench collective --link-rate 5", "link-rate='5'"),
        ("bench train resnet", "resnet"),
        ("bench train --accuracy 2", "--accuracy 2"),
        ("bench train --steps 0", "--steps 0"),
        ("bench peers --hivemind-python /no/python", "/no/python"),
        ("train mnist --hosts 2", "--hosts 2"),
        ("train mnist --link 1gbit --hosts 3", "hosts=3"),
    ],
)
def test_options_that_are_wrong(arguments, value):
    ended = subprocess.run([sys.executable, "-m", "thinwire", *arguments.split()], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    assert value in ended.stderr
    assert "allowed" in ended.stderr.lower()


def test_an_interrupt_ends_a_run_on_a_link_with_one_line(plain_lab):
    command = [sys.executable, "-m", "thinwire", "train", "mnist", "--codec", "none", "--epochs", "999", "--link", "1gbit"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout.readline().startswith("mnist: 2 ranks")
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert errors.splitlines()[-1] == "thinwire: ended by SIGINT"
