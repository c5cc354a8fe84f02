"""The repository as a whole: nothing of one machine in it, and packaging that agrees with the source."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import thinwire

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TEXT = {".py", ".md", ".toml", ".yaml", ".json", ""}
HOME = re.compile(r"(?<![\w.}])/(?:home|Users|root)/\w+")
SCRIPTS = [*(path for path in sorted((ROOT / "scripts").iterdir()) if not path.suffix), ROOT / ".ci/run"]


def tracked() -> list[Path]:
    """Return the tracked files that are present; empty outside a git checkout."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / name for name in done.stdout.split("\0")[:-1] if (ROOT / name).is_file()]


def test_the_pattern_finds_home_folders():
    assert all(HOME.search(f"{'/' + top}/ann/x") for top in ("home", "Users", "root"))
    assert not HOME.search("https://example.org/home/page")
    assert not HOME.search("a/root/b")


@pytest.mark.skipif(not tracked(), reason="not a git checkout, so there is no list of tracked files")
def test_no_file_names_a_home_folder():
    texts = [path for path in tracked() if path.suffix in TEXT]
    assert len(texts) > 50
    assert [path.name for path in texts if HOME.search(path.read_text(encoding="utf-8"))] == []


def test_one_version():
    assert "version" in PROJECT["project"]["dynamic"]
    path = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert path.samefile(Path(thinwire.__file__).with_name("_version.py"))
    assert re.fullmatch(r"\d+\.\d+\.\d+", thinwire.__version__)


def test_all_holds_every_extra():
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(re.findall(r"[a-z]+", everything.partition("[")[2])) == set(extras) - {"all"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_stop_at_the_first_error(path):
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=True).stderr == ""


def test_setup_refuses_an_old_python(tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\n[ \"$1\" = -c ] && exit 1\necho 'Python 3.8.0'\n")
    old.chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts/setup"], env=os.environ | {"PYTHON": str(old)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Python 3.8.0" in done.stderr
    assert "3.11" in done.stderr


def test_this_python_is_allowed():
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert sys.version_info >= (3, 11)
