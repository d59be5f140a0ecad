"""Small training problems and pipelines for the objective `step`, with everything that a stage may exchange."""

from __future__ import annotations

import numpy as np
from tiny_problems import Draw

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.problem import Constraints, Objective, Problem
from placewise.simulate.contiguity import contract
from placewise.simulate.step.orders import CHUNKED, SCHEDULES, count_stages, refuse_microbatches
from placewise.simulate.step.stage_costs import Pipeline


def layered_graph(draw: Draw, layers: int, *, skips: bool = True, tied: bool = True) -> Graph:
    """A chain of layers with weights, their gradients and updates; skips, and a weight that two layers share."""
    builder = GraphBuilder()
    x = builder.add_tensor(-1, nbytes=draw.whole(0, 4), name="x")
    shared = tied and layers > 2 and draw.chance(0.5)
    users = {0: "w0", layers - 1: "w0" if shared else f"w{layers - 1}"}
    made, weights = [x], {}
    for layer in range(layers):
        op = builder.add_op(f"f{layer}", "MatMul", group=layer)
        builder.add_edge(made[-1], op)
        if skips and layer > 1 and draw.chance(0.4):
            builder.add_edge(made[draw.whole(0, layer - 2)], op)
        name = users.get(layer, f"w{layer}")
        if name not in weights:
            weights[name] = builder.add_weight(name, shape=(draw.whole(1, 5),), dtype="int8")
        builder.use_weight(weights[name], op)
        made.append(builder.add_tensor(op, nbytes=draw.whole(0, 6), name=f"a{layer}", output=layer == layers - 1))
    gradient, sums = made[-1], dict[str, int]()
    for layer in reversed(range(layers)):
        wide = builder.add_op(f"d{layer}", "Op", backward=True, group=layer)
        builder.add_edge(gradient, wide)
        if draw.chance(0.5):
            builder.add_edge(made[layer], wide)
        kernel = builder.add_op(f"w{layer}/grad", "Op", backward=True, group=layer)
        builder.add_edge(gradient, kernel)
        builder.add_edge(made[layer], kernel)
        own = builder.add_tensor(kernel, nbytes=draw.whole(1, 5), name=f"g{layer}")
        name = users.get(layer, f"w{layer}")
        if name in sums:
            add = builder.add_op(f"sum{layer}", "Add", backward=True, group=layer)
            builder.add_edge(sums[name], add)
            builder.add_edge(own, add)
            own = builder.add_tensor(add, nbytes=draw.whole(1, 5), name=f"s{layer}")
        sums[name] = own
        if layer:
            gradient = builder.add_tensor(wide, nbytes=draw.whole(0, 6), name=f"b{layer}")
            builder.add_edge(gradient, builder.add_op(f"e{layer - 1}", "Op", backward=True, group=layer - 1))
    for layer in reversed(range(layers)):
        name = users.get(layer, f"w{layer}")
        if name not in sums:
            continue
        first = 0 if shared and layer == layers - 1 else layer
        update = builder.add_op(f"{name}/update", "optimizer::Adam", backward=True, group=first, state_bytes=3)
        builder.add_edge(sums.pop(name), update)
        if shared and name == "w0":
            new = builder.add_tensor(update, nbytes=2, name="new")
            renew = builder.add_op("renew", "optimizer::Renew", backward=True, group=layers - 1)
            builder.add_edge(new, renew)
    return builder.build()


def step_problem(
    seed: int, *, wires: bool = False, hosts: bool = True, memory: float = np.inf, alike: bool = False,
    microbatches: int = 0, schedule: str = "auto", layers: int = 0, devices: int = 0, replicas: int = 1,
) -> Problem:  # fmt: skip
    """Problem number `seed`: layers on 1 to 4 devices, with links of any kind; times are whole eighths and above 0."""
    draw = Draw(seed)
    graph = layered_graph(draw, layers or draw.whole(4, 8))
    count = devices or draw.whole(1, 4)
    units = tuple(
        Device(f"d{d}", "cpu" if hosts and not alike and draw.chance(0.25) else "accelerator", memory)
        for d in range(count)
    )
    names = [device.name for device in units if not device.is_host]
    transfers = draw.one(("staged", "direct"))
    ends = [(a, HOST) for a in names] + [(HOST, a) for a in names]
    ends += [(a, b) for a in names for b in names if a != b] if transfers == "direct" else []
    links = tuple(
        Link(a, b, 4.0 if alike else float(draw.one((2, 4, 8))), shared=draw.one(("", "bus")) if wires else "")
        for a, b in ends
    )
    cluster = Cluster(units, links, transfers)  # type: ignore[arg-type]
    seconds = np.array([[draw.whole(1, 16) / 8 for _ in range(1 if alike else count)] for _ in range(graph.n_ops)])
    seconds = np.repeat(seconds, count, axis=1) if alike else seconds
    costs = CostTable.given(seconds, transfer_seconds_of(graph, cluster))
    objective = Objective("step", schedule=schedule)  # type: ignore[arg-type]
    m = microbatches or draw.whole(1, 6)
    return Problem(graph, cluster, costs, objective, Constraints(contiguous=True, microbatches=m, replicas=replicas))


def random_step_pipeline(seed: int, problem: Problem) -> Pipeline | None:
    """A pipeline of the problem under some schedule, cut anywhere; None where the model has too few parts."""
    draw = Draw(seed)
    graph = contract(problem)
    count = draw.whole(1, problem.n_devices)
    m = problem.constraints.microbatches
    schedule = draw.one([s for s in SCHEDULES if not refuse_microbatches(s, count, m)])
    stages = count_stages(schedule, count)
    if stages > graph.n or (schedule in CHUNKED and count == 1):
        return None
    cuts = sorted(np.random.default_rng(seed).permutation(np.arange(1, graph.n))[: stages - 1].tolist())
    stage = np.searchsorted(np.array(cuts), np.arange(graph.n), side="right")
    devices = tuple(np.random.default_rng(seed + 1).permutation(problem.n_devices)[:count].tolist())
    return Pipeline(schedule, (devices,), stage[graph.component].astype(np.int32), stages)
