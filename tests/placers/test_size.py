"""Models too large for a method: it says so before it starts, or at once, with a size and what to use instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from placewise.core.place import place
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Outcome
from placewise.placers import registry
from placewise.placers.base import Budget


def chain(n: int, *, kinds: int = 1, k: int = 4, objective: Objective | None = None) -> Problem:
    """n ops in a row on k accelerators, of which the first `kinds` have a memory of their own."""
    builder = GraphBuilder()
    for op in range(n):
        builder.add_op(f"x{op}", "Op", state_bytes=1)
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    devices = tuple(Device(f"d{i}", memory=10.0 * n + min(i, kinds - 1)) for i in range(k))
    links = tuple(Link(*ends, 1.0) for d in devices for ends in ((d.name, HOST), (HOST, d.name)))
    graph, cluster = builder.build(), Cluster(devices, links)
    moves = np.tile([0.0, 0.25], (graph.n_tensors, 1))
    return Problem(graph, cluster, CostTable.given(np.ones((n, k)), moves), objective or Objective("throughput"))


LATENCY = Objective("latency", execution="subgraph")


KINDS = {"kinds": 17, "k": 17}


@pytest.mark.parametrize(
    ("name", "n", "others", "size", "instead"),
    [
        ("cover", 5001, {}, "5,001 groups of ops on 4 devices", "use auto, dpl or etf"),
        ("cpsat", 40_000, {}, "about 480,000 variables (40,000 groups of ops", "use auto or dpl"),
        ("dp", 40, KINDS, "17 devices of 17 kinds make 131,072 ways", "use auto or greedy"),
        ("dpl", 40, KINDS, "17 devices of 17 kinds make 131,072 ways", "use auto or greedy"),
        ("pipedream", 40, KINDS, "17 devices of 17 kinds make 131,072 ways", "use auto or greedy"),
        ("cpsat", 90_000, {"objective": LATENCY}, "literals, and", "local and auto"),
    ],
)
def test_too_large_models_are_refused_with_their_size(
    name: str, n: int, others: dict[str, Any], size: str, instead: str
) -> None:
    """Before any work: the size, what it comes from, the most that is taken, and another placer that takes it."""
    problem = chain(n, **others)
    refusal = registry.create(name).supports(problem)
    assert refusal is not None and size in refusal and instead in refusal
    other = next(word for word in instead.replace(",", "").split() if word in registry.known_names())
    assert registry.create(other).supports(problem) is None


def test_auto_takes_what_single_methods_refuse() -> None:
    """Seventeen kinds of devices: auto answers with the placers that are left."""
    problem = chain(12, kinds=17, k=17)
    result = place(problem, "auto", Budget(1.0))
    assert result.status.outcome in (Outcome.FEASIBLE, Outcome.OPTIMAL)


def test_dp_counts_no_further_than_it_may() -> None:
    """Thirty parallel ops have 2^30 ideals: the count stops, and the note has it, what was done and what to use."""
    builder = GraphBuilder()
    for op in range(30):
        builder.add_op(f"x{op}", "Op")
        builder.add_tensor(op, nbytes=1, output=True)
    graph = builder.build()
    accelerators = [Device(f"d{i}") for i in range(2)]
    links = tuple(Link(*ends, 1.0) for d in accelerators for ends in ((d.name, HOST), (HOST, d.name)))
    cluster = Cluster(tuple(accelerators), links)
    costs = CostTable.given(np.ones((30, 2)), np.tile([0.0, 0.25], (30, 1)))
    problem = Problem(graph, cluster, costs, Objective("throughput"), Constraints(contiguous=True))
    result = place(problem, "dp", options={"max_ideals": 20_000})
    assert result.placement is not None and result.value >= result.lower_bound
    said = " ".join(result.notes)
    assert "ideals of" in said and "or more, too many" in said and "many orders of the ops" in said


def test_paths_says_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than its work without a time limit, and paths longer than it cuts: at once, with what to do instead."""
    problem = chain(60, objective=LATENCY)
    monkeypatch.setattr("placewise.placers.min_cut.paths.WORK", 100.0)
    worked = place(problem, "paths")
    assert worked.placement is None and worked.notes[0].startswith("119 ops and uses of tensors are more")
    monkeypatch.setattr("placewise.simulate.bounds.paths.LONGEST", 0)
    cut = place(problem, "paths", Budget(9.0))
    assert cut.placement is None and cut.notes[0].endswith("the most that paths cuts: use temper or auto")
