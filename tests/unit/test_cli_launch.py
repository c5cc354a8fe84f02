"""How a run of local ranks ends when something goes wrong: one error, a clear exit code, no process and no file left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from thinwire.cli.launch import _echo, _failed
from thinwire.cli.output import check_json, write_json
from thinwire.errors import ConfigError

NOT_A_RANK = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}


def start(arguments, folder, **variables):
    command = [sys.executable, "-m", "thinwire", *arguments.split()]
    environment = NOT_A_RANK | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"} | variables
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def children(parent: int) -> list[int]:
    listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split()
    return [int(pid) for pid, ppid in zip(listing[::2], listing[1::2], strict=True) if int(ppid) == parent]


def is_alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def start_two_ranks(folder):
    """A run that is training, and its ranks, which are in sessions of their own."""
    run = start("train mnist --codec none --epochs 1000", folder)
    try:
        assert run.stdout.readline().startswith("mnist: 2 ranks")
        ranks = children(run.pid)
        assert len(ranks) == 2
        assert all(os.getsid(pid) == pid for pid in ranks)
    except BaseException:
        run.terminate()
        run.communicate(timeout=60)
        raise
    return run, ranks


def test_an_interrupt_ends_all_ranks_with_one_line(tmp_path):
    run, ranks = start_two_ranks(tmp_path)
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert errors == "thinwire: ended by SIGINT\n"
    assert not any(map(is_alive, ranks))
    assert list(tmp_path.glob("thinwire-*")) == list(tmp_path.glob("torchelastic_*")) == []


def test_a_lost_rank_ends_the_run_and_is_named(tmp_path):
    run, ranks = start_two_ranks(tmp_path)
    time.sleep(1)
    os.kill(ranks[1], signal.SIGKILL)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 1
    last = errors.rstrip().rpartition("\n")[2]
    assert last.startswith("thinwire: the run ended early: ")
    assert "by SIGKILL" in last
    assert not any(map(is_alive, ranks))


def test_a_diverged_run_still_writes_its_rows(tmp_path):
    run = start(f"train mnist --codec none --lr 1e9 --steps 3 --epochs 2 --json {tmp_path / 'd.json'}", tmp_path)
    _, errors = run.communicate(timeout=120)
    assert (run.returncode, errors) == (0, "")
    (row,) = json.loads((tmp_path / "d.json").read_text())["rows"]
    assert row["loss"] is None
    assert (row["epochs"], row["steps"], row["step_ms"]) == (2, 3, None)


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        ("train mnist --seed 9223372036854775808", {}, ["--seed 9223372036854775808", "64 bits"]),
        ("train mnist --lr nan", {}, ["--lr nan", "finite"]),
        ("train mnist", {"RANK": "x", "WORLD_SIZE": "2"}, ["RANK='x'", "torchrun"]),
        ("train mnist", {"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_PORT=''"]),
        ("train mnist", {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, ["MASTER_ADDR is not set"]),
    ],
)
def test_mistakes_are_found_before_ranks_start(tmp_path, arguments, variables, words):
    run = start(arguments, tmp_path, **variables)
    out, errors = run.communicate(timeout=60)
    assert (run.returncode, out, errors.count("\n")) == (2, "", 1)
    for word in words:
        assert word in errors


def write_errors(folder, *texts):
    for rank, text in enumerate(texts):
        place = folder / "run" / "attempt_0" / str(rank)
        place.mkdir(parents=True)
        (place / "stderr.log").write_text(text)


def test_an_error_of_all_ranks_is_shown_once_and_others_are_not_hidden(tmp_path, capsys):
    write_errors(tmp_path, "[rank0]: 1\n[rank0]: E: same\n", "[rank1]: 2\n[rank1]: E: same\n", "[rank2]: E: other\n", "")
    _echo(tmp_path, range(4))
    assert capsys.readouterr().err == "[rank0]: 1\n[rank0]: E: same\n[rank2]: E: other\n"


@pytest.mark.parametrize(
    ("codes", "message", "exit_code"),
    [
        ({0: -signal.SIGTERM, 1: -signal.SIGKILL}, "rank 1 by SIGKILL", 1),
        ({0: 2, 1: 2}, "rank 0 with exit code 2, rank 1 with exit code 2", 2),
        ({0: 2, 1: -signal.SIGTERM}, "rank 0 with exit code 2", 2),
        ({0: 1, 1: 2}, "rank 0 with exit code 1, rank 1 with exit code 2", 1),
        ({0: -signal.SIGTERM}, "rank 0 by SIGTERM", 1),
    ],
)
def test_ranks_that_the_launcher_ended_are_not_blamed(codes, message, exit_code):
    ended = _failed(codes)
    assert str(ended) == f"the run ended early: {message}"
    assert ended.exit_code == exit_code


def test_json_that_cannot_be_written_is_a_mistake_of_the_user(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="cannot be written"):
        write_json(tmp_path, [{"a": 1}])
    write_json(tmp_path / "rows.json", [{"a": float("inf"), "b": 1.5, "c": True}])
    assert json.loads((tmp_path / "rows.json").read_text()) == {"rows": [{"a": None, "b": 1.5, "c": True}]}
    check_json(tmp_path / "rows.json")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="can be written to"):
        check_json(tmp_path / "rows.json")
