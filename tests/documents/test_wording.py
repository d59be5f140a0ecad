"""Pages use the words of the field, and none of those that read as a translation."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from locations import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
INSTEAD = {
    r"(is|are|was|were|be) told(?! apart)": "is reported, is shown, is known",
    r"(is|are) said(?= (of|by|in|to)\b)": "is described, is assumed",
    r"told apart": "distinguished, modelled",
    r"cannot say": "cannot express",
    r"passed over": "ignored, skipped",
    r"(dearest|dearer)": "most expensive",
    r"for ever": "without end",
    r"whoever": "who, or a noun",
    r"in the place of": "instead of",
    r"what people run into": "common problems",
    r"stands? beside": "is compared with, is next to",
    r"goes round": "runs until",
    r"in your own words": "as a mapping, in a file",
}
"""What reads as a translation, and what to write."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_read_as_english(page: Path) -> None:
    """Outside of code, none of these phrases."""
    prose = re.sub(r"```.*?```|`[^`\n]*`|^    .*$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    flat = re.sub(r"\s+", " ", prose)
    found = {
        match[0]: better for phrase, better in INSTEAD.items() if (match := re.search(rf"\b{phrase}\b", flat, re.I))
    }
    assert not found, f"write instead: {found}"


def test_no_class_name_stands_for_two_things() -> None:
    """Neither in the package nor in the kernels, whose classes share one namespace."""
    in_python = [
        node.name
        for path in sorted((ROOT / "placewise").rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    in_kernels = [
        name
        for path in sorted((ROOT / "native").rglob("*.hpp"))
        for name in re.findall(r"^(?:class|struct) (\w+)[^;]*$", path.read_text(), re.MULTILINE)
    ]
    for names in (in_python, in_kernels):
        assert len(names) > 50 and [name for name, count in Counter(names).items() if count > 1] == []
