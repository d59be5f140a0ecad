"""auto on problems so small that everything can be tried: the optimum, and its proof."""

from __future__ import annotations

import math

import numpy as np
import pytest
from independent_optimum import independent_optimum
from soak import SOAKS
from tiny_problems import EXECUTIONS, MODES, tiny_problem

from placewise.core.place import place
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.problem import Objective, Problem
from placewise.model.result import Outcome, Reason
from placewise.placers.base import Budget

pytestmark = pytest.mark.usefixtures("brief_proofs")
OBJECTIVES = (
    *(Objective("throughput", mode, schedule=schedule) for mode in MODES for schedule in ("1f1b", "gpipe")),  # type: ignore[arg-type]
    *(Objective("latency", execution=execution) for execution in EXECUTIONS),  # type: ignore[arg-type]
)
MOST = 250


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_auto_proves_the_optimum(objective: Objective) -> None:
    """The value is that of brute force over a judge written apart, with its proof, or nothing is valid, proved too."""
    tried, most = 0, 8 if SOAKS else 3
    for seed in range(60):
        if tried == most:
            break
        problem = tiny_problem(seed, nasty=seed % 3 == 0).with_(objective=objective)
        best = independent_optimum(problem, MOST)
        if best is None:
            continue
        tried += 1
        result = place(problem, "auto", Budget(30.0))
        where = f"seed {seed}: {result.status}, {result.value}, optimum {best}"
        assert result.status.reason is Reason.PROVED, where
        assert result.status.outcome is (Outcome.OPTIMAL if math.isfinite(best) else Outcome.INFEASIBLE), where
        assert result.value == pytest.approx(best), where
    assert tried == most


def test_orders_that_are_too_many_prove_nothing() -> None:
    """Of ten ops without an edge not every order can be tried, and the best placement under the judge's is no proof."""
    builder = GraphBuilder()
    for op in range(10):
        builder.add_op(f"op{op}", "Op")
    cluster = Cluster((Device("cpu0", "cpu"), Device("cpu1", "cpu")))
    costs = CostTable.given(np.arange(1.0, 21.0).reshape(10, 2), np.zeros((0, 1)))
    result = place(Problem(builder.build(), cluster, costs, Objective("latency")), "exhaustive")
    assert result.placement is not None and result.bound.method != "every placement"
