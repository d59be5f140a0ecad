"""Random small problems whose ops may be split, repeated and recomputed, on any devices and links."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from piper_files import amount
from tiny_problems import Draw

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.ways import StageGroup, Ways, classify_devices

DEGREES = (1, 2, 4)


def split_problem(
    seed: int, *, units: int = 0, devices: int = 0, classes: int = 1, transfers: str = "staged",
    kind: str = "throughput", even: bool = True, most_ways: int = 2, hosts: bool = False, rules: bool = False,
    exact: bool | None = None, node_size: int = 0,
) -> Problem:  # fmt: skip
    """Problem number `seed`: 2 to 5 units on 1 to 8 devices of so many classes.

    `even`: all devices of a class have the same links, and one node holds them all. `hosts`: some
    devices work in host memory. `node_size`: so many devices are in a node, with slow direct links to others. `rules`:
    some ops may not run everywhere, and replicas are limited. `exact`: whole numbers, with ties (default: every other
    seed). Some units cost nothing.
    """
    draw, exact = Draw(seed), seed % 2 == 0 if exact is None else exact
    n = units or draw.whole(2, 5)
    count = devices or draw.whole(1, 8)
    first = [0, *sorted(draw.whole(0, count) for _ in range(classes - 1)), count]
    of_class = [c for c in range(classes) for _ in range(first[c + 1] - first[c])]
    graph, unit = _graph(draw, n)
    most = 12.0 * n
    room = [float(math.ceil(most * draw.one((2.0, 1.0, 0.5, 0.3, 0.2)))) for _ in range(classes)]
    accelerators = tuple(
        Device(f"d{number}", "cpu" if hosts and draw.chance(0.4) else "accelerator", memory=room[c], streams=c + 1)
        for number, c in enumerate(of_class)
    )
    links = _links(draw, accelerators, transfers, even)
    if node_size:
        links = tuple(replace(link, bandwidth=1.0) if _crosses(link, node_size) else link for link in links)
    cluster = Cluster(accelerators, links, transfers)  # type: ignore[arg-type]
    constraints = Constraints(replicas=0, contiguous=True)
    if rules:
        forbidden = (Rule(f"^op{draw.whole(0, n - 1)}$", draw.one(cluster.names)),) if draw.chance(0.6) else ()
        constraints = Constraints(replicas=draw.one((0, 1, 2)), contiguous=True, forbidden=forbidden)
    table = CostTable.given(np.ones((graph.n_ops, count)), np.zeros((graph.n_tensors, len(cluster.class_bandwidth))))
    objective = Objective(kind, memory="sum" if draw.chance(0.5) else "live")  # type: ignore[arg-type]
    problem = Problem(graph, cluster, table, objective, constraints)
    node = np.zeros(count) if even else np.sort([draw.whole(0, 1) for _ in range(count)])
    node = np.arange(count) // node_size if node_size else node
    kinds = classify_devices(cluster, problem.capacity)
    return problem.with_(ways=_ways(draw, unit, n, kinds, node, exact, most_ways, kind))


def _crosses(link: Link, node_size: int) -> bool:
    """Whether a link joins devices of two nodes."""
    ends = [int(end[1:]) // node_size for end in (link.source, link.target) if end != HOST]
    return len(set(ends)) > 1


def _graph(draw: Draw, n: int) -> tuple[Graph, list[int]]:
    """A chain of ops, one or two per unit."""
    builder, unit = GraphBuilder(), []
    for number in range(n):
        for part in range(draw.one((1, 1, 2))):
            op = builder.add_op(f"op{number}" + "b" * part, "Op")
            if op:
                builder.add_edge(op - 1, op)
            builder.add_tensor(op, nbytes=1)
            unit.append(number)
    return builder.build(), unit


def _links(draw: Draw, devices: tuple[Device, ...], transfers: str, even: bool) -> tuple[Link, ...]:
    names = [device.name for device in devices if not device.is_host]
    ends = [(name, HOST) for name in names] + [(HOST, name) for name in names]
    if transfers == "direct":
        ends += [(a, b) for a in names for b in names if a != b and (even or draw.chance(0.7))]
    rates = (4.0, 4.0, 16.0, 64.0)
    usual = {c: (draw.one(rates), draw.one((0.0, 0.0, 0.25))) for c in {device.streams for device in devices}}
    streams = {device.name: device.streams for device in devices} | {HOST: 0}
    links = []
    for a, b in ends:
        rate = usual[streams[a] or streams[b]] if even else (draw.one(rates), draw.one((0.0, 0.0, 0.25)))
        links.append(Link(a, b, *rate))
    return tuple(links)


def _ways(
    draw: Draw, unit: list[int], n: int, kinds: np.ndarray, node: np.ndarray, exact: bool, most_ways: int, kind: str
) -> Ways:
    degrees = [t for t in DEGREES if draw.chance(0.7)] or [1]
    makers = [number for number in range(n - 1) for _ in range(draw.one((1, 1, 2)) if draw.chance(0.8) else 0)]
    readers = [
        sorted({draw.whole(maker + 1, min(n - 1, maker + 2)) for _ in range(draw.one((1, 1, 2, 3)))})
        for maker in makers
    ]
    trains = kind == "throughput" and draw.chance(0.7)
    rows, n_classes = [], int(kinds.max()) + 1
    for number in range(n):
        free = draw.chance(0.2)
        for t in degrees if free else [t for t in degrees if draw.chance(0.9)] or degrees[:1]:
            for late in range(draw.whole(1, most_ways)):
                seconds = [amount(draw, 8, exact) * draw.one((1, 2)) / t + 1.5 * late for _ in range(n_classes)]
                if n_classes > 1 and draw.chance(0.1):
                    seconds[draw.whole(0, n_classes - 1)] = math.inf
                gradients = amount(draw, 16, exact) if draw.chance(0.4) else 8.0 / t
                held = (amount(draw, max(1, 6 - 3 * late), exact), amount(draw, 4, exact), amount(draw, 2, exact))
                sync = [amount(draw, 4, exact) if t > 1 else 0.0 for _ in makers]
                if free:
                    seconds, gradients, held = [0.0] * n_classes, 0.0, (0.0, 0.0, 0.0)
                rows.append((number, t, late > 0, seconds, gradients, held, sync))
    return Ways(
        unit=np.array(unit),
        way_unit=np.array([row[0] for row in rows]),
        degree=np.array([row[1] for row in rows]),
        recompute=np.array([row[2] for row in rows]),
        name=tuple(f"way {number}" for number in range(len(rows))),
        seconds=np.array([row[3] for row in rows]),
        gradient_bytes=np.array([row[4] for row in rows]),
        bytes_in_flight=np.array([row[5][0] for row in rows]),
        held_bytes=np.array([row[5][1:] for row in rows]),
        parts=("weights", "other"),
        tensor_unit=np.array(makers, np.int32),
        tensor_bytes=np.array([amount(draw, 8, exact) for _ in makers]),
        reader_offsets=np.cumsum([0, *map(len, readers)]),
        reader=np.array([reader for row in readers for reader in row], np.int32),
        sync_bytes=np.array([row[6] for row in rows]).reshape(len(rows), len(makers)),
        device_class=kinds,
        node=node,
        microbatches=draw.one((1, 2, 4, 6, 8)) if trains else 1,
        passes=2 if trains else 1,
        gradient_factor=draw.one((2.0, 4.0)) if trains else 0.0,
        in_flight=draw.one(("1f1b", "1f1b", "gpipe", "one")) if trains else "one",
        workspace=np.array([amount(draw, 4, exact) if draw.chance(0.3) else 0.0 for _ in {row[1] for row in rows}]),
    )


def random_pipeline(draw: Draw, problem: Problem) -> Placement:
    """Stages along the units with random cuts, devices, degrees and ways; many break a rule."""
    ways = problem.require_ways()
    n, free = ways.n_units, [ways.class_members(kind).tolist() for kind in range(ways.n_classes)]
    everything = list(range(problem.n_devices))
    ends = sorted({draw.whole(1, n) for _ in range(draw.whole(0, 2))} | {n})
    unit_stage = np.searchsorted(ends, np.arange(n), side="right")
    groups, way = [], np.zeros(n, np.int32)
    for stage in range(len(ends)):
        members = np.flatnonzero(unit_stage == stage).tolist()
        shared = [t for t in DEGREES if all(len(ways.ways_of(unit, t)) for unit in members)]
        t, d, kind = draw.one(shared) if shared else 1, draw.one((1, 1, 2, 3)), draw.whole(0, ways.n_classes - 1)
        if draw.chance(0.1) or len(free[kind]) < t * d:
            kind = max(range(ways.n_classes), key=lambda one: len(free[one]))
            d = max(1, min(d, len(free[kind]) // t))
        taken, free[kind] = free[kind][: t * d], free[kind][t * d :]
        groups.append(StageGroup(tuple(taken or everything[: t * d]), d, t))
        for unit in members:
            fitting = ways.ways_of(unit, t).tolist() or ways.ways_of(unit).tolist()
            way[unit] = draw.one(fitting)
    return Placement.of_stages(ways, tuple(groups), unit_stage, way)
