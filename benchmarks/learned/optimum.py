"""The optimum of `sequential` execution on one accelerator and the host: a minimum cut.

There the value is a sum: the seconds of every op where it runs, and of every tensor that is needed at the other
location, once. Such a sum over two locations is the value of a cut between them (Stone 1977, Multiprocessor scheduling
with the aid of network flow algorithms), with two more nodes per tensor so that it is paid once. It holds where calls
cost nothing and no limit of memory can bind.
"""

from __future__ import annotations

import numpy as np
from ortools.graph.python.max_flow import SimpleMaxFlow

from placewise.errors import PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.learned.pricing import always_fits

GRAIN = 1e-15
"""Seconds that a unit of capacity stands for: the answer is exact to half of it per arc."""
NEVER = 10**17


def sequential_optimum(problem: Problem) -> Placement:
    """The best placement; raises PlacerError where the problem is of another kind."""
    why = _unlike(problem)
    if why:
        raise PlacerError(f"no cut gives the optimum: {why}")
    cluster, costs, graph = problem.cluster, problem.costs, problem.graph
    host = int(np.flatnonzero(cluster.is_host)[0])
    other, n_blocks = 1 - host, problem.n_blocks
    source, sink = n_blocks + 2 * graph.n_tensors, n_blocks + 2 * graph.n_tensors + 1
    tails: list[int] = []
    heads: list[int] = []
    sizes: list[int] = []

    def arc(tail: int, head: int, size: float) -> None:
        tails.append(tail)
        heads.append(head)
        sizes.append(NEVER if not np.isfinite(size) else min(round(size / GRAIN), NEVER))

    seconds = np.where(problem.allowed, costs.op_seconds, np.inf)
    for device, ends in ((other, "from"), (host, "to")):
        summed = np.zeros(n_blocks)
        np.add.at(summed, problem.block, seconds[:, device])
        for block in range(n_blocks):  # the side of the source is the host
            arc(*((source, block) if ends == "from" else (block, sink)), summed[block])
    out, back = (
        costs.transfer_seconds[:, _link(problem, -1, other)],
        costs.transfer_seconds[:, _link(problem, other, -1)],
    )
    for tensor in range(graph.n_tensors):
        maker = int(graph.tensors.producer[tensor])
        first = source if maker < 0 else int(problem.block[maker])
        sent, returned = n_blocks + 2 * tensor, n_blocks + 2 * tensor + 1
        readers = {int(problem.block[op]) for op in graph.consumers_of(tensor)}
        readers |= {source} if graph.tensors.output[tensor] else set()
        arc(first, sent, float(out[tensor]))
        arc(returned, first, float(back[tensor]))
        for reader in readers - {first}:
            arc(sent, reader, np.inf)
            arc(reader, returned, np.inf)
    flow = SimpleMaxFlow()
    flow.add_arcs_with_capacity(np.array(tails, np.int32), np.array(heads, np.int32), np.array(sizes, np.int64))
    assert flow.solve(source, sink) == flow.OPTIMAL
    home = np.full(n_blocks, other, np.int32)
    near = np.array(flow.get_source_side_min_cut())
    home[near[near < n_blocks]] = host
    return Placement(home[problem.block])


def _link(problem: Problem, source: int, target: int) -> int:
    """The class of a link between locations; −1 is the host."""
    return int(problem.cluster.link_class[source, target])


def _unlike(problem: Problem) -> str:
    cluster = problem.cluster
    if problem.objective.kind != "latency" or problem.objective.execution != "sequential":
        return "the execution is not sequential"
    if len(cluster) != 2 or cluster.is_host.sum() != 1:
        return "there are not one accelerator and the host"
    if any(device.call_overhead for device in cluster):
        return "calls cost time"
    if not always_fits(problem):
        return "memory may bind"
    return ""
