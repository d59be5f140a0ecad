"""The optimum of small latency problems: every placement, with every set of calls or every order of the ops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement
from placewise.simulate.judge.judge import _latency


@cache
def weak_orders(n: int) -> list[tuple[int, ...]]:
    """Every way to give n ops call numbers from 0 without gaps."""
    found = (row for row in itertools.product(range(n), repeat=n) if set(row) == set(range(max(row, default=-1) + 1)))
    return list(found)


def every_placement(problem: Problem) -> Iterator[Placement]:
    """Every placement that keeps support and groups, with everything that it may decide."""
    homes = [
        np.flatnonzero(problem.allowed[problem.block == block].all(axis=0)).tolist()
        for block in range(problem.n_blocks)
    ]
    for choice in itertools.product(*homes):
        device = np.array(choice, np.int32)[problem.block]
        if problem.objective.execution == "operator":
            yield from (Placement(device, order=np.array(o)) for o in itertools.permutations(range(problem.n_ops)))
        elif problem.objective.execution == "subgraph":
            yield from _with_calls(problem, device)
        else:
            yield Placement(device)


def _with_calls(problem: Problem, device: Ints) -> Iterator[Placement]:
    stages = [np.flatnonzero(device == d) for d in np.flatnonzero(~problem.cluster.is_host).tolist()]
    for numbers in itertools.product(*(weak_orders(len(stage)) for stage in stages)):
        call = np.zeros(problem.n_ops, np.int32)
        for stage, number in zip(stages, numbers, strict=True):
            call[stage] = number
        yield Placement(device, call=call)


def optimum(problem: Problem) -> float:
    """The least value of a placement that keeps the rules; inf if there is none."""
    best = math.inf
    for placement in every_placement(problem):
        if _latency(problem, placement)[0] < best:
            judgement = judge_placement(problem, placement)
            best = min(best, judgement.value) if judgement.valid else best
    return best
