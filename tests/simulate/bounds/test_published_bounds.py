"""On the published workloads: every bound is at most every value ever seen, whoever proved or found it.

Small budgets. Recorded values are those of `benchmarks/published.json` that keep memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from published import RECORDED, WORKLOADS, needs_workloads
from soak import SOAKS, sample

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.model.cluster import Cluster
from placewise.model.costs import CostTable
from placewise.model.problem import Problem
from placewise.model.result import Outcome, Result
from placewise.placers.base import Budget

pytestmark = needs_workloads
KEPT = ("dp", "dpl", "pipedream", "best_known", "greedy", "max_load_dp")
"""Recorded methods that keep memory and colocation."""
SHAPES = {"contiguous": {"contiguous": True}, "convex": {"convex": True}, "free": {"contiguous": False}}
BRIEF = 0.4 if SOAKS else 0.1
ASKED = {
    "contiguous": {"dpl": 9.0, "dp": BRIEF},
    "convex": {"cpsat": BRIEF},
    "free": {"cover": BRIEF, "cpsat": BRIEF, "etf": 9.0},
}
"""Seconds for each placer; those that are done sooner have more than they need."""


def ran(problem: Problem, asked: dict[str, float]) -> Iterator[Result]:
    """What the placers answer."""
    return (place(problem, name, Budget(seconds)) for name, seconds in asked.items())


@pytest.mark.parametrize("name", sample(sorted(RECORDED["throughput"])))
def test_throughput_bounds_and_values(name: str) -> None:
    """A bound for looser stages holds for stricter ones; recorded values of chains are above all of them."""
    path, highest = WORKLOADS / "throughput" / f"{name}.json", 0.0
    recorded = RECORDED["throughput"][name]
    for shape in reversed(SHAPES):
        problem = build(path, options=ProblemOptions(**SHAPES[shape]))  # type: ignore[arg-type]
        large = {"cover", "cpsat"} if problem.n_ops > 500 else set[str]()
        results = list(ran(problem, {placer: time for placer, time in ASKED[shape].items() if placer not in large}))
        assert all(result.judgement is None or result.judgement.valid for result in results)
        highest = max([highest, *(result.lower_bound for result in results)])
        found = {result.placer: result.value for result in results}
        methods = KEPT if shape == "free" else KEPT[:3]
        found |= {method: 1e-3 * value_of(recorded[method]) for method in methods if method in recorded}
        for method, value in found.items():
            printed = 5e-7 if method == "best_known" else 0.0  # to a thousandth of a millisecond
            assert highest <= value * (1 + 1e-6) + printed, f"{shape}: {method} has {value}, and the bound is {highest}"


@pytest.mark.parametrize("name", sample(sorted(RECORDED["latency"])))
def test_latency_bounds_and_values(name: str) -> None:
    """Bounds of all placers against all their values and the recorded ones."""
    problem = build(WORKLOADS / "latency" / f"{name}.json", options=ProblemOptions(objective="latency"))
    results = list(ran(problem, {"paths": BRIEF, "temper": BRIEF, "cpsat": BRIEF, "greedy": 9.0, "etf": 9.0}))
    highest = max(result.lower_bound for result in results)
    found = {result.placer: result.value for result in results}
    recorded = RECORDED["latency"][name]
    found |= {method: 1e-3 * value_of(recorded[method]) for method in KEPT if method in recorded}
    for method, value in found.items():
        assert highest <= value * (1 + 1e-6), f"{method} has {value}, and the bound is {highest}"


def value_of(record: object) -> float:
    """The milliseconds of a record; inf where a program did not finish."""
    value = record["value"] if isinstance(record, dict) else record
    return math.inf if value is None else float(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["LayerGraphs/bert24_inference", "OperatorGraphs/bert_l-3_inference"])
def test_more_of_a_published_cluster_is_no_worse(name: str) -> None:
    """One accelerator more, half the memory more, links twice as fast: dp proves optima that do not get worse."""
    problem = build(WORKLOADS / "throughput" / f"{name}.json")
    before = place(problem, "dp")
    assert before.status.outcome is Outcome.OPTIMAL
    cluster, costs = problem.cluster, problem.costs
    last = max(d for d in range(len(cluster)) if not cluster.is_host[d])
    old = cluster.names[last]
    links = [
        replace(
            link,
            source="more" if link.source == old else link.source,
            target="more" if link.target == old else link.target,
        )
        for link in cluster.links
        if old in (link.source, link.target)
    ]
    wider = Cluster((*cluster.devices, replace(cluster.devices[last], name="more")), (*cluster.links, *links))
    table = CostTable.given(np.column_stack((costs.op_seconds, costs.op_seconds[:, last])), costs.transfer_seconds)
    roomier = replace(cluster, devices=tuple(replace(device, memory=1.5 * device.memory) for device in cluster))
    faster = replace(costs, transfer_seconds=costs.transfer_seconds / 2)
    for after in (
        problem.with_(cluster=wider, costs=table),
        problem.with_(cluster=roomier),
        problem.with_(costs=faster),
    ):
        result = place(after, "dp")
        assert result.status.outcome is Outcome.OPTIMAL and result.value <= before.value * (1 + 1e-6)
    scaled = place(
        problem.with_(
            costs=replace(costs, op_seconds=costs.op_seconds * 3, transfer_seconds=costs.transfer_seconds * 3)
        ),
        "dp",
    )
    assert scaled.value == pytest.approx(3 * before.value, rel=1e-9)
