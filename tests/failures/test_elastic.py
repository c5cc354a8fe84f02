"""Under torchrun's elastic restart, a job whose rank was killed ends with the loss and the bits of one that was left alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

JOB = str(Path(__file__).with_name("elastic_job.py"))
RANKS, STEPS = 2, 400
COUNT = int(os.environ.get("THINWIRE_RESTARTS", "2"))
"""Kills at random moments; the count of a longer run is set by the environment."""


def train(folder: Path, victim: int, moment: int, microseconds: int) -> list[list[str]]:
    """What each rank ended with: loss, hash of the weights, first step and number of the last attempt."""
    folder.mkdir()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(RANKS), "--max_restarts", "2"]
    options = "--rdzv_backend c10d --rdzv_endpoint 127.0.0.1:0 --local_addr 127.0.0.1 --monitor_interval 0.1"
    launcher += options.split()
    # By itself, torch shares the launcher's store, and gloo's start finds the addresses of the attempt that failed.
    ended = subprocess.run(
        [*launcher, JOB, str(folder), str(STEPS), *map(str, (victim, moment, microseconds))],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [(folder / f"end-{rank}.txt").read_text().split() for rank in range(RANKS)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[list[str]]:
    return train(tmp_path_factory.mktemp("elastic") / "undisturbed", -1, 0, 0)


@pytest.mark.parametrize("number", range(COUNT))
def test_a_killed_rank_changes_nothing_but_time(undisturbed, number, tmp_path):
    source = random.Random(number)
    ends = train(tmp_path / "disturbed", source.randrange(RANKS), source.randrange(300), source.randrange(8000))
    assert [end[:2] for end in ends] == [end[:2] for end in undisturbed]
    assert all(end[3] == "1" for end in ends), "nothing was killed, or more than once"


def test_the_undisturbed_run_was_one(undisturbed):
    assert all(end[2:] == ["0", "0"] for end in undisturbed)
    assert len({end[1] for end in undisturbed}) == 1
