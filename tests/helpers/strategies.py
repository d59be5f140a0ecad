"""Random small problems for hypothesis: DAGs, groups, training twins, unequal devices, links, memory, rules.

Times are multiples of 1/8, so that sums are exact in floating point and ties abound.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.tables import Phase

MODES = ("blocking", "overlap", "duplex")
EXECUTIONS = ("operator", "subgraph", "sequential")


def eighths(high: int) -> st.SearchStrategy[float]:
    """0, 1/8, … up to `high` eighths, zero often."""
    return st.one_of(st.just(0.0), st.integers(0, high).map(lambda k: k / 8))


@st.composite
def graphs(draw: st.DrawFn, *, max_ops: int = 6, training: bool = False, weights: bool = True) -> Graph:
    """A random graph; with `training`, backward twins with mirrored edges, most of them in their op's group.

    Without, it may have two phases.
    """
    builder = GraphBuilder()
    n = draw(st.one_of(st.integers(1, max_ops), st.integers(min(3, max_ops), max_ops)))
    held = _weights(draw, builder) if weights else []
    tensors = [builder.add_tensor(-1, nbytes=draw(st.integers(0, 2))) for _ in range(draw(st.integers(0, 1)))]
    group = [draw(st.sampled_from([-1, -1, -1, 0, 1])) for _ in range(n)]
    edges: list[tuple[int, int]] = []
    made: list[list[int]] = []
    later = n if training or draw(st.integers(0, 2)) else draw(st.integers(0, n))
    for op in range(n):
        paired = 10 + op if training and group[op] < 0 else group[op]
        _op(draw, builder, f"f{op}", held, group=paired, phase=int(op >= later))
        sources = draw(st.lists(st.sampled_from(range(op)), max_size=2, unique=True)) if op else []
        for source in sources:
            builder.add_edge(draw(st.sampled_from(made[source])), op)
            edges.append((source, op))
        if tensors and draw(st.integers(0, 3)) == 0:
            builder.add_edge(tensors[0], op)
        made.append(_outputs(draw, builder, op))
    if training:
        _backward(draw, builder, group, edges, made)
    return builder.build(phases=(Phase("first"), Phase("second", 3)) if later < n else ())


def _weights(draw: st.DrawFn, builder: GraphBuilder) -> list[int]:
    return [
        builder.add_weight(f"w{i}", shape=(draw(st.integers(1, 3)),), dtype="int8", storage=draw(st.integers(0, 1)))
        for i in range(draw(st.integers(0, 2)))
    ]


def _op(draw: st.DrawFn, builder: GraphBuilder, name: str, held: list[int], **options: Any) -> int:
    op = builder.add_op(name, draw(st.sampled_from(["A", "B"])), state_bytes=draw(st.integers(0, 3)), **options)
    for weight in held:
        if draw(st.booleans()):
            builder.use_weight(weight, op)
    return op


def _outputs(draw: st.DrawFn, builder: GraphBuilder, op: int) -> list[int]:
    asked = draw(st.integers(0, 5)) == 0
    return [
        builder.add_tensor(op, nbytes=draw(st.integers(0, 2)), output=asked and number == 0)
        for number in range(draw(st.integers(1, 2)))
    ]


def _backward(
    draw: st.DrawFn, builder: GraphBuilder, group: list[int], edges: list[tuple[int, int]], made: list[list[int]]
) -> None:
    """A twin per op, last first: it reads the twins of its op's readers and perhaps what its op made."""
    gradient: dict[int, list[int]] = {}
    for op in reversed(range(len(group))):
        orphan = draw(st.integers(0, 4)) == 0
        paired = 10 + op if group[op] < 0 else group[op]
        twin = _op(draw, builder, f"b{op}", [], backward=True, group=-1 if orphan else paired)
        for source, target in edges:
            if source == op:
                builder.add_edge(draw(st.sampled_from(gradient[target])), twin)
        if draw(st.booleans()):
            builder.add_edge(draw(st.sampled_from(made[op])), twin)
        gradient[op] = _outputs(draw, builder, twin)


@st.composite
def clusters(
    draw: st.DrawFn, *, max_devices: int = 3, transfers: str | None = None, memory: int | None = 9, wires: bool = True
) -> Cluster:
    """Accelerators and host devices, of few kinds so that some are equal; memory is unlimited if `memory` is None."""
    transfers = transfers or draw(st.sampled_from(["staged", "direct"]))
    room = (
        st.just(math.inf)
        if memory is None
        else st.sampled_from([math.inf, math.inf, math.inf, float(memory), memory / 2])
    )
    kinds = [(draw(st.sampled_from(["gpu", "gpu", "cpu"])), draw(room)) for _ in range(2)]
    count = draw(st.integers(1, max_devices))
    devices = [Device(f"d{i}", *draw(st.sampled_from(kinds))) for i in range(count)]
    ends = [device.name for device in devices if not device.is_host] + [HOST]
    pairs = [(a, b) for a in ends for b in ends if a != b and (transfers == "direct" or HOST in (a, b))]
    equal = draw(st.booleans())
    shared = wires and draw(st.integers(0, 3)) == 0
    links = tuple(
        Link(a, b, 1.0 if equal else draw(st.sampled_from([1.0, 2.0])), shared="bus" if shared and a == HOST else "")
        for a, b in pairs
    )
    return Cluster(tuple(devices), links, transfers)  # type: ignore[arg-type]


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    kind: str | None = None,
    contiguous: bool | None = None,
    convex: bool | None = None,
    memory_model: str | None = None,
    training: bool | None = None,
    rules: bool = True,
    max_ops: int = 6,
    **cluster: Any,
) -> Problem:
    """A whole problem; what is None is drawn. `cluster` options are those of `clusters`."""
    kind = kind or draw(st.sampled_from(["throughput", "latency"]))
    training = draw(st.booleans()) if training is None else training
    graph = draw(graphs(max_ops=max(1, max_ops // 2) if training else max_ops, training=training))
    machines = draw(clusters(**cluster))
    objective = Objective(
        kind,  # type: ignore[arg-type]
        communication=draw(st.sampled_from(MODES)),  # type: ignore[arg-type]
        execution=draw(st.sampled_from(EXECUTIONS)),  # type: ignore[arg-type]
        memory=memory_model or draw(st.sampled_from(["sum", "live", "resident"])),  # type: ignore[arg-type]
    )
    open_shape = contiguous is None
    contiguous = kind == "throughput" and draw(st.booleans()) if contiguous is None else contiguous
    if convex is None:
        convex = open_shape and kind == "throughput" and not contiguous and draw(st.booleans())
    constraints = Constraints(
        forbidden=(Rule("f0$", draw(st.sampled_from(machines.names))),)
        if rules and draw(st.integers(0, 5)) == 0
        else (),
        contiguous=contiguous,
        convex=convex,
    )
    return Problem(graph, machines, draw(costs(graph, machines, unable=rules)), objective, constraints)


@st.composite
def costs(draw: st.DrawFn, graph: Graph, cluster: Cluster, *, unable: bool = True) -> CostTable:
    """Times per kind of device, so that equal devices stay equal; with `unable`, some ops cannot run somewhere."""
    kinds = [(device.kind, device.memory) for device in cluster]
    columns = {}
    for key in dict.fromkeys(kinds):
        column = [draw(eighths(12)) for _ in range(graph.n_ops)]
        if unable and draw(st.integers(0, 6)) == 0:
            column[draw(st.integers(0, graph.n_ops - 1))] = math.inf
        columns[key] = column
    if draw(st.integers(0, 4)) == 0:
        columns = dict.fromkeys(columns, next(iter(columns.values())))
    transfer = np.zeros((graph.n_tensors, len(cluster.class_bandwidth)))
    for tensor in range(graph.n_tensors):
        transfer[tensor, 1:] = [draw(eighths(3)) for _ in range(transfer.shape[1] - 1)]
    return CostTable.given(np.array([columns[key] for key in kinds]).T.reshape(graph.n_ops, -1), transfer)
