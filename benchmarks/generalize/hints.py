"""What a policy's opinion is worth to a search: `python benchmarks/generalize/hints.py` (options: rows.py).

The problems of gdp.py. `temper` with and without what `gdp` says of a problem that it never saw, with the weights of
the package where such come with it: both may price as many distinct placements, and what the policy asks for counts.
What it says comes in two parts, its best placements and its probabilities, and each is told alone as well. The
control is `temper` that is shown what METIS and the expert make, which `gdp` is shown too. `auto` has seconds, and
asking comes out of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
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
from methods import weights_of
from problems import WORKLOADS, problem

from placewise.model.problem import Problem
from placewise.placers import registry
from placewise.placers.base import Hints, run_placer

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


@dataclass(frozen=True)
class Guided(Method):
    """`weights`: a digest of those of the policy that is asked, so that rows of another policy are run again."""

    weights: str = ""


@dataclass(frozen=True)
class Shown(Method):
    """A search that begins with what other placers make, which it has to price as well."""

    makers: tuple[str, ...] = ()

    def starts(self, problem: Problem) -> Hints:
        proposals = (run_placer(registry.create(maker), problem) for maker in self.makers)
        return Hints(tuple(found.placement for found in proposals if found.placement is not None))


def guided(name: str, kind: Any, weights: str, options: Mapping[str, Any], **budget: Any) -> Guided:
    """A row whose search is told what the policy thinks."""
    return Guided(name, kind, "guided", options=options, weights=weights, **budget)


def table(options: argparse.Namespace) -> Table:
    """Both searches of every problem, seed by seed; then the parts of what is told, and `auto`."""
    policy: Any = registry.create("gdp", {"updates": 0})
    weights = "" if policy.trained is None else weights_of(policy.trained)
    priced: dict[str, Any] = {"evaluations": options.evaluations, "seconds": SECONDS}
    searches = [Method(ALONE, "search", "temper", **priced)]
    searches += [Shown(CONTROL, "search", "temper", makers=MAKERS, **priced)]
    searches += [
        guided(name, "search", weights, {"search": "temper", "told": told}, **priced) for name, told in TOLD.items()
    ]
    autos = [Method(AUTO, "placer", "auto", seconds=AUTO_SECONDS)]
    autos += [guided(GUIDED_AUTO, "placer", weights, {"search": "auto"}, seconds=AUTO_SECONDS)]
    rows = [Row("hints", name, one, seed) for seed in range(SEEDS) for name in WORKLOADS for one in searches[:3]]
    rows += [Row("hints", name, one) for name in WORKLOADS for one in autos]
    rows += [Row("hints", name, one, seed) for seed in range(SEEDS) for name in WORKLOADS for one in searches[3:]]
    told = partial(text, trained=bool(weights))
    return Table("hints", "what hints are worth to searches", tuple(rows), told, folder=FOLDER)


def text(found: Found, command: str, *, trained: bool = True) -> str:
    """Milliseconds in the end, then on the way, and where hints add nothing."""
    who = (
        "with the weights of the package" if trained else "before it learned anything: no weights come with the package"
    )
    columns = (ALONE, CONTROL, *TOLD, AUTO, GUIDED_AUTO)
    lines = [
        "# What a policy's opinion is worth to a search",
        "",
        f"`{command}`; milliseconds of one training step, medians over seeds (smallest–largest).",
        "",
        f"The policy is `gdp` {who}.",
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
