"""benchmarks/best_known.py: what is kept still has its value, and only what is better replaces it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from locations import ROOT
from soak import sample

from placewise.catalog import read_cluster
from placewise.core.build import ProblemOptions, build
from placewise.core.place import place
from placewise.model.problem import Problem
from placewise.placers.base import Budget

FOLDER = ROOT / "benchmarks"
sys.path.append(str(FOLDER))
import best_known  # noqa: E402  # a folder of programs is no package
import instances  # noqa: E402

KEPT = sorted(path.relative_to(FOLDER / "best_known").with_suffix("").as_posix()
              for path in (FOLDER / "best_known").rglob("*.npz"))  # fmt: skip


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """A small problem under the name "one", and an empty folder for what is known."""
    monkeypatch.setattr(best_known, "VALUES", tmp_path / "best_known.json")
    monkeypatch.setattr(best_known, "PLACEMENTS", tmp_path / "best_known")
    return build("zoo:random-branchy", read_cluster("2xL4,cpu"), ProblemOptions(dims={"n_ops": 30}))


@pytest.mark.parametrize("name", sample(KEPT, 6))
def test_a_kept_placement_has_its_value(name: str) -> None:
    """The judge gives it the value that is kept, no rule is broken, and the bound is not above it."""
    if not name.startswith("zoo") and instances.workloads() is None:
        pytest.skip("published workloads are not here: set PLACEWISE_WORKLOADS")
    assert list(best_known.check(name, instances.problem(name), best_known.read_known()[name])) == []


def test_only_better_answers_are_kept(small: Problem) -> None:
    """A worse value changes nothing but the minutes; a better one replaces value, placement and command."""
    worse, better = place(small, "random"), place(small, "auto", Budget(1.0))
    assert better.value < worse.value
    for result, command in ((worse, "first"), (better, "second"), (worse, "third")):
        best_known.remember("one", result, command, 1.0)
    row = best_known.read_known()["one"]
    assert (row["value"], row["command"], row["minutes"]) == (better.value, "second", 3.0)
    assert row["bound"] == max(worse.lower_bound, better.lower_bound)
    assert best_known.read_placement("one") == better.placement
    assert list(best_known.check("one", small, row)) == []


def test_a_search_goes_on_where_the_best_placement_was_lost(small: Problem) -> None:
    """The best one since is kept with its own value, and goes when there is a better one."""
    worse, middle, better = place(small, "random"), place(small, "balanced"), place(small, "auto", Budget(1.0))
    assert better.value < middle.value < worse.value
    best_known.VALUES.write_text(json.dumps({"one": {"value": better.value, "bound": 0.0}}))
    for result in (worse, middle, worse):
        best_known.remember("one", result, "again")
    row = best_known.read_known()["one"]
    assert (row["value"], row["kept"]) == (better.value, middle.value)
    assert best_known.read_placement("one") == middle.placement and list(best_known.check("one", small, row)) == []
    best_known.remember("one", better, "again")
    row = best_known.read_known()["one"]
    assert "kept" not in row and best_known.read_placement("one") == better.placement
    assert list(best_known.check("one", small, row)) == []


def test_the_check_finds_wrong_rows(small: Problem) -> None:
    """A value that the placement does not have, and a bound above it, are faults."""
    best_known.remember("one", place(small, "auto", Budget(1.0)), "first")
    known = json.loads(best_known.VALUES.read_text())["one"]
    wrong = {**known, "value": known["value"] / 2, "bound": known["value"]}
    faults = list(best_known.check("one", small, wrong))
    assert len(faults) == 2 and "the kept placement has" in faults[0] and "is above the value" in faults[1]
