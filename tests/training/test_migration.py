"""The script of docs/migrate-from-deepspeed.md, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import torch

import thinwire as tw
from thinwire.feedback import MovingAverage
from thinwire.feedback.specs import form_of

PAGE = Path(__file__).parents[2] / "docs" / "migrate-from-deepspeed.md"
ENVIRONMENT = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}


def test_the_script_runs(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    file = tmp_path / "train.py"
    file.write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(file)]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    loss, sent, exact = re.search(r"loss ([0-9.]+), (\d+) bytes sent, exact: (\w+)", done.stdout).groups()
    assert float(loss) < 2.2  # 2.4 at the start
    assert exact == "False"
    elements = 64 * 128 + 128 + 128 * 10 + 10
    assert int(sent) < 0.4 * 100 * 4 * elements  # a fifth in fp32, the rest in about a bit
    states = [torch.load(tmp_path / f"optimizer-{rank}.pt", weights_only=True) for rank in range(2)]
    mine, theirs = (one["thinwire"]["residuals"][f"rank{rank}"] for rank, one in enumerate(states))
    assert any(not torch.equal(mine[name], theirs[name]) for name in mine)


def test_what_the_table_names_exists():
    form = form_of("average:0.8;reset=1024", tw.codec("int4"))
    assert form == MovingAverage(beta=0.8, reset=1024)
    text = PAGE.read_text()
    for name in ("floor=0.1", "min_elements=256", "bias_correction=True"):
        field, value = name.split("=")
        assert f"`{name}`" in text
        defaults = tw.optim.OneBitAdam.__init__.__kwdefaults__
        assert str(defaults[field]) == value
