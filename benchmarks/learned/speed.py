"""How fast policies learn: `python benchmarks/learned/speed.py [--seconds 10]`.

An update is one optimizer step on K = 16 placements, drawn, priced by the judge and learned from, on random layered
graphs of 1,000 ops on two devices. Rounds of all policies take turns, and the medians count. Beside it, Placeto's
decisions: K moves of a unit, each priced. Goals: 20 updates/s for policies that decide all ops at once, 4 for
sequence policies at 200 groups, 300 decisions/s for Placeto. Raw rounds go to
benchmarks/results/learned_speed.json; the exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewise.core.build import build
from placewise.model.problem import Problem
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.learned.trainer import Trainer, one_thread
from placewise.placers.registry import create
from placewise.zoo.random import random_graph

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SAMPLES, ROUNDS = 16, 5
GROUPS = 200


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, the graph that it works on, and what it should reach."""

    policy: str
    n_ops: int
    options: dict[str, Any]
    goal: float
    unit: str = "updates/s"


CONTENDERS = (
    Contender("hsdag", 1000, {}, 20.0),
    Contender("hsdag", 1000, {"chains": "never"}, 20.0),
    Contender("colocrl", 0, {}, 4.0),
    Contender("hdp", 1000, {}, 4.0),
    Contender("placeto", 1000, {}, 300.0, "decisions/s"),
)


def problem_of(n_ops: int) -> Problem:
    """A layered random graph on two unequal devices."""
    return build(random_graph("layered", n_ops, 1), "L4,A100-40GB")


def with_groups(policy: str, options: dict[str, Any], wanted: int) -> Problem:
    """The smallest graph of the family on which a policy decides about at least so many groups."""
    for n_ops in range(wanted, 20 * wanted, wanted // 4):
        problem = problem_of(n_ops)
        if create(policy, options).policy(problem, 0).view.n >= wanted:  # type: ignore[attr-defined]
            return problem
    raise SystemExit(f"no graph has {wanted} groups for {policy}")


def trainer_of(contender: Contender) -> Trainer:
    """A trainer that has begun and made one update, so that everything is compiled."""
    options = {"samples": SAMPLES, **contender.options}
    problem = problem_of(contender.n_ops) if contender.n_ops else with_groups(contender.policy, options, GROUPS)
    trainer: Trainer = create(contender.policy, options).trainer(problem, None, 0)  # type: ignore[attr-defined]
    trainer.begin()
    trainer.update(Stopwatch(Budget(iterations=1000)))
    return trainer


def paced(trainer: Trainer, seconds: float) -> float:
    """Updates per second for a while."""
    watch, count = Stopwatch(Budget(iterations=1_000_000)), 0
    with one_thread(trainer.policy):
        while watch.elapsed < seconds:
            trainer.update(watch)
            count += 1
    return count / watch.elapsed


def main() -> int:
    """Measure, write, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="per policy, in all")
    options = parser.parse_args()
    trainers = [trainer_of(contender) for contender in CONTENDERS]
    load = os.getloadavg()[0]
    rounds: list[list[float]] = [[] for _ in CONTENDERS]
    for _ in range(ROUNDS):
        for found, contender, trainer in zip(rounds, CONTENDERS, trainers, strict=True):
            rate = paced(trainer, options.seconds / ROUNDS)
            found.append(rate * trainer.policy.view.n * SAMPLES if contender.unit == "decisions/s" else rate)
    rows = [
        {
            "policy": contender.policy, "options": contender.options, "ops": trainer.policy.view.problem.n_ops,
            "units": trainer.policy.view.n, "unit": contender.unit, "goal": contender.goal, "rounds": found,
            "median": statistics.median(found),
        }
        for contender, trainer, found in zip(CONTENDERS, trainers, rounds, strict=True)
    ]  # fmt: skip
    command = " ".join(["python benchmarks/learned/speed.py", *sys.argv[1:]])
    machine = {"cores": len(os.sched_getaffinity(0)), "load_before": load, "python": platform.python_version()}
    record = {"command": command, "date": time.strftime("%Y-%m-%d"), "machine": machine, "rows": rows}
    (RESULTS / "learned_speed.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "learned_speed.md").write_text(table(rows, command, load))
    print(table(rows, command, load))
    return int(any(row["median"] < row["goal"] for row in rows))


def table(rows: list[dict[str, Any]], command: str, load: float) -> str:
    """The rows as Markdown."""
    lines = [
        "# How fast policies learn",
        "",
        f"`{command}`; {SAMPLES} placements per update, medians of {ROUNDS} rounds in turns on two cores "
        f"(load {load:.1f} before); raw figures in learned_speed.json. A decision of Placeto is the move of one unit "
        "in one episode.",
        "",
        "| policy | options | ops | units decided | rate | goal |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        said = ", ".join(f"{name}={value}" for name, value in row["options"].items())
        lines.append(
            f"| {row['policy']} | {said} | {row['ops']:,} | {row['units']:,} | {row['median']:.1f} {row['unit']} "
            f"| {row['goal']:g} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
