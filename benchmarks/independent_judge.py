"""Tiny problems against a judge that was written apart: differences in value, wrong bounds, wrong proofs.

    python benchmarks/independent_judge.py [--problems 10000] [--nasty 2000] [--seed 0]

Every problem has whole seconds with many ties, and an optimum that brute force over the judge of
tests/helpers/independent_judge.py finds (every placement with every order, calls or replicas; problems with more than
`MOST` of them are drawn again). Four random placements of each are judged twice, and placers are asked in turn: one per
problem, and `auto` for every fourth. Writes benchmarks/results/independent_judge.json and .md. Exits with 1 if anything
differs, or if `auto` misses an optimum.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "helpers")]

from independent_optimum import independent_optimum  # noqa: E402
from judged_apart import differences, faults_of, random_placements  # noqa: E402
from tiny_problems import Draw, tiny_problem  # noqa: E402

from placewise.model.result import Outcome, Result  # noqa: E402

RESULTS = HERE / "results" / "independent_judge.json"
MOST = 500
PLACERS = (
    "exhaustive", "heft", "dp", "etf", "cpsat", "topo", "greedy", "min_cut", "pack", "cover", "critical_path", "dpl",
    "single", "balanced", "pipedream", "in_order", "local", "windows", "sct", "random", "two_way", "multilevel",
)  # fmt: skip
SLOW = {"cover", "cpsat", "local", "windows", "multilevel"}
LIMIT, SLOW_LIMIT = 5.0, 0.3
"""Seconds for a placer, and for one that would use them all."""


@dataclass(slots=True)
class Tally:
    """What was counted over the problems of one kind."""

    problems: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    optimal: Counter[str] = field(default_factory=Counter)
    proved: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    judged: int = 0
    infeasible: int = 0
    drawn: int = 0


def main() -> int:
    """Count, save, print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--nasty", type=int, default=2_000, help="problems with rules, scarce memory and odd shapes")
    parser.add_argument("--seed", type=int, default=0, help="of the first problem")
    arguments = parser.parse_args()
    tables = {
        "plain": count(arguments.problems, arguments.seed, nasty=False),
        "nasty": count(arguments.nasty, arguments.seed, nasty=True),
    }
    command = f"python benchmarks/independent_judge.py --problems {arguments.problems} --nasty {arguments.nasty}"
    rows = {name: {key: getattr(tally, key) for key in Tally.__slots__} for name, tally in tables.items()}
    RESULTS.write_text(json.dumps({"command": f"{command} --seed {arguments.seed}", **rows}, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(report(f"{command} --seed {arguments.seed}", tables))
    missed = sum(tally.answers["auto"] - tally.optimal["auto"] for tally in tables.values())
    faults = [fault for tally in tables.values() for fault in tally.faults]
    print(*faults, f"{len(faults)} faults, auto misses {missed} optima", sep="\n")
    return bool(faults or missed)


def count(problems: int, seed: int, *, nasty: bool) -> Tally:
    """Compare that many problems, the seeds from `seed` on."""
    tally = Tally()
    while sum(tally.problems.values()) < problems:
        number = seed + tally.drawn
        tally.drawn += 1
        problem = tiny_problem(number, nasty=nasty)
        best = independent_optimum(problem, MOST)
        if best is None:
            continue
        done = sum(tally.problems.values())
        tally.problems[str(problem.objective)] += 1
        tally.infeasible += not math.isfinite(best)
        for placement in random_placements(problem, Draw(number), 4):
            tally.judged += 1
            tally.faults += [f"seed {number}: {text}" for text in differences(problem, placement)]
        for placer in (PLACERS[done % len(PLACERS)], *(["auto"] if done % 4 == 0 else [])):
            faults, result = faults_of(problem, placer, best, SLOW_LIMIT if placer in SLOW else LIMIT)
            tally.faults += [f"seed {number}, {placer}: {text}" for text in faults]
            if result is not None:
                add_answer(tally, placer, result, best)
    return tally


def add_answer(tally: Tally, placer: str, result: Result, best: float) -> None:
    """Count an answer, whether it is as good as the optimum, and whether it says so."""
    tally.answers[placer] += 1
    proved = result.status.outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE)
    tally.proved[placer] += proved
    tally.optimal[placer] += result.value <= best * (1 + 1e-9) and (math.isfinite(best) or proved)


def report(command: str, tables: dict[str, Tally]) -> str:
    """The counts as Markdown."""
    lines = ["# Two judges", "", f"`{command}`", ""]
    for name, tally in tables.items():
        total = sum(tally.problems.values())
        lines += [
            f"## {total:,} {name} problems",
            "",
            f"{tally.judged:,} random placements were judged twice; "
            f"{tally.infeasible:,} problems have no valid placement. "
            f"Differences, bounds above the optimum and false proofs: **{len(tally.faults)}**.",
            "",
            "| objective | problems |",
            "|---|--:|",
            *(f"| {kind} | {number:,} |" for kind, number in sorted(tally.problems.items())),
            "",
            "| placer | asked | optimum found | proved |",
            "|---|--:|--:|--:|",
            *(
                f"| `{placer}` | {asked:,} | {tally.optimal[placer]:,} | {tally.proved[placer]:,} |"
                for placer, asked in sorted(tally.answers.items())
            ),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
