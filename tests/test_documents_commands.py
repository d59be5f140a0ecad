"""The commands of the documents: those of the guides run, in their order; those of all pages can be parsed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from placewise.cli.app import app

ROOT = Path(__file__).parent.parent
GUIDES = [*sorted((ROOT / "docs/guides").glob("*.md")), ROOT / "docs/reading.md"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
FILE = re.compile(r"```(?:toml|csv)\n# ([\w.-]+)\n(.*?)```", re.DOTALL)
"""A file that a guide shows: its first line is a comment with its name."""
LESS = [(re.compile(r"(--time-limit )\d+s"), r"\g<1>0.2s"), (re.compile(r"(--evaluations )\d+"), r"\g<1>4")]
"""What the pages give to searches is cut down: what runs is the same."""
ELSEWHERE = re.compile(r"openvino:(GPU|NPU)")
"""Commands for devices that machines without them refuse in one sentence."""
ALREADY = re.compile(r"the plan has it on (\S+) already; choose another device: (\S+)")
"""Where an op is depends on how far a search came in its time: then the question is asked of another device."""
NEEDS = {"openvino.md": ("openvino",), "does-not-fit.md": ("torch", "transformers"), "papers.md": ("torch_geometric",)}
"""The optional libraries of a page."""


def commands_of(page: Path) -> list[str]:
    """The lines of a page's blocks that call placewise."""
    blocks = "\n".join(BLOCK.findall(page.read_text()))
    return [line for line in blocks.splitlines() if line.startswith("placewise ")]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_command_of_a_guide_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder with the examples and the files that the guide shows, each ends with exit code 0."""
    for library in NEEDS.get(page.name, ()):
        pytest.importorskip(library)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, text in FILE.findall(page.read_text()):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert commands_of(page)
    for command in commands_of(page):
        shorter = command
        for pattern, less in LESS:
            shorter = pattern.sub(less, shorter)
        done = CliRunner().invoke(app, shlex.split(shorter)[1:])
        if there := ALREADY.search(done.output):
            done = CliRunner().invoke(app, shlex.split(shorter.replace(there[1], there[2]))[1:])
        if ELSEWHERE.search(command):
            assert done.exit_code == 2 and done.output.count("error:") == 1, f"{command}\n{done.output}"
        else:
            assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
            assert done.stdout.strip(), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists(page: Path) -> None:
    """Its verb, its options and the form of their values: each command is parsed, and not run."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    indented = [line.strip() for line in text.splitlines() if line.startswith("    placewise ")]
    for line in (*commands_of(page), *indented):
        found: Any = typer.main.get_command(app)
        words = shlex.split(line, comments=True)[1:]
        while hasattr(found, "commands") and words:
            assert words[0] in found.commands, line
            found, words = found.commands[words[0]], words[1:]
        found.make_context(found.name, words)
