"""The convergence study: its rows, its picture, and the command as a person meets it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

import thinwire as tw
from thinwire.bench import converge
from thinwire.bench.converge import Contestant, Run, Settings, schedule, warm_up
from thinwire.bench.converge_plot import check_plot, plot
from thinwire.bench.converge_rows import restored, rows_of
from thinwire.cli.app import app
from thinwire.cli.output import write_json
from thinwire.errors import ConfigError, DataError
from thinwire.policy.choice import resolve

SETTINGS = Settings(
    workload="mnist", data="7 digits", optimizer="sgd", lr=0.1, ranks=2, steps=4, batch=8, every=2, threads=1
)  # fmt: skip
TINY = ["bench", "converge", "--ranks", "2", "--steps", "4", "--batch", "8", "--every", "3", "--threads", "1"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"PYTHONWARNINGS": "default"}
PLOTS = importlib.util.find_spec("matplotlib") is not None


def thinwire(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thinwire", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=ENVIRONMENT, check=False)


def made(seed: int, loss: float, **fields) -> Run:
    values = {
        "seed": seed, "loss": loss, "accuracy": 0.5, "train_loss": loss, "nmse": 0.01, "wire_bytes_per_step": 10.0,
        "bits_per_element": 4.0, "replicas_identical": True, "seconds": 1.0, "curve_steps": [2, 4], "curve_loss": [9.0, loss],
    }  # fmt: skip
    return Run(**(values | fields))


def contestant(name: str, feedback: str = "off") -> Contestant:
    return Contestant(codec=resolve(name), feedback=feedback)


RUNS = {
    contestant("none"): {0: made(0, 2.0), 1: made(1, 2.2), 2: made(2, 2.4)},
    contestant("int4"): {0: made(0, 2.1), 2: made(2, 2.7, accuracy=0.6, replicas_identical=False)},
    contestant("int2", "plain"): {0: made(0, math.nan, curve_loss=[9.0, math.nan])},
    contestant("int3"): {},
}
CHOICES = {
    contestant(name): {0: made(0, 2.1)} for name in ("auto:3.5;every=7", "int2/int4", "*.bias=none|h*=int8;block=64|*=int4")
}


def test_the_learning_rate_rises_over_the_warm_up_and_falls_to_zero():
    rate = schedule(dataclasses.replace(SETTINGS, steps=10, warm_up_steps=3))
    assert [rate(step) for step in range(11)] == pytest.approx([0.25, 0.45, 0.6, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0])
    flat = schedule(dataclasses.replace(SETTINGS, steps=4))
    assert [flat(step) for step in range(5)] == [1, 0.75, 0.5, 0.25, 0]
    assert [warm_up(name, 300) for name in ("sgd", "momentum", "adamw", "onebit-adam")] == [0, 0, 30, 30]


def test_a_study_from_before_there_was_a_warm_up_goes_on_without():
    rows = rows_of(RUNS, SETTINGS)
    for row in rows:
        del row["warm_up_steps"]
    assert list(restored(rows, SETTINGS)) == [one for one, runs in RUNS.items() if runs]
    with pytest.raises(ConfigError, match="warm_up_steps=0; allowed here: 1"):
        restored(rows, dataclasses.replace(SETTINGS, warm_up_steps=1))


def test_differences_are_to_fp32_of_the_same_seeds():
    exact, int4, int2 = rows_of(RUNS, SETTINGS)
    assert exact["loss_difference"] == 0
    assert exact["noise"] == pytest.approx(0.2)
    assert int4["seeds"] == 2
    assert int4["loss"] == pytest.approx(2.4)
    assert int4["loss_difference"] == pytest.approx(0.2)  # not 0.2 more than the mean of three
    assert int4["loss_difference_deviation"] == pytest.approx(0.2 / 2**0.5)
    assert int4["difference_in_noise"] == pytest.approx(1)
    assert int4["accuracy"] == pytest.approx(0.55)
    assert not int4["replicas_identical"]
    assert math.isnan(int2["loss"])
    assert (int2["feedback"], int2["ranks"], int2["lr"]) == ("plain", 2, 0.1)


def test_one_seed_has_no_noise():
    exact, int4 = rows_of({one: {0: made(0, 2.0)} for one in list(RUNS)[:2]}, SETTINGS)
    assert exact["noise"] is int4["difference_in_noise"] is None
    assert int4["loss_difference"] == 0


def test_rows_come_back_from_json(tmp_path):
    file = tmp_path / "study.json"
    rows = rows_of(RUNS | CHOICES, SETTINGS)
    write_json(file, rows)
    back = restored(json.loads(file.read_text())["rows"], SETTINGS)
    assert list(back) == [one for one, runs in (RUNS | CHOICES).items() if runs]
    assert repr(rows_of(back, SETTINGS)) == repr(rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[0].update(lr=0.2), ["lr=0.2", "0.1"]),
        (lambda rows: rows[1].pop("steps"), ["no convergence study", "steps"]),
        (lambda rows: rows[1].update(spec="int9"), ["int9"]),
        (lambda rows: rows[1].update(runs=7), ["no convergence study"]),
        (lambda rows: rows[1]["runs"][0].update(speed=7), ["no convergence study", "speed"]),
        (lambda rows: rows.append("row"), ["no convergence study"]),
    ],
)
def test_another_study_is_not_resumed(change, words):
    rows = rows_of(RUNS, SETTINGS)
    change(rows)
    with pytest.raises(ConfigError) as caught:
        restored(rows, SETTINGS)
    assert all(word in str(caught.value) for word in words)


def test_contestants_are_the_baselines_and_each_codec_with_each_feedback_once():
    names = ("none", "bf16", "int4")
    found = converge.contestants([tw.codec(name) for name in names], [tw.codec("none"), tw.codec("bf16")], ["off", "plain"])
    assert [one.label for one in found] == ["none", "bf16", "bf16 plain", "int4", "int4 plain"]


@pytest.mark.skipif(not PLOTS, reason="matplotlib is an extra of its own")
@pytest.mark.parametrize("name", ["curves.png", "curves.svg"])
def test_the_picture_is_the_same_every_time(tmp_path, name):
    files = [tmp_path / f"{number}{name}" for number in range(2)]
    for file in files:
        check_plot(file)
        plot(file, RUNS, SETTINGS)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].stat().st_size > 5_000


def test_a_picture_needs_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"thinwire\[plot\]"):
        check_plot(tmp_path / "curves.png")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--workload cifar", ["'cifar'", "mnist"]),
        ("--codecs int9", ["'int9'"]),
        ("--feedback maybe", ["'maybe'", "plain"]),
        ("--feedback ,", ["feedback", "off"]),
        ("--optimizer adam", ["'adam'", "adamw"]),
        ("--ranks 0", ["--ranks 0"]),
        ("--lr 0", ["--lr 0"]),
        ("--warm-up -1", ["--warm-up -1", "0 to 299"]),
        ("--warm-up 300", ["--warm-up 300", "0 to 299"]),
        ("--plot curves.pdf", ["'.pdf'", ".png"]),
        ("--plot /nowhere/curves.png", ["/nowhere/curves.png"]),
        ("--json /nowhere/out.json", ["/nowhere/out.json"]),
        ("--resume", ["--resume", "--json"]),
        ("--data /nowhere", ["/nowhere"]),
    ],
)
def test_mistakes(arguments, words):
    error = CliRunner().invoke(app, ["bench", "converge", *arguments.split()]).exception
    assert isinstance(error, ConfigError | DataError), error
    assert all(word in str(error) for word in words), error


def test_a_tiny_study_that_goes_on(tmp_path):
    file = tmp_path / "study.json"
    done = thinwire(*TINY, "--codecs", "int4", "--seeds", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    first = json.loads(file.read_text())["rows"]
    assert [row["codec"] for row in first] == ["none", "bf16", "int4"]
    assert "Warning" not in done.stderr
    done = thinwire(*TINY, "--codecs", "int4,int2", "--feedback", "off,plain", "--seeds", "2", "--json", str(file), "--resume")
    assert done.returncode == 0, done.stderr
    assert "9 runs" in done.stdout  # 6 contestants with 2 seeds, less 3
    rows = {(row["codec"], row["feedback"]): row for row in json.loads(file.read_text())["rows"]}
    assert len(rows) == 6
    for row in rows.values():
        assert row["replicas_identical"] is True
        assert (row["ranks"], row["seeds"], row["optimizer"]) == (2, 2, "momentum")
        assert [run["curve_steps"] for run in row["runs"]] == [[3, 4]] * 2
        assert row["codec"] in done.stdout
    assert [row["runs"][0] for row in first] == [rows[name, "off"]["runs"][0] for name in ("none", "bf16", "int4")]
    assert rows["none", "off"]["bits_per_element"] == 32
    assert rows["int4", "plain"]["bits_per_element"] < 4.5
    assert rows["none", "off"]["nmse"] < rows["bf16", "off"]["nmse"] < rows["int4", "off"]["nmse"] < rows["int2", "off"]["nmse"]
    assert abs(rows["int4", "off"]["loss_difference"]) < 0.5
    assert rows["int2", "plain"]["loss"] != rows["int2", "off"]["loss"]


def test_one_bit_adam_with_forms_of_feedback(tmp_path):
    file = tmp_path / "study.json"
    forms = "off,plain,decay,decay:0.95,average:0.9"
    job = [*TINY, "--steps", "10", "--optimizer", "onebit-adam", "--codecs", "sign1", "--feedback", forms]
    done = thinwire(*job, "--seeds", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = {(row["codec"], row["feedback"]): row for row in json.loads(file.read_text())["rows"]}
    found = [form for codec, form in rows if codec == "sign1"]
    assert found == ["off", "plain", "decay:0.95", "average:0.9"]
    assert len({rows["sign1", form]["loss"] for form in found}) == 4
    for row in rows.values():
        assert row["replicas_identical"] is True
        assert row["optimizer"] == "onebit-adam"
    # 2 steps of 10 are exact; of the others only the small parameters are.
    assert 0.2 * 32 < rows["sign1", "plain"]["bits_per_element"] < 0.3 * 32
    assert rows["none", "off"]["bits_per_element"] == pytest.approx(32, rel=0.01)


def test_a_run_is_that_of_real_ranks(tmp_path):
    mine, theirs = tmp_path / "mine.json", tmp_path / "theirs.json"
    job = ["--ranks", "2", "--steps", "4", "--batch", "8", "--lr", "0.02", "--threads", "1"]
    for verb, file in (("bench converge --codecs int2 --seeds 1", mine), ("train mnist --codec none,int2", theirs)):
        done = thinwire(*verb.split(), *job, "--json", str(file))
        assert done.returncode == 0, done.stderr
    ours = {row["codec"]: row for row in json.loads(mine.read_text())["rows"]}
    for row in json.loads(theirs.read_text())["rows"]:
        assert ours[row["codec"]]["train_loss"] == row["train_loss"]
        assert ours[row["codec"]]["loss"] == pytest.approx(row["loss"], rel=1e-6)
        assert ours[row["codec"]]["accuracy"] == row["accuracy"]


def test_an_interrupt_keeps_what_is_finished(tmp_path):
    file = tmp_path / "study.json"
    command = [sys.executable, "-m", "thinwire", *TINY, "--steps", "100000", "--every", "100000", "--codecs", "int4"]
    # A rate at which the first runs end early, since their loss is no longer finite.
    process = subprocess.Popen(
        [*command, "--lr", "1e30", "--seeds", "50", "--json", str(file)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "--resume" in err
    rows = json.loads(file.read_text())["rows"]
    assert rows[0]["codec"] == "none"
    assert rows[0]["loss"] is None
    assert len(rows[0]["runs"][0]["curve_steps"]) == 1
    assert "none" in out


def test_deep_gradient_compression_is_for_sparse_codecs_and_sgd():
    codecs = [tw.codec("int4"), tw.codec("topk", k=41)]
    wanted = converge.contestants(codecs, [], ["off", "dgc:0.9"])
    assert [(one.codec.name, one.feedback) for one in wanted] == [("int4", "off"), ("topk", "off"), ("topk", "dgc:0.9")]
    with pytest.raises(ConfigError, match="none is sparse"):
        converge.contestants(codecs[:1], [], ["dgc:0.9"])
    converge.check_optimizer("momentum", wanted)
    converge.check_optimizer("adamw", wanted[:2])
    with pytest.raises(ConfigError, match="SGD's momentum"):
        converge.check_optimizer("adamw", wanted)


def test_deep_gradient_compression_runs_on_sgd_without_momentum(tmp_path):
    rows = tmp_path / "rows.json"
    CliRunner().invoke(
        app,
        [*TINY, "--codecs", "topk;k=41", "--feedback", "dgc:0.9", "--optimizer", "momentum", "--seeds", "1", "--json", str(rows)],
        catch_exceptions=False,
    )
    found = {row["codec"]: row for row in json.loads(rows.read_text())["rows"]}
    assert found["topk"]["feedback"] == "dgc:0.9"
    assert found["topk"]["replicas_identical"]
    assert found["topk"]["loss"] != found["none"]["loss"]


def test_codecs_that_differ_in_a_field_have_rows_that_can_be_told_apart():
    wanted = converge.contestants(
        [resolve("int4"), resolve("int4;rounding=stochastic"), resolve("int2;block=64/int4")], [], ["off"]
    )
    assert [one.label for one in wanted] == ["int4", "int4;rounding=stochastic", "int2;block=64/int4"]
