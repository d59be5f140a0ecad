"""Tiny problems full of ties: whole seconds, many of them equal or zero, with everything that a problem may hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.problem import Constraints, Headroom, Objective, Problem, Rule

T = TypeVar("T")
MODES = ("blocking", "overlap", "duplex")
EXECUTIONS = ("operator", "subgraph", "sequential")


class Draw:
    """Choices from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def whole(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        return bool(self._rng.random() < share)

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.whole(0, len(choices) - 1)]


def tiny_problem(seed: int, *, nasty: bool = False) -> Problem:
    """Problem number `seed`: 3 to 7 ops on 1 to 3 devices; `nasty` adds rules, scarce memory and odd shapes."""
    draw = Draw(seed)
    objective = _objective(draw, seed)
    training = draw.chance(0.5 if objective.kind == "throughput" else 0.15)
    cluster = _cluster(draw, nasty)
    least = 1 if nasty else 4
    n_ops = draw.whole(least, 7 if len(cluster) < 3 and objective.kind == "throughput" else 5 + (len(cluster) < 3))
    graph = _graph(draw, n_ops, training, nasty)
    problem = Problem(graph, cluster, _costs(draw, graph, cluster, nasty), objective)
    problem = problem.with_(constraints=_constraints(draw, problem, nasty))
    return _scarce(draw, problem) if draw.chance(0.5 if nasty else 0.2) else problem


def _objective(draw: Draw, seed: int) -> Objective:
    memory = "live" if draw.chance(0.5) else "sum"
    if seed % 2:
        schedule = "gpipe" if draw.chance(0.3) else "1f1b"
        samples = draw.one((0, 0, 2, 3))
        return Objective("throughput", MODES[seed // 2 % 3], memory=memory, schedule=schedule, step_samples=samples)  # type: ignore[arg-type]
    return Objective("latency", execution=EXECUTIONS[seed // 2 % 3], memory=memory)  # type: ignore[arg-type]


def _cluster(draw: Draw, nasty: bool) -> Cluster:
    count, alike = draw.one((1, 2, 2, 2, 3, 3)), draw.chance(0.4)
    devices = [
        Device(
            f"d{number}",
            "cpu" if draw.chance(0.3) and not alike else "accelerator",
            streams=draw.one((1, 1, 2, 3)) if not alike else 1,
            call_overhead=float(draw.one((0, 0, 1))) if not alike else 1.0,
            available=not (nasty and number and draw.chance(0.05)),
            unsupported=frozenset({"Relu"}) if nasty and draw.chance(0.1) else frozenset(),
        )
        for number in range(count)
    ]
    names = [device.name for device in devices if not device.is_host]
    transfers = draw.one(("staged", "direct"))
    ends = [(name, HOST) for name in names] + [(HOST, name) for name in names]
    if transfers == "direct":
        ends += [(a, b) for a in names for b in names if a != b and draw.chance(0.6)]
    wires, equal = draw.chance(0.3), alike or draw.chance(0.5)
    links = tuple(
        Link(a, b, 1.0 if equal else draw.one((1.0, 2.0)), shared="bus" if wires and draw.chance(0.6) else "")
        for a, b in ends
    )
    return Cluster(tuple(devices), links, transfers)  # type: ignore[arg-type]


def _graph(draw: Draw, n_ops: int, training: bool, nasty: bool) -> Graph:
    builder, tensors = GraphBuilder(), []
    weights = [
        builder.add_weight(f"w{number}", shape=(draw.whole(0, 3),), dtype="int8", storage=draw.whole(0, 2))
        for number in range(draw.whole(0, 2))
    ]
    for _ in range(draw.whole(0, 2)):
        tensors.append(builder.add_tensor(-1, nbytes=draw.whole(0, 2), output=nasty and draw.chance(0.1)))
    forward = (n_ops + 1) // 2 if training else n_ops
    grouped = draw.chance(0.4 if nasty else 0.15)
    for number in range(n_ops):
        late = number >= forward
        twin = n_ops - 1 - number if late else number
        group = twin if training and draw.chance(0.7) else draw.whole(0, 1) if grouped and draw.chance(0.5) else -1
        op = builder.add_op(
            f"op{number}", draw.one(("Op", "Op", "Identity", "Relu")), backward=late, group=group,
            state_bytes=draw.one((0, 0, 1, 2)),
        )  # fmt: skip
        for _ in range(draw.one((0, 1, 1, 2, 2, 3)) if tensors else 0):
            builder.add_edge(tensors[max(0, len(tensors) - draw.whole(1, 4))], op)
        for weight in weights:
            if draw.chance(0.4):
                builder.use_weight(weight, op)
        for _ in range(draw.one((0, 1, 1, 1, 2))):
            tensors.append(builder.add_tensor(op, nbytes=draw.whole(0, 2), output=draw.chance(0.2)))
    return builder.build()


def _costs(draw: Draw, graph: Graph, cluster: Cluster, nasty: bool) -> CostTable:
    times = draw.one(((0, 1, 1, 2), (1,), (0, 1, 2, 3), (1, 2, 3, 4)))
    kinds = [device.kind for device in cluster]
    seconds = np.array([[draw.one(times) for _ in cluster] for _ in range(graph.n_ops)], float)
    seconds = seconds.reshape(graph.n_ops, len(cluster))
    if draw.chance(0.4):
        seconds = seconds[:, [kinds.index(kind) for kind in kinds]]
    if nasty:
        for op in range(graph.n_ops):
            if draw.chance(0.1):
                seconds[op, draw.whole(0, len(cluster) - 1)] = math.inf
    moves = draw.one(((1,), (2,), (0, 1), (0, 1, 2), (1, 3)))
    moved = np.zeros((graph.n_tensors, len(cluster.class_bandwidth)))
    for tensor in range(graph.n_tensors):
        same = draw.one(moves)
        moved[tensor, 1:] = [same if draw.chance(0.5) else draw.one(moves) for _ in moved[tensor, 1:]]
    return CostTable.given(seconds, moved)


def _constraints(draw: Draw, problem: Problem, nasty: bool) -> Constraints:
    names, throughput = problem.cluster.names, problem.objective.kind == "throughput"
    shape = draw.one(({}, {}, {"contiguous": True}, {"convex": True}, {"contiguous": True, "ordered": True}))
    rules = Constraints(**shape)  # type: ignore[arg-type]
    if throughput and not rules.ordered and draw.chance(0.4):
        rules = replace(rules, replicas=draw.one((0, 2)))
    if not nasty:
        return rules
    ops = problem.graph.ops.name
    if draw.chance(0.15):
        rules = replace(rules, pins=(Rule(f"^{draw.one(ops)}$", draw.one(names)),))
    if draw.chance(0.15):
        rules = replace(rules, forbidden=(Rule(f"^{draw.one(ops)}$", draw.one(names)),))
    if draw.chance(0.15) and len(ops) > 1:
        rules = replace(rules, together=((ops[0], draw.one(ops[1:])),))
    return rules


def _scarce(draw: Draw, problem: Problem) -> Problem:
    """The problem with exactly as much memory as some placement needs, or a byte less."""
    from independent_judge import judge_independently

    from placewise.model.placement import Placement

    homes = [[d for d in range(problem.n_devices) if problem.allowed[problem.block == block, d].all()]
             for block in range(problem.n_blocks)]  # fmt: skip
    chosen = [draw.one(places or [0]) for places in homes]
    needs = judge_independently(problem, Placement(np.array(chosen, np.int32)[problem.block])).bytes
    less, kept = float(draw.chance(0.3)), draw.chance(0.3)
    devices = tuple(
        replace(device, memory=max(need - less, 0.0) + kept * 2, reserved=float(kept))
        for device, need in zip(problem.cluster, needs, strict=True)
    )
    spare = (Headroom(devices[0].name, bytes=1.0),) if kept else ()
    cluster = Cluster(devices, problem.cluster.links, problem.cluster.transfers)
    return problem.with_(cluster=cluster, constraints=replace(problem.constraints, spare=spare))
