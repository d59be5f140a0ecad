"""benchmarks/generalize/hints.py: what is compared, what the table says of it, and a few rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from locations import ROOT

pytest.importorskip("torch")

FOLDER = ROOT / "benchmarks" / "generalize"
sys.path.insert(0, str(FOLDER))
import harness  # noqa: E402  # a folder of programs is no package
import hints  # noqa: E402
import rows  # noqa: E402

FIRST, SECOND, THIRD = hints.WORKLOADS[:3]


def row(workload: str, method: str, seed: int, *curve: tuple[int, float]) -> tuple[str, dict[str, object]]:
    """A row that found these values after so many placements, with its key."""
    steps = [(count, 0.1, value) for count, value in curve]
    found = {"workload": workload, "method": method, "seed": seed, "value": curve[-1][1], "curve": steps}
    return f"{workload}/{method}/{seed}", found


FOUND = dict(
    [
        row(FIRST, "temper", 0, (50, 8.0), (900, 4.0)),
        row(FIRST, "temper", 1, (80, 12.0), (700, 4.0)),
        row(FIRST, "guided temper", 0, (60, 5.0), (1500, 3.0)),
        row(FIRST, "guided temper", 1, (60, 5.0)),
        row(SECOND, "temper", 0, (10, 2.0)),
        row(SECOND, "guided temper", 0, (200, 2.1)),
        row(THIRD, "auto", 0, (1, 7.0)),
        row(THIRD, "guided auto", 0, (1, 7.0)),
    ]
)


def test_what_hints_save_is_one_minus_the_times() -> None:
    """Medians over seeds, in the end and after so many placements; blank where a side had found nothing by then."""
    pair = ("temper", "guided temper")
    assert hints.saved(FOUND, FIRST, *pair) == pytest.approx(0.0)
    assert hints.saved(FOUND, FIRST, *pair, 100) == pytest.approx(1 - 5 / 10)
    assert hints.saved(FOUND, FIRST, *pair, 1000) == pytest.approx(1 - 5 / 4)
    assert hints.saved(FOUND, SECOND, *pair) == pytest.approx(-0.05)
    assert hints.saved(FOUND, SECOND, *pair, 100) is None and hints.saved(FOUND, THIRD, *pair) is None


def test_the_table_says_where_hints_add_nothing_and_where_they_harm() -> None:
    """Ties, losses and gains are named, each search by itself."""
    said = hints.text(FOUND, "the command")
    assert f"`temper` of 2 workloads is better with hints: none; the same: {FIRST}; worse: {SECOND}." in said
    assert f"`auto` of 1 workloads is better with hints: none; the same: {THIRD}; worse: none." in said
    assert "| +50.0% |" in said and "`the command`" in said


def test_both_searches_price_as_many_placements(tmp_path: Path) -> None:
    """What the policy asks for counts: 80 distinct placements each, and the rows are kept."""
    for method in ("temper", "guided temper"):
        told = ["--results", str(tmp_path), "--only", f"transformer-xl-2 2xP100/{method}/0"]
        options = harness.arguments("", evaluations=80).parse_args(told)
        rows.run(hints.table(options), options)
    saved = json.loads((tmp_path / "generalize" / "hints.json").read_text())["rows"]
    assert {name: found["evaluations"] for name, found in saved.items()} == {
        "transformer-xl-2 2xP100/temper/0": 80,
        "transformer-xl-2 2xP100/guided temper/0": 80,
    }
    assert "Not run yet" in (tmp_path / "generalize_hints.md").read_text()
