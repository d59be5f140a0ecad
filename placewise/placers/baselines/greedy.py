"""greedy: fill one accelerator to its memory, then the next; the host takes the rest.

The latency baseline of Tarnawski et al., NeurIPS 2020, and of the program published with it. Their order follows a
branch to its end: of the components (blocks that no chain can separate) that are ready, the one that became ready last
comes first. Components that became ready together keep the order of the edges. Their program takes that order from the
file; this placer takes it from the order of the ops.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, offsets_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import MemoryFootprint, compute_footprint, may_run
from placewise.placers.shared.partitions.component_lines import fill_stages
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate.contiguity import Contraction, contract


class GreedyPlacer:
    """As few accelerators as memory allows, along one order of the ops: few transfers, no parallel work."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="greedy",
        summary="one accelerator filled after the other, the rest on the host",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), the greedy baseline for latency",
    )

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The filling, or a note of why there is none."""
        problem = search.problem
        graph = contract(problem)
        footprint = compute_footprint(problem, graph.component, graph.n)
        runs = may_run(problem, graph.component, graph.n)
        order = order_by_branch(problem, graph)
        try:
            device, _ = fit_memory(problem, partial(_fill_devices, problem, graph, footprint, runs, order))
            if device is None:
                device = _recover(problem, graph, footprint, runs, order)
        except KeyboardInterrupt:
            return Proposal(None, reason=Reason.INTERRUPTED)
        if device is None:
            return Proposal(None, notes=("filling the devices one after the other ran out of memory",))
        fault = find_broken_rule(problem, device)
        if fault:
            return Proposal(None, notes=(f"filling the devices one after the other is not valid: {fault}",))
        return Proposal(Placement(relabel(problem, device)))


def _recover(
    problem: Problem, graph: Contraction, footprint: MemoryFootprint, runs: Bools, order: list[int]
) -> Ints | None:
    """When filling runs out of memory: the filling with blocks moved until it fits, or any split of the same order."""
    if not problem.constraints.shaped:
        filled = _fill_devices(problem, graph, footprint, runs, order, problem.capacity, spill=True)
        moved = None if filled is None else repair(problem, filled)
        if moved is not None:
            return moved
    position = np.empty(graph.n, np.int32)
    position[order] = np.arange(graph.n, dtype=np.int32)
    device, _ = fit_memory(problem, partial(fill_stages, problem, graph, position))
    return device


def order_by_branch(problem: Problem, graph: Contraction) -> list[int]:
    """The components in a topological order where the component that became ready last comes next."""
    successors = _list_successors(problem, graph)
    missing = np.diff(graph.predecessor_offsets).tolist()
    _, first_op = np.unique(graph.component, return_index=True)
    ready = [c for c in np.argsort(first_op, kind="stable").tolist() if not missing[c]]
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        for c in successors[order[-1]]:
            missing[c] -= 1
            if not missing[c]:
                ready.append(c)
    return order


def _list_successors(problem: Problem, graph: Contraction) -> list[list[int]]:
    """The successors of every component, by its first edge to each; edges are sorted by producer and reader."""
    producer = np.repeat(problem.graph.tensors.producer, np.diff(problem.graph.consumer_offsets))
    reader = problem.graph.consumers
    tail, head = graph.edges()
    first = np.full(len(tail), len(producer))
    produced = np.flatnonzero(producer >= 0)
    produced = produced[np.lexsort((reader[produced], producer[produced]))]
    known = tail.astype(np.int64) * graph.n + head
    key = graph.component[producer[produced]].astype(np.int64) * graph.n + graph.component[reader[produced]]
    where = np.searchsorted(known, key)
    real = where < len(known)
    real[real] = known[where[real]] == key[real]
    np.minimum.at(first, where[real], np.flatnonzero(real))
    heads = head[np.lexsort((head, first, tail))].tolist()
    ends = offsets_of(tail, graph.n).tolist()
    return [heads[ends[c] : ends[c + 1]] for c in range(graph.n)]


def _fill_devices(
    problem: Problem,
    graph: Contraction,
    footprint: MemoryFootprint,
    runs: Bools,
    order: list[int],
    capacity: Floats,
    *,
    spill: bool = False,
) -> Ints | None:
    """The device of every op [n_ops] when devices are filled to `capacity` [n_devices]; None if some op has no room.

    With `spill` such an op goes to the roomiest device that may run it. An accelerator that was too full once is not
    tried again. One that may not run a component stays open for the next; the component goes to a host or to a later
    accelerator.
    """
    host = problem.cluster.is_host
    accelerators, hosts = np.flatnonzero(~host).tolist(), np.flatnonzero(host).tolist()
    ends = offsets_of(footprint.group, graph.n).tolist()
    state, storage, stored = footprint.state.tolist(), footprint.storage.tolist(), footprint.stored.tolist()
    used = [0] * problem.n_devices
    present: list[set[int]] = [set() for _ in used]
    assignment = np.full(graph.n, -1, np.int32)

    def try_place(component: int, d: int) -> bool:
        fresh = set(storage[ends[component] : ends[component + 1]]) - present[d]
        need = state[component] + sum(stored[s] for s in fresh)
        if used[d] + need > capacity[d]:
            return False
        used[d] += need
        present[d] |= fresh
        assignment[component] = d
        return True

    for component in order:
        can = runs[component]
        while accelerators and can[accelerators[0]] and not try_place(component, accelerators[0]):
            accelerators.pop(0)
        if assignment[component] < 0:
            rest = [*hosts, *accelerators[1:]] if accelerators else hosts
            if not any(try_place(component, d) for d in rest if can[d]):
                if not spill or not can.any():
                    return None
                assignment[component] = int(np.where(can, capacity, -1.0).argmax())
    return assignment[graph.component]
