"""What a policy's opinion is worth to a search: `python benchmarks/generalize/hints.py` (options: rows.py).

The problems of gdp.py. `temper` with and without what an untrained `gdp` says of a problem: both may price as many
distinct placements, and what the policy asks for counts. What it says comes in two parts, its best placements and its
probabilities, and each is told alone as well. The control is `temper` that is shown what METIS and the expert make.
`auto` has seconds, and asking comes out of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from harness import (
    EVALUATIONS,
    FOLDER,
    SECONDS,
    SEEDS,
    Found,
    Method,
    Row,
    Table,
    arguments,
    main_of,
    milliseconds,
    rows_of,
    values,
)
from problems import WORKLOADS, problem
from trained import Shown

__all__ = ["problem"]

AUTO_SECONDS = 60.0
MOMENTS = (100, 300, 1000)
"""So many distinct placements after which the searches are compared, besides the end."""
ALONE, BOTH, CONTROL = "temper", "guided temper", "temper shown METIS and expert"
MAKERS = ("metis", "expert")
TOLD = {BOTH: "both", "placements only": "placements", "probabilities only": "probabilities"}
AUTO, GUIDED_AUTO = "auto", "guided auto"
PAIRS = ((ALONE, BOTH), (CONTROL, BOTH), (AUTO, GUIDED_AUTO))
"""Who is told nothing of the policy, and who is."""
TIE = 1e-3
"""Medians that differ by less are a draw."""


def table(options: argparse.Namespace) -> Table:
    """Both searches of every problem, seed by seed; then the parts of what is told, and `auto`."""
    priced: dict[str, Any] = {"evaluations": options.evaluations, "seconds": SECONDS}
    searches = [Method(ALONE, "search", "temper", **priced)]
    searches += [Shown(CONTROL, "search", "temper", makers=MAKERS, **priced)]
    searches += [
        Method(name, "search", "guided", options={"search": "temper", "hints": told}, **priced)
        for name, told in TOLD.items()
    ]
    autos = [Method(AUTO, "placer", "auto", seconds=AUTO_SECONDS)]
    autos += [Method(GUIDED_AUTO, "placer", "guided", options={"search": "auto"}, seconds=AUTO_SECONDS)]
    rows = [Row("hints", name, one, seed) for seed in range(SEEDS) for name in WORKLOADS for one in searches[:3]]
    rows += [Row("hints", name, one) for name in WORKLOADS for one in autos]
    rows += [Row("hints", name, one, seed) for seed in range(SEEDS) for name in WORKLOADS for one in searches[3:]]
    return Table("hints", "what hints are worth to searches", tuple(rows), text, folder=FOLDER)


def text(found: Found, command: str) -> str:
    """Milliseconds in the end, then on the way, and where hints add nothing."""
    columns = (ALONE, CONTROL, *TOLD, AUTO, GUIDED_AUTO)
    lines = [
        "# What a policy's opinion is worth to a search",
        "",
        f"`{command}`; milliseconds of one training step, medians over seeds (smallest–largest).",
        "",
        "The policy is `gdp` before it learned anything.",
        "",
        f"| workload | {' | '.join(columns)} | hints save | over the control | in `auto` |",
        "|---|" + "--:|" * (len(columns) + 3),
    ]
    for name in WORKLOADS:
        if rows_of(found, name):
            cells = [milliseconds(found, name, column, 2) for column in columns]
            gains = [_percent(saved(found, name, *pair)) for pair in PAIRS]
            lines.append(f"| {name} | {' | '.join([*cells, *gains])} |")
    lines += [_mean_line(found, len(columns)), "", *_on_the_way(found), "", *_verdicts(found)]
    return "\n".join(lines)


def _mean_line(found: Found, columns: int) -> str:
    """The means of what is saved, over the workloads that have both sides."""
    shares = [[share for name in WORKLOADS if (share := saved(found, name, *pair)) is not None] for pair in PAIRS]
    cells = [_percent(statistics.mean(own)) if own else "" for own in shares]
    return f"| mean | {' | '.join(['' for _ in range(columns)] + cells)} |"


def _on_the_way(found: Found) -> list[str]:
    """What hints save after fewer placements."""
    heads = [f"after {count}" for count in (*MOMENTS, "all")]
    lines = [
        f"Saved by hints, 1 − time of `{BOTH}` / time of `{ALONE}`, after so many distinct placements (medians).",
        "",
        f"| workload | {' | '.join(heads)} |",
        "|---|" + "--:|" * len(heads),
    ]
    every: list[list[float]] = [[] for _ in heads]
    for name in WORKLOADS:
        shares = [saved(found, name, ALONE, BOTH, count) for count in (*MOMENTS, None)]
        if any(share is not None for share in shares):
            lines.append(f"| {name} | {' | '.join(map(_percent, shares))} |")
            for column, share in zip(every, shares, strict=True):
                column += [] if share is None else [share]
    means = [_percent(statistics.mean(column)) if column else "" for column in every]
    return [*lines, f"| mean | {' | '.join(means)} |"]


def _verdicts(found: Found) -> Iterator[str]:
    """Where hints help, where they change nothing, and where they do harm."""
    names = ("`temper`", "`temper` that is shown METIS and the expert", "`auto`")
    for told, (alone, guided_) in zip(names, PAIRS, strict=True):
        shares = {name: share for name in WORKLOADS if (share := saved(found, name, alone, guided_)) is not None}
        sorts = {
            "better with hints": [name for name, share in shares.items() if share > TIE],
            "the same": [name for name, share in shares.items() if abs(share) <= TIE],
            "worse": [name for name, share in shares.items() if share < -TIE],
        }
        if shares:
            words = "; ".join(f"{sort}: {', '.join(names) or 'none'}" for sort, names in sorts.items())
            yield f"In the end, {told} of {len(shares)} workloads is {words}."
            yield ""


def saved(found: Found, workload: str, alone: str, told: str, count: int | None = None) -> float | None:
    """1 − time / time of medians over the seeds, in the end or after `count` placements; None where a side has none."""
    sides = [_after(found, workload, method, count) for method in (alone, told)]
    if not all(sides):
        return None
    return 1 - statistics.median(sides[1]) / statistics.median(sides[0])


def _after(found: Found, workload: str, method: str, count: int | None) -> list[float]:
    """What every seed had found after so many placements."""
    if count is None:
        return values(found, workload, method)
    curves = [row.get("curve") or [] for row in rows_of(found, workload, method)]
    reached = [[value for priced, _, value in curve if priced <= count] for curve in curves]
    return [seen[-1] for seen in reached if seen]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"


if __name__ == "__main__":
    sys.exit(main_of(table, arguments(__doc__ or "", evaluations=EVALUATIONS)))
