"""The site of the documentation: its references are whole, it builds without a warning, and loads nothing else."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from locations import ROOT

import placewise
from placewise._util.option_table import PROBLEM_OPTIONS
from placewise.cli.app import COMMANDS


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_the_commands_has_every_verb_and_option(hooks: ModuleType) -> None:
    """A section per command; that of `place` has every option of a problem, with its sentence."""
    assert "<!-- commands -->" in (ROOT / "docs" / "reference" / "cli.md").read_text()
    sections = dict(re.findall(r"^## placewise (\S+).*?\n(.*?)(?=^## |\Z)", _text(hooks), re.MULTILINE | re.DOTALL))
    assert list(sections) == list(COMMANDS)
    for option in PROBLEM_OPTIONS:
        for flag in option.flag.split("/"):
            assert f"`{flag}`" in sections["place"], option.name


def _text(hooks: ModuleType) -> str:
    return "\n".join(hooks.describe_commands())


def test_the_reference_of_python_has_every_public_name() -> None:
    """Each name of the package stands there once."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert sorted(re.findall(r"^::: placewise\.(\w+)$", page, re.MULTILINE)) == sorted(placewise.__all__)


def test_every_table_of_results_is_listed() -> None:
    """docs/results.md leads to each page of benchmarks/results."""
    listed = re.findall(r"benchmarks/results/(\w+\.md)", (ROOT / "docs" / "results.md").read_text())
    assert sorted(listed) == sorted(path.name for path in (ROOT / "benchmarks" / "results").glob("*.md"))


@pytest.mark.parametrize(
    ("link", "source", "rewritten"),
    [
        ("../CONTRIBUTING.md#habits", "docs/placers.md", "CONTRIBUTING.md#habits"),
        ("../../benchmarks/results/quality.md", "docs/guides/papers.md", "../benchmarks/results/quality.md"),
        ("docs/judge.md", "CONTRIBUTING.md", "judge.md"),
        ("scale.svg", "benchmarks/results/scale.md", "scale.svg"),
        ("#data", "docs/architecture.md", "#data"),
        ("https://example.org/a.md", "docs/architecture.md", "https://example.org/a.md"),
    ],
)
def test_links_lead_to_the_places_of_the_site(hooks: ModuleType, link: str, source: str, rewritten: str) -> None:
    """What lies beside docs/ in the project lies beside the pages in the site."""
    assert hooks.rewrite_links(f"[a]({link})", source) == f"[a]({rewritten})"


@pytest.mark.soak
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """No warning (links, anchors, pages without a place), and no script, style or picture of another host."""
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    assert "--no-offload" in pages["reference/cli.html"] and "GraphBuilder" in pages["reference/api.html"]
    for name, page in pages.items():
        assert not re.findall(r"<(?:script|link|img|source|iframe)[^>]+(?:src|href|srcset)=\"(?:https?:)?//", page), (
            name
        )
        assert "```" not in page, name
