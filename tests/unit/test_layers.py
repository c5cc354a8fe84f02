"""Imports go down the list of layers only, and side effects stay where they belong."""

from __future__ import annotations

import ast
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

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
    "optim",
    "federated",
    "integrations",
    "lab",
    "workloads",
    "inspect",
    "bench",
    "report",
    "cli",
    "__main__",
]
# metrics counts what collectives do, so they may import it although it is listed after them.
ALSO = {("collective", "metrics")}
DISTRIBUTED = {
    "collective/transport.py": "the only file that sends",
    "training/hook.py": "DDP's bucket type",
    "training/guard.py": "the type of its errors",
    "bench/hooks.py": "PyTorch's own hooks, to stand beside ours",
    "cli/launch.py": "torch's elastic launcher starts the local ranks",
    "cli/train_rank.py": "a rank joins and leaves the process group",
    "cli/bench_rank.py": "a rank joins and leaves the process group",
}


def imports(source: str) -> list[str]:
    """Return the dotted name of everything that is imported, and every use of ``torch.distributed``."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names += [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            names.append("torch.distributed")
    return names


def fault(path: str, name: str) -> str | None:
    here = path.split("/")[0].removesuffix(".py")
    first, _, rest = name.partition(".")
    layer = rest.split(".")[0]
    if name.startswith("."):
        return "is relative; imports are absolute"
    if name.startswith("torch.distributed") and path not in DISTRIBUTED:
        return f"may be used in {sorted(DISTRIBUTED)} only"
    if first != "thinwire":
        return None
    if here not in LAYERS or layer not in LAYERS:
        return f"is outside the list of layers, or {here} is"
    above = LAYERS.index(layer) > LAYERS.index(here) and (here, layer) not in ALSO
    return "is above it" if above else None


def violations(path: str, source: str) -> list[str]:
    return [f"{path}: {name} {what}" for name in imports(source) if (what := fault(path, name))]


def module_of(name: str, modules: Collection[str]) -> str | None:
    """Return the module that a dotted name lives in: ``package.module.Class`` in ``package.module``."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def cycle(sources: dict[str, str]) -> list[str]:
    """Return the modules of a cycle of imports, or an empty list. Keys: dotted names of modules."""
    graph = {
        module: {found for name in imports(text) if (found := module_of(name, sources)) not in (module, None)}
        for module, text in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def files() -> list[Path]:
    """All modules but ``thinwire/__init__.py``, whose lazy names come from every layer."""
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("codec/new.py", "from thinwire.collective import shard"),
        ("kernels/new.py", "import thinwire.codec.base"),
        ("kernels/new.py", "def late():\n    from thinwire import codec"),
        ("reducer.py", "from thinwire import all_reduce"),
        ("reducer.py", "import thinwire"),
        ("codec/new.py", "from . import base"),
        ("codec/new.py", "from ..cli.app import main"),
        ("unlisted/new.py", "from thinwire.errors import ConfigError"),
        ("reducer.py", "import torch.distributed as dist"),
        ("reducer.py", "from torch import distributed"),
        ("reducer.py", "import torch\ntorch.distributed.barrier()"),
    ],
)
def test_the_checker_sees_a_violation(path, source):
    assert violations(path, source)


def test_the_checker_lets_good_imports_pass():
    good = "from thinwire.codec import base\nfrom thinwire import errors\nimport torch.nn"
    assert not violations("training/new.py", good)
    assert not violations("collective/transport.py", "import torch.distributed as dist\nfrom thinwire import metrics")


def test_the_checker_sees_a_cycle():
    one, two = "thinwire.codec.one", "thinwire.codec.two"
    assert set(cycle({one: "from thinwire.codec import two", two: f"from {one} import name"})) == {one, two}
    assert cycle({"thinwire.codec": "from thinwire.codec.one import name", one: "from thinwire.codec import other"})
    assert cycle({one: "from thinwire.codec import two", two: "import torch", "thinwire.codec": ""}) == []


def test_imports_go_down():
    assert len(files()) > 30
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files()}
    assert [wrong for path, text in sources.items() for wrong in violations(path, text)] == []


def test_no_cycle():
    modules = {dotted(path): path.read_text() for path in files()}
    assert "thinwire.codec.base" in modules
    assert "thinwire.codec" in modules
    assert cycle(modules) == []


def test_exceptions_are_still_needed():
    for path in DISTRIBUTED:
        assert any(name.startswith("torch.distributed") for name in imports((ROOT / path).read_text())), path


def test_the_spine_is_short():
    assert len((ROOT / "reducer.py").read_text().splitlines()) < 150
