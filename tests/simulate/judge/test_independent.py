"""The judge and the placers against a judge that was written apart, from docs/judge.md alone, on tiny problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
from independent_optimum import independent_optimum
from judged_apart import differences, faults_of, random_placements
from soak import seeds
from tiny_problems import Draw, tiny_problem

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.simulate import judge_placement
from placewise.simulate.judge.ranks import round_ranks

pytestmark = pytest.mark.usefixtures("brief_proofs")
PLACERS = ("heft", "topo", "exhaustive", "greedy", "pack", "dp", "etf", "min_cut", "single", "balanced")
MOST = 60


@pytest.mark.parametrize("part", range(6))
def test_both_judges_agree(part: int) -> None:
    """480 problems, a quarter of them in `make test`: equal values, broken rules and bytes; a third of them also has
    bounds and proofs of a placer.
    """
    for seed in (6 * number + part for number in seeds(80)):
        problem = tiny_problem(seed, nasty=part % 2 == 1)
        for placement in random_placements(problem, Draw(seed), 4):
            assert not differences(problem, placement), f"seed {seed}, {placement}"
        if seed % 3 == 0:
            best = independent_optimum(problem, MOST)
            faults, _ = faults_of(problem, PLACERS[seed // 3 % len(PLACERS)], best, math.inf)
            assert not faults, f"seed {seed}"


@pytest.mark.parametrize(("one", "other"), [(0.3, 0.1 + 0.2), (1.0, sum([0.1] * 10)), (1 / 3 + 1 / 3, 2 / 3)])
def test_rounding_parts_no_equal_ranks(one: float, other: float) -> None:
    """Sums that are equal but for rounding are the same number of steps; those that differ in earnest are not."""
    steps = round_ranks(np.array([one, other, one * (1 + 1e-9), 7.0]))
    assert steps[0] == steps[1] != steps[2]
    assert (round_ranks(np.zeros(3)) == 0).all()


def test_equal_ranks_go_by_index() -> None:
    """A rank of 0.3 and one of 0.1 + 0.2 are equal, so that the first op starts first."""
    builder = GraphBuilder()
    for name in ("a", "b", "c"):
        builder.add_op(name, "Op")
    builder.add_edge(builder.add_tensor(1, nbytes=0), 2)
    cluster = Cluster((Device("cpu", "cpu"),))
    costs = CostTable.given(np.array([[0.3], [0.1], [0.2]]), np.zeros((1, 1)))
    problem = Problem(builder.build(), cluster, costs, Objective("latency"))
    timeline = judge_placement(problem, Placement.on(0, 3)).timeline
    assert timeline is not None and timeline.start[0] == 0.0
