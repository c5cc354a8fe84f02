"""Ranks that are killed, freeze, raise or never come, at random moments: every other rank says which, in time, and ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ranks import free_port

JOB = str(Path(__file__).with_name("job.py"))
RANKS, TIMEOUT = 3, 4.0
COUNT = int(os.environ.get("THINWIRE_FAILURES", "2"))
"""Random moments of each kind; the count of a longer run is set by the environment."""


def start(seed: int, victim: int, how: str, milliseconds: int) -> list[subprocess.Popen[str]]:
    shared = os.environ | {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, JOB, str(seed), str(victim), how, str(milliseconds), str(TIMEOUT)]
    return [
        subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]


@pytest.mark.parametrize("how", ["kill", "freeze", "raise", "late"])
@pytest.mark.parametrize("number", range(COUNT))
def test_every_other_rank_names_the_lost_one_in_time_and_ends(how, number):
    if how == "late" and number > 2:
        pytest.skip("a rank that never comes takes half a minute; three of them are enough")
    source = random.Random(f"{how} {number}")
    # Rank 0 hosts torch's store, whose end ends a rank that is still in torch's own set-up.
    victim, milliseconds = source.randrange(RANKS), source.randrange(20, 1500)
    victim = max(victim, how == "late")
    ranks = start(number, victim, how, milliseconds)
    try:
        for rank in (rank for rank in range(RANKS) if rank != victim):
            out, errors = ranks[rank].communicate(timeout=90)
            said = json.loads(out.splitlines()[-1]) if out else {}
            assert said.get("error") in ("PeerLost", "CollectiveTimeout"), (how, victim, out, errors)
            assert said["ranks"] == [victim], said
            assert f"rank {victim}" in said["text"], said
            assert "bytes" in said["text"], said
            assert said["operation"], said
            assert said["seconds"] < TIMEOUT + 5, said
            if how == "freeze":
                assert said["seconds"] > TIMEOUT / 4, said
            if how == "raise":
                assert "ValueError" in said["text"], said
            # 7 is the job's own exit code: nothing hung or crashed at the end.
            assert ranks[rank].returncode == 7, errors
    finally:
        for one in ranks:
            if one.poll() is None:
                one.send_signal(signal.SIGKILL)
            one.communicate(timeout=30)


def test_the_job_trains_until_something_fails():
    """Else every test above could pass on a job that fails by itself."""
    ranks = start(0, 0, "nothing", 0)
    time.sleep(12)
    alive = [one.poll() for one in ranks]
    for one in ranks:
        one.kill()
        one.communicate(timeout=30)
    assert alive == [None] * RANKS
