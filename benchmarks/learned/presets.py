"""What learning is worth, and the papers' own way: `python benchmarks/learned/presets.py` (options: rows.py).

Every policy three times: with its defaults (a search that a network guides), the same at a learning rate of zero, and
with `preset=paper`, the paper's method
(docs/learning.md lists what still differs). The budget is the number of distinct placements; a row also
ends after 150 updates or 60 seconds, and the table counts those that did. `temper`, METIS (five seeds, and the best of
them) and the best single device stand beside. Defaults, their controls and `temper` are shown the same starts: the
single devices and the best of METIS. The papers' policies are shown nothing, and only what they drew counts. Behind
every row of a default, `temper` runs for as many seconds as that row took.

Learning is claimed where the median is at least 3 % below that of rate zero.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import hsdag
import small
from methods import Method, judged
from rows import SEEDS, Row, Table, arguments, main_of
from tables import Found, best_known, milliseconds, rows_of, values

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers import registry
from placewise.placers.base import Budget, Hints, run_placer
from placewise.placers.learned.pricing import single_device_rows

POLICIES = ("hsdag", "colocrl", "hdp", "placeto", "gdp")
WORKLOADS = ("layered-900 operator", "resnet50 folded operator", "branchy-901 operator")
DEFAULT, ZERO, PAPER = "default", "default, rate 0", "paper"
PRESETS: dict[str, dict[str, Any]] = {DEFAULT: {}, ZERO: {"rate": 0.0}, PAPER: {"preset": "paper"}}
PARTITIONS, WORTH = 5, 0.03
EVALUATIONS, UPDATES, SECONDS = 200, 60, 30.0


def problem(workload: str) -> Problem:
    """The problem of a name of small.py or hsdag.py."""
    return small.problem(workload) if workload in small.WORKLOADS else hsdag.problem(workload)


def partitions(problem: Problem) -> list[Placement]:
    """METIS with as many seeds; those that found one."""
    found = [run_placer(registry.create("metis"), problem, Budget(seed=seed)) for seed in range(PARTITIONS)]
    return [proposal.placement for proposal in found if proposal.placement is not None]


def known_values(problem: Problem, placements: list[Placement]) -> list[float]:
    """What the judge says of placements that keep the rules, the least first."""
    return sorted(value for placement in placements if (value := judged(problem, placement)) is not None)


@dataclass(frozen=True)
class Shown(Method):
    """A method that begins with the single devices and the best partition of METIS."""

    def starts(self, problem: Problem) -> Hints:
        single = [Placement(row) for row in single_device_rows(problem)]
        made = [placement for placement in partitions(problem) if judged(problem, placement) is not None]
        best = sorted(made, key=lambda placement: judged(problem, placement) or 0.0)[:1]
        return Hints((*single, *best))


@dataclass(frozen=True)
class Paired(Shown):
    """After it, `temper` runs for as many seconds from the same starts."""

    def run(self, problem: Problem, seed: int) -> dict[str, Any]:
        found = super().run(problem, seed)
        budget = Budget(found["seconds"], seed=seed)
        proposal = run_placer(registry.create("temper"), problem, budget, hints=self.starts(problem))
        return found | {"temper": judged(problem, proposal.placement)}


@dataclass(frozen=True)
class Partitions(Method):
    """METIS with five seeds: the best of them, and all."""

    def run(self, problem: Problem, seed: int) -> dict[str, Any]:
        every = known_values(problem, partitions(problem))
        return {"value": min(every, default=None), "every": every, "seconds": 0.0, "status": "five seeds"}


@dataclass(frozen=True)
class Single(Method):
    """The best device that holds everything."""

    def run(self, problem: Problem, seed: int) -> dict[str, Any]:
        every = known_values(problem, [Placement(row) for row in single_device_rows(problem)])
        return {"value": min(every, default=None), "seconds": 0.0, "status": "one device"}


def table(options: argparse.Namespace) -> Table:
    """Problem by problem: baselines, then every policy, seed by seed."""
    count = options.evaluations
    rows = [
        Row("presets", name, method, seed)
        for name in WORKLOADS
        for seed in range(SEEDS)
        for method in (*_baselines(count, seed), *(_method(p, preset, count) for p in POLICIES for preset in PRESETS))
    ]
    return Table("presets", "defaults, rate zero and the papers", tuple(rows), text)


def _baselines(count: int, seed: int) -> list[Method]:
    search = Shown("temper", "search", "temper", evaluations=count)
    return [search] if seed else [Single("one device", "alone"), Partitions("METIS", "placer", "metis"), search]


def _method(policy: str, preset: str, count: int) -> Method:
    kind = {DEFAULT: Paired, ZERO: Shown, PAPER: Method}[preset]
    options = {**PRESETS[preset], "updates": UPDATES}
    return kind(f"{policy}, {preset}", "policy", policy, options=options, evaluations=count, seconds=SECONDS)


def text(found: Found, command: str) -> str:
    """The tables: what the problems are known for, then a table per problem, then what learning is worth."""
    lines = [
        "# Defaults, the same without learning, and the papers",
        "",
        f"`{command}`; milliseconds, medians over seeds (smallest–largest). *Worth*: how much less time the default "
        "has than at a learning rate of zero, by the medians; learning is claimed from 3 % on. *paper*: the best "
        "placement that `preset=paper` drew. *temper, equal seconds* runs behind each default row for as long as that "
        "took, on a machine that others use too; the budget of all others is the number of distinct placements.",
        "",
        "| problem | one device | METIS, best of five | all five | temper | best known |",
        "|---|--:|--:|---|--:|--:|",
    ]
    for name in WORKLOADS:
        if metis := rows_of(found, name, "METIS"):
            every = ", ".join(f"{value * 1e3:.3f}" for value in metis[0]["every"])
            cells = [milliseconds(found, name, method) for method in ("one device", "METIS")]
            best = min(best_known(found, name), *(row.get("temper") or float("inf") for row in rows_of(found, name)))
            lines.append(
                f"| {name} | {' | '.join(cells)} | {every} | {milliseconds(found, name, 'temper')} | {best * 1e3:.3f} |"
            )
    for name in WORKLOADS:
        lines += ["", f"## {name}", "", "| policy | default | default, rate 0 | worth | temper, equal seconds | paper "
                  "| paper's placements, updates, ended by the clock |", "|---|--:|--:|--:|--:|--:|---|"]  # fmt: skip
        lines += [_line(found, name, policy) for policy in POLICIES]
    pairs = [(policy, name) for name in WORKLOADS for policy in POLICIES]
    claims = [f"{policy} on {name}" for policy, name in pairs if _worth(found, name, policy) >= WORTH]
    lines += ["", f"Learning is worth 3 % or more in {len(claims)} of {len(pairs)} cells"
              f"{': ' + ', '.join(claims) if claims else ''}."]  # fmt: skip
    return "\n".join(lines)


def _worth(found: Found, name: str, policy: str) -> float:
    """The share of time that learning saves; 0 where a row is missing."""
    with_, without = (values(found, name, f"{policy}, {preset}") for preset in (DEFAULT, ZERO))
    return 1 - statistics.median(with_) / statistics.median(without) if with_ and without else 0.0


def _line(found: Found, name: str, policy: str) -> str:
    cells = [milliseconds(found, name, f"{policy}, {preset}") for preset in (DEFAULT, ZERO)]
    searched = [row["temper"] for row in rows_of(found, name, f"{policy}, {DEFAULT}") if row.get("temper")]
    papers = rows_of(found, name, f"{policy}, {PAPER}")
    drawn = [row["drawn"] for row in papers if row.get("drawn")]
    counts = [f"{statistics.median(row[key] for row in papers):.0f}" for key in ("evaluations", "updates") if papers]
    late = sum(row["status"] == "out of time" for row in papers)
    cells += [f"{_worth(found, name, policy):+.1%}", _spread(searched), _spread(drawn)]
    return f"| {policy} | {' | '.join(cells)} | {', '.join(counts)}, {late} of {len(papers)} |"


def _spread(seen: list[float]) -> str:
    rows = {str(k): {"workload": "", "method": "", "value": value, "status": ""} for k, value in enumerate(seen)}
    return milliseconds(rows, "", "")


if __name__ == "__main__":
    sys.exit(main_of(table, arguments(__doc__ or "", evaluations=EVALUATIONS)))
