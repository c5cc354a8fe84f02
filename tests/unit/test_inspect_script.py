"""``thinwire inspect SCRIPT.py``: whatever the script does, its first gradients are seen, and it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
HEAD = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
def loss():
    return nn.functional.cross_entropy(model(torch.randn(16, 32)), torch.randint(10, (16,)))
"""
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
FOREVER = "while True:\n    optimizer.zero_grad(); loss().backward(); optimizer.step()\n"


def inspect(folder: Path, script: str, *arguments: str, start: tuple[str, ...] = (sys.executable,), timeout: float = 120):
    """The finished process, and the rows by layer; nothing is left in the folder for temporary files."""
    (folder / "train.py").write_text(script)
    (folder / "tmp").mkdir(exist_ok=True)
    command = [*start, "-m", "thinwire", "inspect", "train.py", "--codecs", "int8,int4", "--json", "o.json", *arguments]
    environment = ENVIRONMENT | {"TMPDIR": str(folder / "tmp")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, env=environment)
    assert list((folder / "tmp").glob("thinwire-*")) == []
    file = folder / "o.json"
    return done, {row["layer"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}


def test_an_endless_script_ends_after_its_steps(tmp_path):
    done, rows = inspect(tmp_path, HEAD + SGD + "print('arguments', *sys.argv, __name__)\n" + FOREVER, "--", "--lr", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "arguments train.py --lr 3 __main__" in done.stdout
    assert list(rows) == ["0.weight", "0.bias", "2.weight", "2.bias", "total"]
    assert (rows["0.weight"]["steps"], rows["0.weight"]["ranks"], rows["0.weight"]["codec"]) == (3, 1, "int4")
    assert rows["0.weight"]["shape"] == [64, 32]


def kept(folder: Path, script: str, *arguments: str) -> list[dict[str, np.ndarray]]:
    done, _ = inspect(folder, script, "--keep", "kept", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    files = sorted((folder / "kept").glob("*.npz"))
    return [dict(np.load(file)) for file in files]


def test_gradients_are_those_that_the_optimizer_gets(tmp_path):
    script = HEAD + SGD + "seen = []\nwhile True:\n    optimizer.zero_grad(); loss().backward()\n"
    script += "    torch.save([p.grad for p in model.parameters()], f'{len(seen)}.pt'); seen.append(0)\n    optimizer.step()\n"
    import torch

    found = kept(tmp_path, script, "--steps", "2", "--after", "1")
    assert len(found) == 2
    for number, tensors in enumerate(found, start=1):
        for mine, own in zip(tensors.values(), torch.load(tmp_path / f"{number}.pt"), strict=True):
            np.testing.assert_array_equal(mine, own.numpy())


def test_micro_steps_add_up_and_skipped_steps_do_not(tmp_path):
    script = HEAD + SGD + (
        "import numpy\nx = torch.randn(16, 32)\ndef backward(by=1.0): (by * model(x).square().sum()).backward()\n"
        "optimizer.zero_grad(); backward(7.0)  # as a loss scale that overflows: no step\n"
        "optimizer.zero_grad(); backward()\n"
        "numpy.savez('once.npz', **{k: p.grad.numpy() for k, p in model.named_parameters()})\n"
        "backward(); optimizer.step()\n"
    )  # fmt: skip
    (found,) = kept(tmp_path, script, "--steps", "1")
    once = np.load(tmp_path / "once.npz")
    for name, gradient in found.items():
        np.testing.assert_allclose(gradient, 2 * once[name], rtol=1e-5, atol=1e-6)


SCRIPTS = {
    "a script that ends early": SGD + "optimizer.zero_grad(); loss().backward(); optimizer.step()\n",
    "sys.exit(0)": SGD + "optimizer.zero_grad(); loss().backward(); optimizer.step(); sys.exit(0)\n",
    "except Exception": SGD + "while True:\n    try:\n        optimizer.zero_grad(); loss().backward(); optimizer.step()\n"
    "    except Exception: pass\n",
    "an error while it ends": SGD + "try:\n    " + FOREVER.replace("\n    ", "\n        ") + "finally:\n    raise RuntimeError\n",
    "AdamW and a scheduler": "optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)\n"
    "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))\n" + FOREVER,
    "a closure": "optimizer = torch.optim.LBFGS(model.parameters())\ndef closure():\n"
    "    optimizer.zero_grad(); x = loss(); x.backward(); return x\nwhile True: optimizer.step(closure)\n",
    "two optimizers": "a, b = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model[0], model[2]))\n"
    "while True:\n    model.zero_grad(); loss().backward(); a.step(); b.step()\n",
    "an optimizer that never steps": SGD + "other = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1)\n" + FOREVER,
    "a copy and a checkpoint": SGD + "import copy\n" + FOREVER + "    copy.deepcopy(model); torch.save(model, 'model.pt')\n",
}


@pytest.mark.parametrize("body", SCRIPTS.values(), ids=SCRIPTS)
def test_scripts_of_all_kinds(tmp_path, body):
    done, rows = inspect(tmp_path, HEAD + body, "--steps", "2")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= set(rows)
    assert "0.weight" in done.stdout


def test_what_has_no_gradient_to_measure_is_named(tmp_path):
    body = "table = nn.Embedding(9, 32, sparse=True)\nunused = nn.Parameter(torch.ones(3))\n"
    body += "optimizer = torch.optim.SGD([*model.parameters(), *table.parameters(), unused], lr=0.1)\nwhile True:\n"
    body += "    optimizer.zero_grad(); model(table(torch.arange(9))).sum().backward(); optimizer.step()\n"
    done, rows = inspect(tmp_path, HEAD + body, "--steps", "1")
    assert done.returncode == 0
    assert "left out: weight (sparse_coo float32), parameter 5 [3] (no gradient)" in done.stdout
    assert "weight" not in rows


ENDS = "import threading, time\n" + SGD


@pytest.mark.parametrize(
    "body",
    [
        ENDS + "while True:\n    try:\n        optimizer.zero_grad(); loss().backward(); optimizer.step()\n    except: pass\n",
        ENDS + "try:\n    " + FOREVER.replace("\n    ", "\n        ") + "finally:\n    time.sleep(1e6)\n",
        ENDS + "threading.Thread(target=time.sleep, args=(1e6,)).start()\n" + FOREVER,
    ],
    ids=["catches everything", "does not end", "leaves a thread"],
)
def test_a_script_that_does_not_end_is_ended(tmp_path, body):
    code = "import thinwire.inspect.script as s; s.GRACE_SECONDS = 2.0\nimport thinwire.cli.inspect_script as c\n"
    code += "c.GRACE_SECONDS = 2.0\nfrom thinwire.cli.app import main; main()"
    (tmp_path / "train.py").write_text(HEAD + body)
    command = [sys.executable, "-c", code, "inspect", "train.py", "--codecs", "int8"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("total") == 1


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("def f():\n    raise KeyError('mine')\nf()\n", 1, ["in f\n", "KeyError: 'mine'", "failed, its", "0 of 3"]),
        ("def (:\n", 1, ["SyntaxError", "train.py"]),
        ("sys.exit(7)\n", 7, ["ended with exit code 7"]),
        ("sys.exit('no data')\n", 1, ["no data", "exit code 1"]),
        ("print('nothing')\n", 2, ["made no optimizer step", "torch.optim"]),
        (SGD + "while True: optimizer.step()\n", 2, ["made no optimizer step", "13 after the first 0"]),
    ],
)
def test_scripts_that_fail(tmp_path, body, code, words):
    done, _ = inspect(tmp_path, HEAD + body)
    assert done.returncode == code
    for word in words:
        assert word in done.stderr
    for ours in ("runpy", "inspect/script.py", "cli/app.py"):
        assert ours not in done.stderr


def test_a_folder_with_gradients_of_before_is_refused(tmp_path):
    kept(tmp_path, HEAD + SGD + FOREVER)
    done, _ = inspect(tmp_path, HEAD + SGD + FOREVER, "--keep", "kept")
    assert done.returncode == 2
    assert "an earlier run" in done.stderr


DDP = """
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(model)
torch.manual_seed(rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2")


def test_under_torchrun_each_ranks_own_gradients_are_seen_before_they_are_reduced(tmp_path):
    done, rows = inspect(tmp_path, HEAD + DDP + FOREVER, "--steps", "2", start=TORCHRUN)
    assert done.returncode == 0, done.stderr
    assert (rows["0.weight"]["ranks"], rows["0.weight"]["steps"]) == (2, 2)
    # Of batches that have nothing in common; after DDP's reduction it would be 1.
    assert abs(rows["0.weight"]["correlation"]) < 0.6
    assert done.stdout.count("total") == 1


def test_local_ranks_that_it_starts_itself(tmp_path):
    body = HEAD + DDP + "import thinwire\nhandle = thinwire.compress(model, 'int4')\n" + FOREVER
    done, rows = inspect(tmp_path, body, "--ranks", "2", "--steps", "1", "--keep", "kept")
    assert (done.returncode, done.stderr) == (0, "")
    assert rows["2.weight"]["ranks"] == 2
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == [f"rank{r}{rest}" for r in range(2) for rest in ("-optimizer0-step0.npz", ".json")]


def test_a_parameter_that_one_rank_did_not_use_is_zero_there(tmp_path):
    body = HEAD + DDP.replace("(model)\n", "(model, find_unused_parameters=True)\n")
    body += "extra = nn.Linear(32, 64)\nmodel.module.append(nn.Identity())\nmodel = nn.ModuleList([model, extra])\n"
    body += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nwhile True:\n    optimizer.zero_grad()\n"
    body += "    x = torch.randn(16, 32)\n    (model[0](x).sum() + (extra(x).sum() if rank == 1 else 0)).backward()\n"
    body += "    optimizer.step()\n"
    done, rows = inspect(tmp_path, body, "--steps", "1", start=TORCHRUN)
    assert done.returncode == 0, done.stderr
    assert rows["1.weight"]["zeros"] == pytest.approx(0.5, abs=0.01)


def test_a_rank_that_fails_ends_the_run_and_leaves_nothing(tmp_path):
    body = HEAD + DDP + "if rank == 1: raise RuntimeError('rank 1 broke')\n" + FOREVER
    done, rows = inspect(tmp_path, body, "--ranks", "2")
    assert done.returncode == 1
    assert "rank 1 broke" in done.stderr
    assert rows == {}


def test_a_built_in_workload(tmp_path):
    file = tmp_path / "m.json"
    command = [sys.executable, "-m", "thinwire", "inspect", "mnist", "--steps", "2", "--ranks", "3", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row["layer"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["0.weight", "0.bias", "3.weight", "3.bias", "total"]
    assert (rows["3.weight"]["ranks"], rows["3.weight"]["steps"], rows["3.weight"]["elements"]) == (3, 2, 216_320)
    assert 0.5 < rows["3.weight"]["correlation"] < 1
    assert rows["0.bias"]["codec"] == "none"
    assert rows["3.weight"]["codec"] == "gauss4"
