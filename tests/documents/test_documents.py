"""The documents keep their word: the README's Python runs, links lead somewhere, every placer is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from locations import ROOT

from placewise.exporters import registry as targets
from placewise.model.result import Reason, ViolationKind
from placewise.placers import registry

README = (ROOT / "README.md").read_text()
LIMITS = re.compile(r"""((?:budget|time_limit)=")\d+s""")
"""Of the seconds that pages give to placers, the tests give them a fifth of one: what runs is the same."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", ["README.md", "docs/guides/own-placer.md", "docs/guides/does-not-fit.md"])
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The examples print what a plan is worth; the README's also writes one."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / page).read_text()
    code = LIMITS.sub(r"\g<1>0.2s", "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    if "import torch" in code:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
    assert "compared with" in capsys.readouterr().out and (tmp_path / "plan.json").exists() == (page == "README.md")


def test_rules_and_reasons_are_those_of_the_code() -> None:
    """The tables of broken rules and of reasons to stop have every one, and no other."""
    judge, reading = ((ROOT / "docs" / page).read_text() for page in ("judge.md", "reading.md"))
    rules = re.search(r"\| violation \|.*?\n\n", judge, re.DOTALL)
    reasons = re.search(r"\| reason \|.*?\n\n", reading, re.DOTALL)
    assert rules is not None and reasons is not None
    assert set(re.findall(r"^\| `(.+?)` ", rules[0], re.MULTILINE)) == set(get_args(ViolationKind))
    assert set(re.findall(r"^\| `(.+?)` ", reasons[0], re.MULTILINE)) == set(Reason)


def test_the_makefile_has_the_two_commands_of_the_readme() -> None:
    """`make demo` and `make test`; what else a person may call is for those who change the code, and told to them."""
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None and phony[1].split() == [
        "demo", "test", "audit", "docs", "soak", "fuzz", "build", "stub", "native-check",
    ]  # fmt: skip
    assert "make demo" in README and "make test" in README
    told = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"make {target}" in told for target in phony[1].split()[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links point at files of the project."""
    for target in re.findall(r"\]\(<?([^)#>]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_placer_is_in_the_documents() -> None:
    """A placer that can be asked for is told of, with its own summary and source."""
    changes, page = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "docs/placers.md"))
    for name in registry.known_names():
        info = registry.create(name).info
        assert f"`{name}`" in changes
        assert f"| `{name}` | {info.summary} |" in page and info.source in page


def test_the_readme_marks_every_target_as_it_was_verified() -> None:
    """One row per target, in the words of its exporter; the table of docs/export.md has the same."""
    rows = dict(re.findall(r"^\| `([\w.-]+)` \| .* \| \*(.+?)\*.* \|$", README, re.MULTILINE))
    assert rows == {name: targets.create_exporter(name).info.verified for name in targets.names()}
