"""Random pipelines on clusters of nodes, and the best of all their contiguous placements."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.problem import Constraints, Objective, Problem
from placewise.simulate import evaluate
from placewise.simulate.contiguity import contract


def cluster_of(shape: tuple[int, ...], speeds: tuple[float, ...], memory: float = math.inf) -> Cluster:
    """Accelerators in nodes in racks: ``shape`` (2, 3) is two nodes of three; ``speeds`` from the outer links in."""
    places = list(product(*(range(count) for count in shape)))
    name = {place: "d" + "".join(map(str, place)) for place in places}
    links = [Link(*ends, speeds[0] / 2) for place in places for ends in ((name[place], HOST), (HOST, name[place]))]
    for a, b in product(places, places):
        if a != b:
            shared = next(level for level, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
            links.append(Link(name[a], name[b], speeds[shared]))
    return Cluster(tuple(Device(name[place], memory=memory) for place in places), tuple(links), "direct")


def random_pipeline(
    seed: int, cluster: Cluster, n_ops: int, *, mode: str, training: bool = False, chain: bool = False
) -> Problem:
    """Ops mostly in a row with some branches and skips, or just in a row; seconds and bytes vary."""
    rng = np.random.default_rng(seed)
    graph = _graph(rng, n_ops, training, chain)
    seconds = np.repeat(rng.integers(1, 9, graph.n_ops)[:, None] / 8, len(cluster), axis=1)
    costs = CostTable.given(seconds, transfer_seconds_of(graph, cluster))
    objective = Objective("throughput", communication=mode, memory="sum")  # type: ignore[arg-type]
    return Problem(graph, cluster, costs, objective, Constraints(contiguous=True))


def _graph(rng: np.random.Generator, n_ops: int, training: bool, chain: bool) -> Graph:
    builder, made, edges = GraphBuilder(), list[int](), list[tuple[int, int]]()
    for op in range(n_ops):
        builder.add_op(f"f{op}", "Op", state_bytes=int(rng.integers(1, 4)), group=op if training else -1)
        sources = {op - 1} if op and (rng.random() < 0.85 or chain) else set()
        if op > 1 and rng.random() < 0.3 and not chain:
            sources.add(int(rng.integers(0, op - 1)))
        edges += [(source, op) for source in sources]
        for source in sources:
            builder.add_edge(made[source], op)
        made.append(builder.add_tensor(op, nbytes=int(rng.integers(1, 9))))
    gradient: dict[int, int] = {}
    for op in reversed(range(n_ops if training else 0)):
        twin = builder.add_op(f"b{op}", "Op", backward=True, group=op)
        for source, target in edges:
            if source == op:
                builder.add_edge(gradient[target], twin)
        gradient[op] = builder.add_tensor(twin, nbytes=int(rng.integers(1, 9)))
    return builder.build()


def optimum(problem: Problem) -> float:
    """The least max-load of all contiguous placements that keep memory, by trying them all; inf if there is none."""
    graph, count = contract(problem), problem.n_devices
    homes = np.array(list(product(range(count), repeat=graph.n)), np.int32)
    follows = np.zeros((len(homes), count, count), np.bool_)
    rows = np.arange(len(homes))
    for tail, head in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
        follows[rows, homes[:, tail], homes[:, head]] = True
    follows[:, np.arange(count), np.arange(count)] = False
    reach = follows.astype(np.float32)
    for _ in range(count.bit_length()):  # each product doubles the length of the paths that are known
        reach = np.minimum(reach + reach @ reach, 1)
    chains = homes[~(reach[:, np.arange(count), np.arange(count)] > 0).any(axis=1)]
    size = np.bincount(graph.component, weights=problem.graph.ops.state_bytes, minlength=graph.n)
    held = np.stack([(size * (chains == d)).sum(axis=1) for d in range(count)], axis=1)
    chains = chains[(held <= problem.capacity).all(axis=1)]
    return float(evaluate(problem, chains[:, graph.component]).min()) if len(chains) else math.inf
