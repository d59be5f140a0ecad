"""What `gdp` places before it has learned anything, beside what list schedulers and searches find.

`python benchmarks/generalize/untrained.py > benchmarks/results/generalize_untrained.md` (three minutes). Six random
graphs of the zoo, the ones that the prior was chosen on: seconds over the best placement that `temper` finds in 20
seconds. Without learning, `gdp` prices some hundred placements; with one set of leanings and no second look, two per
device at most, and METIS's parts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from pinned_devices import read_pinned

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.problem import Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.registry import create
from placewise.simulate import evaluate

GRAPHS = (
    ("layered", 100, 900, "2xP100,cpu", "training"),
    ("series-parallel", 300, 901, "4xP100,cpu", "training"),
    ("branchy", 200, 902, "2xP100,cpu", "inference"),
    ("erdos-renyi", 100, 903, "4xP100,cpu", "training"),
    ("layered", 300, 904, "8xP100,cpu", "training"),
    ("branchy", 150, 905, "4xP100,cpu", "training"),
)
COMMAND = "python benchmarks/generalize/untrained.py > benchmarks/results/generalize_untrained.md"
NOTHING = {"updates": 0}
METHODS: dict[str, tuple[str, Mapping[str, Any], Budget]] = {
    "gdp, untrained": ("gdp", NOTHING, Budget()),
    "… one set of leanings": ("gdp", {**NOTHING, "leanings": 1}, Budget()),
    "… and no second look": ("gdp", {**NOTHING, "leanings": 1, "looks": 0}, Budget()),
    "… without advice": ("gdp", {**NOTHING, "advice": False}, Budget()),
    "… one round": ("gdp", {**NOTHING, "rounds": 1}, Budget()),
    "… no prior": ("gdp", {**NOTHING, "prior": 0.0}, Budget()),
    **{name: (name, {}, Budget()) for name in ("single", "expert", "topo", "heft", "etf", "critical_path", "metis")},
    "temper, 2,000 placements": ("temper", {}, Budget(evaluations=2000)),
}


def problem_of(family: str, n_ops: int, seed: int, devices: str, graph: str) -> Problem:
    """A random graph of the zoo on devices of the catalogue."""
    dims = {"n_ops": n_ops, "seed": seed, "size": 64}
    optimizer = "sgd" if graph == "training" else None
    return build(
        f"zoo:random-{family}", read_pinned(devices), ProblemOptions(graph=graph, dims=dims, optimizer=optimizer)
    )


def seconds(problem: Problem, name: str, options: Mapping[str, Any], budget: Budget) -> float:
    """What a placer's placement takes, by the judge; NaN where it has none."""
    found = run_placer(create(name, options), problem, budget).placement
    return float("nan") if found is None else float(evaluate(problem, found.device)[0])


def main() -> None:
    """Print the table."""
    problems = [problem_of(*graph) for graph in GRAPHS]
    best = [seconds(problem, "temper", {}, Budget(seconds=20)) for problem in problems]
    print(f"# What gdp is before it learns\n\n`{COMMAND}`: per cent above the best of `temper` in 20 seconds.\n")
    heads = [f"{family} {n_ops}, {devices}, {graph}" for family, n_ops, _, devices, graph in GRAPHS]
    print(f"| method | {' | '.join(heads)} | mean |\n|---|{'---:|' * (len(heads) + 1)}")
    for method, (name, options, budget) in METHODS.items():
        above = [
            seconds(problem, name, options, budget) / least - 1 for problem, least in zip(problems, best, strict=True)
        ]
        print(
            f"| {method} | {' | '.join(f'{100 * x:.0f} %' for x in above)} | {100 * np.mean(above):.0f} % |", flush=True
        )


if __name__ == "__main__":
    main()
