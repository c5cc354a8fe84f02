"""Imports go down the list of layers only, and side effects stay where they belong."""

from __future__ import annotations

import ast
from pathlib import Path

import thinwire

ROOT = Path(thinwire.__file__).parent
LAYERS = [
    "_version",
    "errors",
    "kernels",
    "codec",
    "collective",
    "feedback",
    "metrics",
    "cost",
    "policy",
    "reducer",
    "controller",
    "overlap",
    "functional",
    "training",
    "federated",
    "integrations",
    "lab",
    "workloads",
    "bench",
    "report",
    "cli",
    "__main__",
]
# metrics counts what collectives do, so they may import it although it is listed after them.
ALSO = {("collective", "metrics")}
# DDP's own class and bucket type, and scripts that join a process group, are torch.distributed too.
DISTRIBUTED = {"collective/transport.py", "training/ddp.py", "cli/launch.py", "cli/train_rank.py"}


def imports(source: str) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def violations(path: str, source: str) -> list[str]:
    here = path.split("/")[0].removesuffix(".py")
    wrong = []
    for name in imports(source):
        layer = name.split(".")[1] if name.startswith("thinwire.") else None
        if layer in LAYERS and LAYERS.index(layer) > LAYERS.index(here) and (here, layer) not in ALSO:
            wrong.append(f"{path} imports {name}, which is above it")
        if name.startswith("torch.distributed") and path not in DISTRIBUTED:
            wrong.append(f"{path} imports {name}; only {sorted(DISTRIBUTED)} may")
    return wrong


def test_the_checker_sees_a_violation():
    assert violations("codec/new.py", "from thinwire.collective import shard")
    assert violations("kernels/new.py", "import thinwire.codec.base")
    assert violations("reducer.py", "import torch.distributed as dist")
    assert not violations("training/new.py", "from thinwire.codec import base\nimport torch")


def test_imports_go_down():
    files = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]
    assert len(files) > 30
    assert [w for p in files for w in violations(p.relative_to(ROOT).as_posix(), p.read_text())] == []


def test_the_spine_is_short():
    assert len((ROOT / "reducer.py").read_text().splitlines()) < 150
