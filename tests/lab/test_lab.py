"""The lab as it is: what links do, how runs end, and that nothing is left behind."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from thinwire import lab
from thinwire.errors import ConfigError
from thinwire.lab.clean import members
from thinwire.lab.probe import measure


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def best_rate(asked, seconds, streams=1, good=0.96, attempts=10, **options):
    """Return the highest of some measured rates: whatever else runs on this machine can only slow a link down."""
    found = 0.0
    for _ in range(attempts):
        found = max(found, measure(lab.Topology(ranks=2, link=asked, **options), seconds, streams)["rate"])
        if found >= good * asked.rate:
            break
    return found


def plain(ranks=2, **options):
    return lab.Topology(ranks=ranks, link=lab.link("1gbit"), **options)


@pytest.mark.parametrize("rate", ["1gbit", "100mbit", "20mbit"])
def test_a_link_has_its_rate_each_way(plain_lab, rate):
    asked = lab.link(rate)
    assert best_rate(asked, 2.0) == pytest.approx(asked.rate, rel=0.05)


@pytest.mark.parametrize("delay", ["2ms", "10ms", "75ms"])
def test_a_round_trip_takes_twice_the_delay(timed_lab, delay):
    asked = lab.link("1gbit", delay)
    found = float("inf")
    for _ in range(5):
        # Processes that wake up late on a busy machine are not the link's delay.
        found = min(found, measure(lab.Topology(ranks=2, link=asked), 0.05)["least_round_trip"])
        if found <= 2.1 * asked.delay:
            break
    assert found == pytest.approx(2 * asked.delay, rel=0.1)


def test_a_link_with_a_delay_has_its_rate(timed_lab):
    asked = lab.link("200mbit", "10ms")
    assert best_rate(asked, 3.0, streams=4) == pytest.approx(asked.rate, rel=0.05)


def test_data_come_through_losses_whole(timed_lab):
    code = """
import hashlib, os, random, socket, sys, time
data = random.Random(1).randbytes(8_000_000)
place = (os.environ["MASTER_ADDR"], 29500)
if os.environ["RANK"] == "0":
    got, one = b"", socket.create_server(place).accept()[0]
    while part := one.recv(1 << 20): got += part
    sys.exit(got != data)
while True:
    try: one = socket.create_connection(place); break
    except ConnectionRefusedError: time.sleep(0.05)
one.sendall(data); one.shutdown(socket.SHUT_WR); one.recv(1)
tcp = [line.split() for line in open("/proc/net/snmp") if line.startswith("Tcp:")]
tcp = dict(zip(*tcp))
print(tcp["RetransSegs"], tcp["OutSegs"])
"""
    made = lab.Topology(ranks=2, link=lab.link("1gbit", "1ms", loss="1%"), mtu=1500)
    ended = lab.run(made, python(code))
    assert ended.exit_code == 0, ended.output
    again, all_of = map(int, ended.output[1][-1].split())
    assert 0.004 < again / all_of < 0.04


def test_ranks_of_a_host_share_its_address_and_talk_unshaped(plain_lab):
    code = """
import os, socket, time
rank, place = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], 29500)
if rank == 0:
    one = socket.create_server(place).accept()[0]
    count, start = 0, time.perf_counter()
    while part := one.recv(1 << 20): count += len(part)
    print(8 * count / (time.perf_counter() - start))
elif rank == 1:
    while True:
        try: one = socket.create_connection(place); break
        except ConnectionRefusedError: time.sleep(0.05)
    one.sendall(bytes(30_000_000))
print(open("/proc/self/net/fib_trie").read().count("10.111.0.1\\n") > 0)
"""
    made = lab.Topology(ranks=4, hosts=2, link=lab.link("10mbit"))
    ended = lab.run(made, python(code))
    assert float(ended.output[0][0]) > 1e8
    assert [ended.output[rank][-1] for rank in range(4)] == ["True", "True", "False", "False"]


def test_gloo_runs_unchanged(plain_lab):
    code = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(x)
print(x.unique().tolist(), dist.get_world_size())
dist.destroy_process_group()
"""
    ended = lab.run(plain(4, hosts=2), python(code))
    assert ended.exit_code == 0, ended.output
    assert all(lines[-1] == "[10.0] 4" for lines in ended.output.values())


def test_the_worst_rank_gives_the_exit_code_and_others_are_stopped(plain_lab):
    code = """
import os, sys, time
r = int(os.environ["RANK"]); print("log of", r); time.sleep(600 if r == 2 else 0.2); sys.exit(7 * r)
"""
    start = time.monotonic()
    ended = lab.run(plain(3), python(code))
    assert time.monotonic() - start < 20
    assert ended.exit_code == 7
    assert ended.failed() == {1: 7}
    assert ended.stopped == {2}
    assert ended.output[1] == ["log of 1"]


def test_a_rank_killed_by_a_signal(plain_lab):
    ended = lab.run(
        plain(2), python("import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(9)")
    )
    assert ended.codes[1] == -9
    assert ended.exit_code == 137


def test_a_schedule_changes_the_links(timed_lab):
    code = """
import os, socket, time
rank, place = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], 29500)
if rank == 0: one = socket.create_server(place).accept()[0]
else:
    while True:
        try: one = socket.create_connection(place); break
        except ConnectionRefusedError: time.sleep(0.05)
end = time.monotonic() + 4
while time.monotonic() < end:
    start = time.perf_counter()
    if rank == 0: one.sendall(b"x"); one.recv(1); print(start, time.perf_counter() - start)
    elif one.recv(1): one.sendall(b"y")
    else: break
"""
    base = lab.link("1gbit", "5ms")
    events = []
    made = lab.Topology(ranks=2, link=base, changes=lab.schedule("0s:1gbit/5ms,2s:1gbit/50ms", base))
    ended = lab.run(made, python(code), on_event=events.append)
    changed = [one for one in events if one["event"] == "link"]
    assert [one["link"] for one in changed] == ["1gbit, round trip 100ms"]
    assert 2.0 <= changed[0]["at"] < 2.3
    trips = [float(line.split()[1]) for line in ended.output[0]]
    assert min(trips) < 0.015
    assert 0.095 < trips[-1] < 0.13


def test_a_rate_changes_too(plain_lab):
    base = lab.link("20mbit")
    changes = lab.schedule("0s:1gbit,100ms:20mbit", base)
    assert best_rate(base, 3.0, changes=changes) == pytest.approx(base.rate, rel=0.05)


def test_a_delay_too_short_for_the_relay(timed_lab):
    heard = []
    lab.run(lab.Topology(ranks=2, link=lab.link("1gbit", "1ms")), ["true"], on_event=heard.append)
    if heard[0]["how"] == "netem":
        pytest.skip("this kernel has netem, which can be as short as one likes")
    with pytest.raises(ConfigError, match=r"delay=50us cannot be had here.*allowed: 0, or 200us"):
        lab.run(lab.Topology(ranks=2, link=lab.link("1gbit", "50us")), ["true"])


@pytest.mark.parametrize("command", [["no-such-program"], [], ["/"]])
def test_a_command_that_does_not_exist(plain_lab, command):
    with pytest.raises(ConfigError, match="command"):
        lab.run(plain(), command)


def test_without_the_privilege_a_lab_runs_in_a_user_namespace(plain_lab):
    def give_up():
        # CAP_NET_ADMIN and CAP_SYS_ADMIN, for good: what an ordinary user lacks.
        for capability in (12, 21):
            assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0 or os.getuid()

    code = """
from thinwire import lab
from thinwire.lab.probe import measure
heard = []
ended = lab.run(lab.Topology(ranks=2, link=lab.link("50mbit")), ["id", "-u"], on_event=heard.append)
print(ended.codes, [one["user_namespace"] for one in heard if one["event"] == "started"])
print(measure(lab.Topology(ranks=2, link=lab.link("50mbit")), 2.0)["rate"] < 52e6)
"""
    found = subprocess.run(python(code), preexec_fn=give_up, capture_output=True, text=True)
    assert found.stdout == "{0: 0, 1: 0} [True]\nTrue\n", found.stderr


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "thinwire", "lab", "run", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ours(pid: int) -> list[int]:
    """Processes of the lab that ``pid`` asked for."""
    found = []
    for one in members():
        with open(f"/proc/{one.pid}/environ", "rb") as file:
            if f"THINWIRE_LAB_OWNER={pid}:".encode() in file.read():
                found.append(one.pid)
    return found


def interfaces() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("delay", ["0", "5ms"])
def test_whatever_ends_it_nothing_is_left(timed_lab, number, delay):
    before = interfaces()
    run = start("--ranks", "2", "--delay", delay, "--", "sh", "-c", "trap '' TERM INT; echo up; sleep 600 & sleep 600")
    assert "up" in run.stdout.readline()
    assert len(ours(run.pid)) >= 5
    run.send_signal(number)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == (130 if number == signal.SIGINT else -number)
    assert number != signal.SIGINT or errors.endswith("thinwire: ended by SIGINT\n")
    end = time.monotonic() + 10
    while (left := ours(run.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []
    assert interfaces() == before


def test_a_supervisor_that_is_killed_takes_everything_along(plain_lab):
    run = start("--", "sh", "-c", "echo up; sleep 600")
    assert "up" in run.stdout.readline()
    inner = [one.pid for one in members() if one.pid in ours(run.pid) and "supervisor" in one.program]
    os.kill(max(inner), signal.SIGKILL)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 1
    assert "supervisor ended early" in errors
    assert ours(run.pid) == []


def test_clean_ends_only_what_has_no_owner(plain_lab):
    run = start("--", "sh", "-c", "echo up; sleep 600")
    stray = subprocess.Popen(["sleep", "600"], env=os.environ | {"THINWIRE_LAB_OWNER": "1:999999999999"})
    other = subprocess.Popen(["sleep", "600"])
    try:
        assert "up" in run.stdout.readline()
        found = subprocess.run([sys.executable, "-m", "thinwire", "lab", "clean"], capture_output=True, text=True, check=True)
        assert f"ended process {stray.pid}: sleep 600" in found.stdout
        assert stray.wait(timeout=10) == -signal.SIGKILL
        assert run.poll() is None
        assert len(ours(run.pid)) >= 4
        assert other.poll() is None
    finally:
        for one in (run, stray, other):
            one.kill()
            one.communicate()


def test_the_command_line_prefixes_lines_and_shows_the_log_of_a_dead_rank(plain_lab):
    run = start("--ranks", "2", "--link", "100mbit", "--", "sh", "-c", "echo [out] $RANK; echo err >&2; exit $((RANK * 5))")
    out, errors = run.communicate(timeout=60)
    assert run.returncode == 5
    assert sorted(out.splitlines()) == ["[0] [out] 0", "[1] [out] 1"]
    assert "links of 100mbit each way" in errors
    assert "last lines of rank 1:" in errors
    assert errors.endswith("thinwire: the run ended early: rank 1 with exit code 5\n")


def test_check_says_what_works(plain_lab, tmp_path):
    file = tmp_path / "check.json"
    command = [sys.executable, "-m", "thinwire", "lab", "check", "--seconds", "0.5", "--json", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    rows = json.loads(file.read_text())["rows"]
    assert {"namespaces and links with a rate", "netem", "delay, jitter, loss", "1gbit", "fastest link"} <= {
        row["what"] for row in rows
    }
    assert all(row["detail"] for row in rows)


@pytest.mark.parametrize(
    ("options", "value"),
    [("--link 5", "link='5'"), ("--delay 5", "delay='5'"), ("--ranks 3 --hosts 2", "ranks=3"), ("--jitter 5ms", "jitter=5ms"),
     ("--loss 5x", "loss='5x'"), ("--schedule 5s", "schedule='5s'"), ("--link 99gbit", "99gbit")],
)  # fmt: skip
def test_options_that_are_wrong(options, value):
    run = start(*options.split(), "--", "true")
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 2
    assert value in errors
    assert "allowed" in errors
