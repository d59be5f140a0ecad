"""What defaults of HSDAG and ColocRL were chosen on: `python benchmarks/learned/hsdag_tuning.py [--variant NAME]`.

Random graphs of the zoo, which are in no table, on the processor and graphics card of one of HSDAG's clusters, whose
total times are put at a ratio of 1.07 to 2. Prints, per variant and graph, how far the best of 2,000 placements is
above the optimum (`sequential`) or above what `temper` finds in twice eight seconds (`operator`), and what the trained
policy chooses itself.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.model.problem import Problem
from placewise.placers.base import Budget
from placewise.placers.registry import create

CLUSTER = Path(__file__).parent / "clusters" / "inception_v3-folded.toml"
EVALUATIONS, MIN_UPDATES = 2000, 500
GRAPHS: tuple[tuple[str, int, int, str, float], ...] = (
    ("branchy", 200, 900, "sequential", 1.07),
    ("series-parallel", 300, 901, "operator", 1.07),
    ("layered", 240, 902, "operator", 2.0),
    ("branchy", 360, 903, "operator", 1.07),
    ("series-parallel", 400, 904, "sequential", 1.5),
    ("layered", 700, 905, "sequential", 1.07),
    ("branchy", 800, 906, "operator", 1.5),
    ("erdos-renyi", 250, 907, "operator", 1.3),
)
"""Family, ops, seed, execution, and how much longer everything takes on the processor."""
BEFORE = {
    "samples": 16, "steps": 4, "rounds": 1, "varied": False, "moves": 0, "elite": 1.0, "entropy": 0.01, "explore": 1.0,
    "hidden": 128, "seconds": False,
}  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": ("hsdag", {}),
    "before": ("hsdag", BEFORE),
    "nothing learned": ("hsdag", {"rate": 1e-9}),
    "all count": ("hsdag", {"elite": 1.0}),
    "chains may be cut": ("hsdag", {"elite": 1.0, "chains": "alternate"}),
    "colocrl": ("colocrl", {"colocate_over": 10_000}),
    "colocrl, joined": ("colocrl", {"colocate_over": 0}),
}


def problem_of(family: str, n_ops: int, seed: int, execution: str, ratio: float) -> Problem:
    """A random graph whose second device takes `ratio` times as long as the first, all ops together."""
    dims = {"n_ops": n_ops, "seed": seed, "batch": 1, "size": 56}
    problem_options = ProblemOptions(execution=execution, objective="latency", dims=dims)
    problem = build(f"zoo:random-{family}", str(CLUSTER), problem_options)
    seconds = problem.costs.op_seconds.copy()
    seconds[:, 1] *= ratio * seconds[:, 0].sum() / seconds[:, 1].sum()
    return problem.with_(costs=replace(problem.costs, op_seconds=seconds))


def reference(problem: Problem) -> float:
    """The optimum, or the best that is known."""
    if problem.objective.execution == "sequential":
        return float(place(problem, "two_way").value)
    return min(place(problem, "temper", Budget(iterations=None, seconds=8, seed=seed)).value for seed in (0, 1))


def trained(problem: Problem, policy: str, options: dict[str, Any], count: int, seed: int) -> tuple[float, float]:
    """The best of so many placements that training saw, and the policy's own choice."""
    trainer: Any = create(policy, options).trainer(problem, None, seed)  # type: ignore[attr-defined]
    trainer.begin()
    trainer.run(Budget(iterations=MIN_UPDATES, evaluations=count))
    best = float(trainer.pricing.value)
    return best, float(np.nanmin(trainer.pricing(trainer.policy.greedy(trainer.pricing))))


def main() -> None:
    """Print a row per variant and graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=list(VARIANTS), help="one variant only")
    parser.add_argument("--graphs", default="0,1,2,3,4,5,6,7", help="numbers of graphs")
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS, help="distinct placements per run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for number in map(int, options.graphs.split(",")):
        problem = problem_of(*GRAPHS[number])
        least = reference(problem)
        for variant in [options.variant] if options.variant else VARIANTS:
            best, own = trained(problem, *VARIANTS[variant], options.evaluations, options.seed)
            name = " ".join(map(str, GRAPHS[number][:4]))
            print(f"{name}, {variant}: +{best / least - 1:.1%}, own choice +{own / least - 1:.1%}", flush=True)


if __name__ == "__main__":
    main()
