"""Our judge and placers against the independent judge, on one tiny problem: every difference is a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from independent_judge import IndependentJudgement, judge_independently
from tiny_problems import Draw

from placewise.core.place import place
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Judgement, Outcome, Result
from placewise.placers.base import Budget
from placewise.placers.registry import create
from placewise.simulate import judge_placement

SLACK = 1 + 1e-9
SAME = {"support": "not allowed", "pin": "not allowed"}


def random_placements(problem: Problem, draw: Draw, count: int) -> Iterator[Placement]:
    """Placements, every other one with whole groups, and half of them with calls, orders or replicas of their own."""
    objective = problem.objective
    for number in range(count):
        homes = [np.flatnonzero(row).tolist() or list(range(problem.n_devices)) for row in problem.allowed]
        device = np.array([draw.one(places) for places in homes], np.int32)
        if number % 2:
            device = device[np.unique(problem.block, return_index=True)[1]][problem.block]
        placement = Placement(device)
        if number % 4 > 1 and objective.kind == "latency":
            column = np.array([draw.whole(0, 2) for _ in device], np.int32)
            decided = {"operator": {"order": column}, "subgraph": {"call": column}}.get(objective.execution, {})
            placement = Placement(device, **decided)
        elif number % 4 > 1:
            used = sorted(set(device.tolist()))
            stages = [d if d in used else draw.one([d, *used]) for d in range(problem.n_devices)]
            placement = Placement(device, replicas=np.array(stages, np.int32))
        yield placement


def differences(problem: Problem, placement: Placement) -> list[str]:
    """Where the judges disagree on a placement: value, broken rules, bytes."""
    ours, theirs = judge_placement(problem, placement), judge_independently(problem, placement)
    kinds = {SAME.get(violation.kind, violation.kind) for violation in ours.violations}
    if "replicas" in kinds and "replicas" in theirs.broken:
        return []
    found = [] if _equal(ours.value, theirs.value) else [f"the value is {ours.value}, and {theirs.value} apart"]
    if not math.isfinite(ours.value) or not math.isfinite(theirs.value):
        ignored = {"memory"}
    else:
        ignored = set()
        found += [
            f"{use.device} needs {use.peak} bytes, and {apart} apart"
            for use, apart in zip(ours.devices, theirs.bytes, strict=True) if not _equal(use.peak, apart)
        ]  # fmt: skip
    if "colocation" in kinds & theirs.broken:
        ignored |= {"contiguity", "order"}
    if kinds - ignored != theirs.broken - ignored:
        found.append(f"it breaks {sorted(kinds)}, and {sorted(theirs.broken)} apart")
    return found


def faults_of(problem: Problem, placer: str, best: float | None, seconds: float) -> tuple[list[str], Result | None]:
    """What is wrong with a placer's answer, where the optimum is `best`; no result if it cannot take the problem."""
    if create(placer).supports(problem) is not None:
        return [], None
    result = place(problem, placer, Budget(seconds))
    if result.status.outcome is Outcome.INFEASIBLE:
        return (["false proof that nothing fits"] if best is not None and math.isfinite(best) else []), result
    found = []
    if best is not None and result.lower_bound > best * SLACK:
        found.append(f"the bound {result.lower_bound} is above the optimum {best}")
    if result.placement is not None and result.judgement is not None:
        found += _faults_of_value(result.judgement, judge_independently(problem, result.placement))
        worse = best is not None and result.value > best * (1 + 1.1 * OPTIMAL_GAP)
        if worse and result.status.outcome is Outcome.OPTIMAL:
            found.append(f"{result.value} is called optimal, and the optimum is {best}")
        if best is not None and result.value * SLACK < best:
            found.append(f"{result.value} is better than the optimum {best}")
    return found, result


def _faults_of_value(ours: Judgement, theirs: IndependentJudgement) -> list[str]:
    if theirs.broken:
        return [f"the answer breaks {sorted(theirs.broken)}"]
    return [] if _equal(ours.value, theirs.value) else [f"the value is {ours.value}, and {theirs.value} apart"]


def _equal(one: float, other: float) -> bool:
    return one == other or abs(one - other) <= 1e-9 * abs(other)
