"""Random problems and placements for the tests of the judge, drawn by hypothesis or by a seeded generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.tables import Phase

Choose = Callable[[int, int], int]
"""An integer from low to high, both included."""

OBJECTIVES = (
    *(Objective("throughput", communication=mode) for mode in ("blocking", "overlap", "duplex")),
    *(Objective("latency", execution=execution) for execution in ("operator", "subgraph", "sequential")),
)


def seeded(seed: int) -> Choose:
    """Choices from a seeded generator."""
    rng = np.random.default_rng(seed)
    return lambda low, high: int(rng.integers(low, high + 1))


@st.composite
def problems(draw: st.DrawFn, **options: Any) -> Problem:
    """A random problem that hypothesis can shrink; `options` are those of `random_problem`."""
    return random_problem(lambda low, high: draw(st.integers(low, high)), **options)


@st.composite
def placed(draw: st.DrawFn, **options: Any) -> tuple[Problem, Placement]:
    """A random problem and a placement of its ops on devices that can run them."""
    choose: Choose = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    problem = random_problem(choose, **options)
    return problem, random_placement(problem, choose)


def random_problem(
    choose: Choose,
    *,
    max_ops: int = 9,
    max_devices: int = 4,
    objective: Objective | None = None,
    training: bool | None = None,
    scarce: bool = False,
    rules: bool = False,
    alike: bool = False,
    transfers: str | None = None,
    wires: bool | None = None,
    constraints: Constraints | None = None,
) -> Problem:
    """A problem in which everything varies; times are multiples of 1/4, often zero, so that ties abound.

    `scarce`: memory that often does not suffice; `rules`: some ops cannot run on some devices, or are pinned;
    `alike`: devices of a kind are equal, often all of them. What is None is drawn, a given objective and given
    constraints but for their memory model, pins and headroom too.
    """
    given = objective is not None and constraints is not None
    objective = objective or OBJECTIVES[choose(0, len(OBJECTIVES) - 1)]
    if not given and choose(0, 1):
        objective = Objective(objective.kind, objective.communication, objective.execution, "sum")
    backward = bool(choose(0, 1)) if training is None else training
    graph = _graph(choose, choose(1, max_ops), training=backward)
    cluster = _cluster(choose, max_devices, scarce=scarce, alike=alike, transfers=transfers, wires=wires)
    seconds = np.array([[choose(0, 4) / 4 for _ in cluster] for _ in range(graph.n_ops)]).reshape(-1, len(cluster))
    if alike:
        kinds = [device.kind for device in cluster]
        seconds = seconds[:, [0 if choose(0, 3) == 0 else kinds.index(kind) for kind in kinds]]
    if rules:
        for op in range(graph.n_ops):
            if choose(0, 3) == 0:
                seconds[op, choose(0, len(cluster) - 1)] = math.inf
    n_classes = len(cluster.class_bandwidth)
    transfer = np.zeros((graph.n_tensors, n_classes))
    for tensor in range(graph.n_tensors):
        transfer[tensor, 1:] = [choose(0, 4) / 4 for _ in range(n_classes - 1)]
    wished = replace(constraints or Constraints(), headroom=0.25 * choose(0, 1) if scarce else 0.0)
    if rules and choose(0, 3) == 0:
        wished = replace(wished, pins=(Rule("op0$", cluster.names[choose(0, len(cluster) - 1)]),))
    return Problem(graph, cluster, CostTable.given(seconds, transfer), objective, wished)


def _graph(choose: Choose, n_ops: int, *, training: bool) -> Graph:
    builder = GraphBuilder()
    weights = [
        builder.add_weight(f"w{i}", shape=(choose(0, 3),), dtype="int8", storage=choose(0, 2))
        for i in range(choose(0, 3))
    ]
    tensors = [builder.add_tensor(-1, nbytes=choose(0, 3), output=choose(0, 9) == 0) for _ in range(choose(0, 2))]
    forward = (n_ops + 1) // 2 if training else n_ops
    later = n_ops if training or choose(0, 2) else choose(0, n_ops)
    for number in range(n_ops):
        twin = n_ops - 1 - number if number >= forward else number
        op = builder.add_op(
            f"op{number}",
            "Op",
            backward=number >= forward,
            group=twin if training and choose(0, 2) else choose(0, 2) if choose(0, 4) == 0 else -1,
            state_bytes=choose(0, 3),
            phase=int(number >= later),
        )
        for _ in range(choose(0, 3) if tensors else 0):
            recent = max(0, len(tensors) - 6) if choose(0, 1) else 0
            builder.add_edge(tensors[choose(recent, len(tensors) - 1)], op)
        for weight in weights:
            if choose(0, 2) == 0:
                builder.use_weight(weight, op)
        tensors += [
            builder.add_tensor(op, nbytes=choose(0, 3), output=choose(0, 5) == 0)
            for _ in range((0, 1, 1, 2)[choose(0, 3)])
        ]
    return builder.build(phases=(Phase("first"), Phase("second", 3)) if later < n_ops else ())


def _cluster(
    choose: Choose, max_devices: int, *, scarce: bool, alike: bool, transfers: str | None, wires: bool | None
) -> Cluster:
    plain = Device("d0", "accelerator", float(choose(4, 14)) if scarce else math.inf)
    devices = tuple(
        Device(
            f"d{i}",
            kind="cpu" if choose(0, 2) == 0 else "accelerator",
            memory=float(choose(2, 14)) if scarce else math.inf,
            streams=1 + (choose(0, 3) == 0),
            call_overhead=choose(0, 2) / 4,
        )
        if not alike or choose(0, 3) == 0
        else replace(plain, name=f"d{i}")
        for i in range(choose(1, max_devices))
    )
    names = [device.name for device in devices if not device.is_host]
    transfers = transfers or ("direct" if choose(0, 1) else "staged")
    ends = [(a, HOST) for a in names] + [(HOST, a) for a in names]
    if transfers == "direct":
        ends += [(a, b) for a in names for b in names if a != b and choose(0, 3)]
    wires = bool(choose(0, 1)) if wires is None else wires
    equal = alike and choose(0, 1) == 0
    links = tuple(
        Link(a, b, 1.0 if equal else float(choose(1, 3)), shared=_wire(choose, a, b) if wires else "") for a, b in ends
    )
    return Cluster(devices, links, transfers)  # type: ignore[arg-type]


def _wire(choose: Choose, a: str, b: str) -> str:
    """The wire of a link, if it has one: two of them, between devices and with the host."""
    return "" if choose(0, 1) else "upper" if HOST in (a, b) else "lower"


def random_placement(problem: Problem, choose: Choose) -> Placement:
    """Every op, or every colocation group, on one of its devices, sometimes only on few of them."""
    device = np.empty(problem.n_ops, np.int32)
    together, home = bool(choose(0, 1)), dict[int, int]()
    for op in range(problem.n_ops):
        can = np.flatnonzero(problem.allowed[op]).tolist() or list(range(problem.n_devices))
        d = can[choose(0, len(can) - 1)]
        device[op] = home.setdefault(int(problem.block[op]), d) if together else d
    return Placement(device)
