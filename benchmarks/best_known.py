"""The best value known of every problem of instances.py, its placement, the best bound, and how they were found.

    PLACEWISE_WORKLOADS=... python benchmarks/best_known.py [--minutes 30] [--only NAME]
    PLACEWISE_WORKLOADS=... python benchmarks/best_known.py --check [--only NAME]

Every search takes turns on a problem, each turn with another seed and from the best placement so far, until the problem
has had `--minutes` in all its runs together, or is proved optimal; a run that was stopped goes on where it was. Values
and bounds only improve. Writes best_known.json (value, bound, who found it, by which command, when, minutes spent) and
best_known/PROBLEM.npz (the placement; where that of the best value was lost, the best one since, of the value `kept`).
`--check` judges every kept placement, prints what has none, and exits with 1 if a placement breaks a rule or has a
different value, or if a bound is above a value.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from instances import problem, rows

from placewise.core.place import place
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Result, gap_of
from placewise.placers import registry
from placewise.placers.base import Budget, Hints
from placewise.simulate import judge_placement

HERE = Path(__file__).parent
VALUES, PLACEMENTS = HERE / "best_known.json", HERE / "best_known"
SEARCHES = ("auto", "windows", "local", "cover", "multilevel", "dp")
"""Who takes turns where it can take the problem."""
TURN = 60.0
"""Seconds of a turn."""
COLUMNS = ("device", "call", "order", "replicas")
SAME = 1e-9

Known = dict[str, dict[str, Any]]


def read_known() -> Known:
    """All rows by the names of their problems."""
    found: Known = json.loads(VALUES.read_text()) if VALUES.exists() else {}
    return found


def read_placement(name: str) -> Placement | None:
    """The kept placement of a problem."""
    path = _path_of(name)
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as columns:
        return Placement(**{column: columns[column] for column in columns.files})


def remember(name: str, result: Result, command: str, minutes: float = 0.0) -> None:
    """Keep what is better than all before it: value and placement, and the bound; add the minutes that were spent."""
    known = read_known()
    row = known.setdefault(name, {"value": math.inf})
    row["bound"] = max(result.lower_bound, row.get("bound", 0.0))
    row["minutes"] = round(row.get("minutes", 0.0) + minutes, 2)
    better = result.placement is not None and result.value < row["value"] * (1 - SAME)
    if better:
        row |= {"value": result.value, "placer": result.placer, "command": command, "date": str(datetime.date.today())}
    found, path = result.placement, _path_of(name)
    kept = row.get("kept", row["value"]) if path.exists() else math.inf
    if found is not None and (better or result.value < kept * (1 - SAME)):
        row.pop("kept", None)
        row |= {} if _equal(result.value, row["value"]) else {"kept": result.value}
        columns = {column: getattr(found, column) for column in COLUMNS}
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **{column: array for column, array in columns.items() if array is not None})
    if row["value"] < math.inf:
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(known[key])}" for key in sorted(known))
        VALUES.write_text(f"{{\n{lines}\n}}\n")


def search(name: str, minutes: float) -> None:
    """Let all searches take turns on a problem until it has had its minutes or is proved optimal."""
    posed = problem(name)
    searches = [who for who in SEARCHES if registry.create(who).supports(posed) is None]
    command = f"python benchmarks/best_known.py --minutes {minutes:g} --only {name}"
    turn = 0
    while (row := read_known().get(name, {})).get("minutes", 0.0) < minutes and not _is_proved(row):
        kept, who = read_placement(name), searches[turn % len(searches)]
        begun = time.monotonic()
        seconds = min(TURN, (minutes - row.get("minutes", 0.0)) * 60)
        hints = Hints((kept,) if kept is not None else ())
        result = place(posed, who, Budget(seconds, seed=turn // len(searches)), hints=hints)
        remember(name, result, command, max((time.monotonic() - begun) / 60, 0.01))
        print(f"{name} {who}: {result.value:.9g}, bound {result.lower_bound:.9g}", flush=True)
        turn += 1


def check(name: str, posed: Problem, row: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a kept row."""
    placement = read_placement(name)
    if placement is not None:
        judged = judge_placement(posed, placement)
        if judged.violations:
            yield f"{name}: {judged.violations[0].message}"
        expected = row.get("kept", row["value"])
        if not _equal(judged.value, expected):
            yield f"{name}: the kept placement has {judged.value:.9g} s, not {expected:.9g} s"
    if row.get("bound", 0.0) > row["value"] * (1 + SAME):
        yield f"{name}: the bound {row['bound']:.9g} s is above the value {row['value']:.9g} s"


def main() -> int:
    """Search or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only problems whose name contains this")
    parser.add_argument("--minutes", type=float, default=30.0, help="for each problem, in all runs together")
    parser.add_argument("--check", action="store_true", help="judge the kept placements")
    options = parser.parse_args()
    if not options.check:
        for name in rows(options.only):
            search(name, options.minutes)
        return 0
    known, faults = read_known(), []
    for name in (name for name in rows(options.only) if name in known):
        faults += check(name, problem(name), known[name])
        if read_placement(name) is None:
            print(f"{name}: no placement is kept")
    print("\n".join(faults) or "every kept placement has its value")
    return int(bool(faults))


def _path_of(name: str) -> Path:
    return PLACEMENTS / f"{name}.npz"


def _is_proved(row: dict[str, Any]) -> bool:
    return gap_of(row.get("value", math.inf), row.get("bound", 0.0)) <= OPTIMAL_GAP


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SAME)


if __name__ == "__main__":
    sys.exit(main())
