"""How good gdp is without updates, on graphs that nobody tunes or trains on: before it is trained, and as checkpoints.

    python benchmarks/generalize/validate.py [CHECKPOINT …] [--seconds 2]

Random graphs of the zoo with seeds 900 to 919, inference and training, on two to eight P100s and a CPU. A row per
policy, with METIS and the single devices, which it prices too: the geometric mean over graphs of its seconds over those
of `temper` with as much time as said, and how many graphs are within 5, 10 and 20 % of it; the same for the best single
device, for `etf`, and for `auto` and `temper` with exactly the time that the untrained policy took on the graph.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import cycle

import placewise as pw
from placewise.core.place import place
from placewise.model.problem import Problem
from placewise.placers.base import Budget

FAMILIES = ("layered", "series-parallel", "branchy", "erdos-renyi")
COUNTS = (2, 4, 8)


def problems(n: int = 20) -> list[Problem]:
    """The tuning graphs: of every family, 100 to 600 ops."""
    kinds, counts, found = cycle(("inference", "training")), cycle(COUNTS), []
    for number in range(n):
        dims = {"n_ops": 100 + 500 * number // max(n - 1, 1), "seed": 900 + number}
        problem_options = pw.ProblemOptions(
            objective="latency", dims=dims, graph=next(kinds), optimizer=("", "sgd")[number % 2] or None
        )
        found.append(pw.build(f"zoo:random-{FAMILIES[number % 4]}", f"{next(counts)}xP100,cpu", problem_options))
    return found


def _ask(asked: Sequence[Problem], **options: object) -> tuple[list[float], list[float]]:
    """The value of gdp's placement of each problem, without an update, and how many seconds it took."""
    results = [place(problem, "gdp", options={"updates": 0, **options}) for problem in asked]
    return [result.value for result in results], [result.seconds for result in results]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints", nargs="*")
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args(arguments)
    asked = problems()
    best = [place(problem, "temper", Budget(seconds=given.seconds)).value for problem in asked]
    rows = {name: [place(problem, name).value for problem in asked] for name in ("single", "etf")}
    rows["gdp, untrained"], spent = _ask(asked)
    for path in given.checkpoints:
        rows[f"gdp, {path}"], taken = _ask(asked, checkpoint=path)
        print(f"{path} took {sum(taken) / len(taken):.2f} s a graph")
    for name in ("auto", "temper"):
        rows[f"{name}, as long as gdp"] = [
            place(problem, name, Budget(seconds=seconds)).value for problem, seconds in zip(asked, spent, strict=True)
        ]
    print(f"gdp, untrained, took {sum(spent) / len(spent):.2f} s a graph")
    print(
        f"\n| over temper, {given.seconds:g} s | mean | within 5 % | 10 % | 20 % | worst |\n|---|--:|--:|--:|--:|--:|"
    )
    for name, values in rows.items():
        ratios = [value / other for value, other in zip(values, best, strict=True)]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        within = " | ".join(str(sum(ratio <= 1 + share for ratio in ratios)) for share in (0.05, 0.1, 0.2))
        print(f"| {name} | {mean:.3f} | {within} | {max(ratios):.3f} |")


if __name__ == "__main__":
    main()
