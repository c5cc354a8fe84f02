"""Documents: links lead somewhere, both READMEs say the same, commands exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACKED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")[:-1]
MARKDOWN = sorted(path for path in ROOT.rglob("*.md") if ".venv" not in path.parts)


def code_blocks(text: str) -> list[str]:
    return re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def test_both_readmes_have_the_same_structure_and_code():
    english, chinese = (ROOT / "README.md").read_text(), (ROOT / "README.zh-CN.md").read_text()
    levels = [[len(m) for m in re.findall(r"^(#+) ", text, flags=re.MULTILINE)] for text in (english, chinese)]
    assert levels[0] == levels[1]
    assert code_blocks(english) == code_blocks(chinese)
    assert re.findall(r"\d+\.\d+", english) == re.findall(r"\d+\.\d+", chinese), "the figures differ"


def test_commands_in_the_documents_exist():
    from typer.main import get_command

    from thinwire.cli.app import app

    root = get_command(app)
    lines = [line for path in MARKDOWN for block in code_blocks(path.read_text()) for line in block.splitlines()]
    commands = [line for line in lines if re.match(r"(\.venv/bin/)?thinwire ", line)]
    assert commands
    for line in commands:
        words, command = shlex.split(line.split("#")[0])[1:], root
        # What comes after a bare -- is another program's.
        words = words[: words.index("--")] if "--" in words else words
        while words and not words[0].startswith("-") and hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known, line


@pytest.mark.skipif(not TRACKED, reason="not a git checkout, so there is no list of tracked files")
def test_tracked_files_are_small_and_scripts_executable():
    for name in TRACKED:
        path = ROOT / name
        if path.exists():
            assert path.stat().st_size < 2 << 20, name
    for name in ("setup", "demo", "test", "check", "docs", "bench", "fuzz"):
        assert (ROOT / "scripts" / name).stat().st_mode & 0o111
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_python_files_are_not_long():
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= 400, path


def test_the_readmes_table_is_that_of_the_newest_benchmarks():
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "scripts" / "readme_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = module.table()
    assert len(lines) >= 7
    for name in ("README.md", "README.zh-CN.md"):
        text = (ROOT / name).read_text().splitlines()
        assert [line for line in lines if line not in text] == [], name
