"""What the tables share: rows of a workload and method, medians with their spread, and how fast a method came near."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Found = Mapping[str, Mapping[str, Any]]
MOVED = 5e-4
"""Spreads smaller than this share are not told."""


def rows_of(found: Found, workload: str | None = None, method: str | None = None) -> list[Mapping[str, Any]]:
    """The rows of a workload, of a method, or of both."""
    return [
        row
        for row in found.values()
        if (workload is None or row["workload"] == workload) and (method is None or row["method"] == method)
    ]


def values(found: Found, workload: str, method: str) -> list[float]:
    """The values of all seeds that found something."""
    return [row["value"] for row in rows_of(found, workload, method) if row["value"] is not None]


def best_known(found: Found, workload: str) -> float:
    """The best value that any row of the workload reached; inf without any."""
    return min((row["value"] for row in rows_of(found, workload) if row["value"] is not None), default=float("inf"))


def bound(found: Found, workload: str) -> float:
    """The largest lower bound that any row proved."""
    return max((row["bound"] for row in rows_of(found, workload) if row.get("bound") is not None), default=0.0)


def milliseconds(found: Found, workload: str, method: str, digits: int = 3) -> str:
    """The median over seeds, and behind it the smallest and largest where they differ."""
    seen = values(found, workload, method)
    if not seen:
        rows = rows_of(found, workload, method)
        return rows[0]["status"] if rows else ""
    middle, least, most = (value * 1e3 for value in (statistics.median(seen), min(seen), max(seen)))
    if most - least <= MOVED * middle:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"


def evaluations_to(row: Mapping[str, Any], close: float = 0.05) -> int | None:
    """After how many distinct placements a row was within 5 % of where it ended."""
    curve = row.get("curve") or []
    return next((count for count, _, value in curve if value <= curve[-1][2] * (1 + close)), None)


def effort(found: Found, methods: Sequence[str]) -> list[str]:
    """A table of what the methods cost: evaluations to come near, those made, seconds, and who chose the answer."""
    columns = ("rows", "evaluations to 5 %", "evaluations", "seconds", "better than one device", "own choice")
    head = f"| method | {' | '.join(columns)} |"
    lines = [head, "|---|" + "--:|" * 6]
    for method in methods:
        rows = [row for row in rows_of(found, method=method) if row["value"] is not None]
        if not rows:
            continue
        reached = [steps for row in rows if (steps := evaluations_to(row)) is not None]
        priced = [row["evaluations"] for row in rows if "evaluations" in row]
        cells = [method, str(len(rows)), *(_median(column) for column in (reached, priced))]
        cells += [f"{statistics.median(row['seconds'] for row in rows):.1f}", *_gained(rows)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


EFFORT = (
    "Medians over rows. *Evaluations to 5 %*: distinct placements priced until a row is within 5 % of its end. *Better "
    "than one device*: rows that end at least 0.1 % below the best single device, which every policy is shown first. "
    "*Own choice*: how far the placement that the trained policy itself thinks best is above the best that it saw."
)


def _gained(rows: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    learned = [row for row in rows if row.get("begun")]
    if not learned:
        return "", ""
    better = sum(row["value"] < row["begun"] * 0.999 for row in learned)
    chosen = [row["greedy"] / row["value"] - 1 for row in learned if row.get("greedy")]
    return f"{better} of {len(learned)}", f"+{statistics.median(chosen):.1%}" if chosen else "none valid"


def _median(column: Sequence[float]) -> str:
    return f"{statistics.median(column):.0f}" if column else ""
