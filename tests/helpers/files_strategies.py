"""Random graphs, clusters and problems with every column filled, for the tests of the files room."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Longs
from placewise.model.costs import CostTable
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph, Source
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.tables import Phase

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
SECONDS = st.floats(0, 1e300, allow_nan=False)
DTYPE = st.sampled_from(DTYPES)
SHAPES = st.lists(st.integers(-1, 1 << 20), max_size=3)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | NAMES
    | st.sampled_from(["$float", "$bytes", ""])
    | st.binary(max_size=4)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(NAMES | st.sampled_from(["$float", "$object"]), inner, max_size=2)
    ),
    max_leaves=6,
)
ATTRIBUTES = st.dictionaries(NAMES | st.just("$bytes"), VALUES, max_size=3)
SOURCES = st.none() | st.builds(
    Source,
    path=NAMES,
    sha256=NAMES,
    format=NAMES,
    options=st.dictionaries(NAMES, st.integers() | NAMES | st.lists(st.integers(0, 9)).map(tuple), max_size=2),
    view=st.sampled_from(["raw", "folded"]),
    transforms=st.lists(NAMES, max_size=2).map(tuple),
)


@st.composite
def graphs(draw: st.DrawFn, *, max_ops: int = 8) -> Graph:
    """A graph whose every column varies; ops are numbered so that an edge goes from a lower id to a higher one."""
    builder = GraphBuilder()
    names = draw(st.lists(NAMES, max_size=max_ops, unique=True))
    weights = [
        builder.add_weight(f"w{i}", shape=draw(SHAPES), dtype=draw(DTYPE), storage=draw(st.none() | st.integers(0, 3)))
        for i in range(draw(st.integers(0, 2)))
    ]
    tensors = [
        builder.add_tensor(-1, shape=draw(SHAPES), nbytes=draw(st.integers(0, 1 << 40)))
        for _ in range(draw(st.integers(0, 2)))
    ]
    later = draw(st.integers(0, len(names)))
    phased = draw(st.booleans())
    for number, name in enumerate(names):
        op = builder.add_op(
            name,
            draw(st.sampled_from(["MatMul", "Add", "Größe"])),
            scope=draw(NAMES),
            attributes=draw(ATTRIBUTES),
            dtype=draw(DTYPE),
            backward=draw(st.booleans()),
            group=draw(st.integers(-1, 2)),
            state_bytes=draw(st.integers(0, 1 << 40)),
            origin=draw(st.lists(st.integers(0, 1 << 40), max_size=2)),
            phase=int(phased and number >= later),
        )
        for tensor in draw(st.lists(st.sampled_from(tensors), max_size=3)) if tensors else []:
            builder.add_edge(tensor, op)
        for weight in weights[number % 2 :]:
            builder.use_weight(weight, op)
        for _ in range(draw(st.integers(0, 2))):
            size, output = draw(st.integers(0, 1 << 40)), draw(st.booleans())
            tensors.append(builder.add_tensor(op, shape=draw(SHAPES), dtype=draw(DTYPE), nbytes=size, output=output))
    return builder.build(draw(SOURCES), (Phase("prefill"), Phase("decode", draw(st.integers(1, 99)))) if phased else ())


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One to four devices, each linked with host memory in both directions."""
    names = draw(st.lists(NAMES.filter(lambda name: name not in ("", HOST)), min_size=1, max_size=4, unique=True))
    positive = st.floats(1e-9, math.inf, exclude_min=True)
    devices = tuple(
        Device(
            name,
            kind=draw(st.sampled_from(["cpu", "accelerator"])),
            memory=draw(st.floats(0, math.inf)),
            reserved=draw(st.floats(0, 1e12)),
            peak_flops=draw(st.dictionaries(DTYPE, positive, max_size=2)),
            memory_bandwidth=draw(positive),
            op_overhead=draw(SECONDS),
            call_overhead=draw(SECONDS),
            efficiency=draw(st.dictionaries(NAMES, positive, max_size=2)),
            streams=draw(st.integers(1, 4)),
            supported=draw(st.none() | st.just(frozenset({"Conv", "Größe"}))),
            unsupported=draw(st.frozensets(st.sampled_from(["MatMul", "Add", "Größe"]), max_size=2)),
            available=draw(st.booleans()),
            notes=tuple(draw(st.lists(NAMES, max_size=2))),
        )
        for name in names
    )
    speed, wire = st.floats(1.0, 1e12) | st.just(math.inf), st.sampled_from(["", "pcie"])
    links = tuple(
        Link(*ends, draw(speed), draw(st.floats(0, 1)), draw(wire))
        for name in names
        for ends in ((name, HOST), (HOST, name))
    )
    return Cluster(devices, links, draw(st.sampled_from(["direct", "staged"])))


@st.composite
def costs_for(draw: st.DrawFn, graph: Graph, cluster: Cluster) -> CostTable:
    """A valid cost table with several sources; some ops cannot run on some devices."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    shape = graph.n_ops, len(cluster)
    op_seconds = random.exponential(size=shape)
    op_seconds[random.random(shape) < 0.2] = math.inf
    transfers = random.exponential(size=(graph.n_tensors, len(cluster.class_bandwidth)))
    transfers[:, 0] = 0
    source = random.integers(0, 2, shape).astype(np.int8)
    return CostTable(op_seconds, transfers, source, ("roofline", "given"), "measured")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A problem with every field filled."""
    graph, cluster = draw(graphs()), draw(clusters())
    anything = Rule(".*|", draw(st.sampled_from(cluster.names)))
    rules = st.just(()) if not graph.n_ops else st.sampled_from([(), (anything,)])
    objective = Objective(
        draw(st.sampled_from(["throughput", "latency"])),
        draw(st.sampled_from(["blocking", "overlap", "duplex"])),
        draw(st.sampled_from(["operator", "subgraph", "sequential"])),
        draw(st.sampled_from(["live", "resident", "sum"])),
        step_samples=draw(st.integers(0, 9)),
    )
    constraints = Constraints(
        draw(rules), draw(rules), draw(st.booleans()), draw(st.floats(0, 0.99)), draw(st.booleans()),
        draw(st.integers(0, 9)),
    )  # fmt: skip
    warnings = tuple(draw(st.lists(NAMES, max_size=2)))
    return Problem(graph, cluster, draw(costs_for(graph, cluster)), objective, constraints, warnings)


@st.composite
def placements_for(draw: st.DrawFn, problem: Problem) -> Placement:
    """Any complete placement, with or without calls and an order."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    device = random.integers(0, problem.n_devices, problem.n_ops)
    call = random.integers(0, 9, problem.n_ops) if draw(st.booleans()) else None
    order = random.permutation(problem.n_ops) if draw(st.booleans()) else None
    return Placement(device, call, order, _replicas(draw, device.tolist(), problem.n_devices))


def _replicas(draw: st.DrawFn, device: list[int], n_devices: int) -> Longs | None:
    """Unused devices that repeat the stages of others, or no column."""
    if draw(st.booleans()):
        return None
    free = [d for d in range(n_devices) if d not in device]
    stage = np.arange(n_devices)
    for d in free:
        stage[d] = draw(st.sampled_from([d, *device]))
    return stage


def columns_of(thing: object, prefix: str = "") -> dict[str, object]:
    """Every array of a model object as (dtype, shape, bytes), everything else as it is, by dotted name."""
    found: dict[str, object] = {}
    for name in thing.__dataclass_fields__:  # type: ignore[attr-defined]
        value, label = getattr(thing, name), f"{prefix}{name}"
        if isinstance(value, np.ndarray):
            found[label] = value.dtype.str, value.shape, value.tobytes()
        elif hasattr(value, "__dataclass_fields__"):
            found |= columns_of(value, f"{label}.")
        else:
            found[label] = value
    return found
