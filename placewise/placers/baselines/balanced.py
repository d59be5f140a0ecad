"""balanced: an even split by memory along the order of the ops, as people do by hand.

The rule of Accelerate's "balanced" device map, with a dynamic program along the order in place of greedy filling, so
that a split that fits is found if there is one along that order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, frozen, sealed
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Proposal, Reason
from placewise.model.tables import Edges
from placewise.placers.base import PlacerInfo, SearchContext, Stopwatch
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import count_first_uses, may_run
from placewise.placers.shared.stages.line_split import LineSplit, find_best_split
from placewise.simulate.contiguity import components

MANY_OPS = 200_000
"""From this size on, a cut by cumulated bytes is tried first: the dynamic program prices every op on every device."""
HALVINGS = 50
"""Of the interval in which the largest share is sought."""


class BalancedPlacer:
    """Equal bytes on every accelerator; host devices take only what fits or may run nowhere else."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="balanced",
        summary="an even split by memory along the order of the ops",
        source="Hugging Face Accelerate, device_map='balanced'",
    )

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The most even split of the order, or a note of why there is none."""
        problem, watch = search.problem, search.watch
        try:
            device, _ = fit_memory(problem, partial(_split_evenly, problem, watch))
        except KeyboardInterrupt:
            return Proposal(None, reason=Reason.INTERRUPTED)
        reason = Reason.TIME_LIMIT if watch.out else Reason.FINISHED
        if device is None:
            return Proposal(None, reason=reason, notes=("no split along the order of the ops fits in memory",))
        return Proposal(Placement(relabel(problem, device)), reason=reason)


def _split_evenly(problem: Problem, watch: Stopwatch, capacity: Floats) -> Ints | None:
    """The split [n_ops] with the smallest largest share within `capacity` [n_devices].

    It splits the chain of components if that is possible, else, where rules allow it, the blocks in their order.
    """
    host = problem.cluster.is_host
    if not any(problem.allowed[:, d].any() for d in np.flatnonzero(~host).tolist()):
        host = np.zeros_like(host)
    component, n_components = components(problem)
    if problem.n_ops > MANY_OPS:
        device = _cut_by_bytes(problem, component, n_components, capacity, frozen(np.flatnonzero(~host), np.int32))
        if device is not None:
            return device
    stranded = ~may_run(problem, component, n_components)[:, ~host].any(axis=1)
    if problem.constraints.shaped or not np.any(stranded):
        device = _split_order(problem, problem.graph, watch, component, n_components, problem.allowed, capacity, host)
        if device is not None or problem.constraints.shaped:
            return device
    block, n = problem.block, problem.n_blocks
    allowed = may_run(problem, block, n)
    aside = np.asarray(~allowed[:, ~host].any(axis=1))[block]
    assignment = np.where(allowed & host, capacity, -1.0).argmax(axis=1)[block]
    lighter = _drop_memory(problem.graph, aside)
    device = _split_order(problem, lighter, watch, block, n, problem.allowed | aside[:, None], capacity, host)
    return None if device is None else np.where(aside, assignment, device).astype(np.int32)


def _cut_by_bytes(problem: Problem, component: Ints, n: int, capacity: Floats, devices: Ints) -> Ints | None:
    """The components in their order, cut with the smallest largest share; None where that is not known to be allowed.

    Takes equal devices that may run every op. A share is feasible if filling device after device up to it leaves
    nothing over (chains on chains by bisection: Pinar and Aykanat, J. Parallel Distrib. Comput. 64, 2004, section 4).
    """
    alike = len(devices) and (capacity[devices] == capacity[devices[0]]).all()
    if not alike or not problem.allowed[:, devices].all():
        return None
    amounts = count_first_uses(problem.graph) + 1.0
    filled = np.cumsum(np.bincount(component, weights=amounts, minlength=n))

    def cut(share: float) -> Ints:
        ends, start = np.zeros(len(devices), np.int32), 0.0
        for which in range(len(devices)):
            ends[which] = np.searchsorted(filled, start + share, side="right")
            start = filled[ends[which] - 1] if ends[which] else 0.0
        return ends

    least, most = filled[-1] / len(devices), float(capacity[devices[0]])
    if cut(most)[-1] < n:
        return None
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        least, most = (least, middle) if cut(middle)[-1] == n else (middle, most)
    stage = np.searchsorted(cut(most), np.arange(n), side="right")
    return devices[stage][component]


def _split_order(
    problem: Problem,
    graph: Graph,
    watch: Stopwatch,
    group: Ints,
    n: int,
    allowed: Bools,
    capacity: Floats,
    host: Bools,
) -> Ints | None:
    """A split without host devices if possible; else with as few bytes as possible on hosts, and the rest even."""
    order = (np.arange(n, dtype=np.int32),)
    held = count_first_uses(graph)
    amounts = (held + 1.0)[:, None]  # one more byte per op, so that ops without bytes spread as well

    def split(room: Floats, loads: Floats) -> LineSplit:
        if not allowed.all():
            loads[~allowed] = np.inf
        alike = _build_load_problem(problem, graph, sealed(loads))
        return find_best_split(alike, group, order, room, lambda *_: not watch.out).heard()

    if not host.any() or held.sum() <= capacity[~host].sum():
        alone = split(capacity, np.where(host, np.inf, amounts))
        if alone.device is not None or not host.any():
            return alone.device
    least = split(capacity, np.where(host, amounts, 0.0)).value
    tight = np.where(host, np.minimum(capacity, np.ceil(least * (1 + 1e-9))), capacity)
    return split(tight, np.where(host, 0.0, amounts)).device


def _build_load_problem(problem: Problem, graph: Graph, loads: Floats) -> Problem:
    """A max-load problem of loads [n_ops, n_devices], inf where forbidden; no transfers, no rule but the order."""
    devices = tuple(replace(device, unsupported=frozenset(), supported=None) for device in problem.cluster)
    costs = CostTable.given(loads, sealed(np.zeros_like(problem.costs.transfer_seconds)))
    objective = Objective("throughput", memory=problem.objective.memory)
    rules = Constraints(contiguous=problem.constraints.ordered, ordered=problem.constraints.ordered)
    return Problem(graph, replace(problem.cluster, devices=devices), costs, objective, rules)


def _drop_memory(graph: Graph, stranded: Bools) -> Graph:
    """The graph without the memory of some ops [n_ops]."""
    edges = graph.weight_edges
    kept = ~stranded[edges.consumer]
    return replace(
        graph,
        ops=replace(graph.ops, state_bytes=np.where(stranded, 0, graph.ops.state_bytes)),
        weight_edges=Edges(edges.value[kept], edges.consumer[kept], edges.position[kept]),
    )
