"""Depth-first topological orders of the components, and the placement that splits one order at best."""

from __future__ import annotations

from typing import Literal

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import Progress, SearchContext
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import interchangeable, relabel_placement
from placewise.placers.shared.stages.line_split import LineSplit, find_best_split
from placewise.placers.shared.stages.replicated_stages import build_replica_column
from placewise.simulate.contiguity import Contraction

MAX_STATES = 1 << 16


def explain_refusal(problem: Problem, name: str) -> str | None:
    """None, or why no dynamic program that counts devices can take the problem."""
    if problem.objective.kind != "throughput":
        return f"{name} minimizes the max-load of a pipeline, not latency"
    if problem.constraints.ordered:
        return None
    kind, states = interchangeable(problem).tolist(), 1
    for k in set(kind):
        states *= min(kind.count(k), problem.n_blocks * problem.max_replicas) + 1
    if states > MAX_STATES:
        return (
            f"{name} counts the devices in use kind by kind: {len(kind)} devices of {len(set(kind))} kinds make "
            f"{states:,} ways, and {MAX_STATES:,} are the most: use auto or greedy"
        )
    return None


def sort_last_ready_first(
    problem: Problem, graph: Contraction, *, start: Literal["lowest", "highest"] = "lowest"
) -> Ints:
    """The position [n] of each component in the depth-first order of the program published by Tarnawski et al. (2020).

    The component that became ready last comes next; of components that become ready together, the one with the highest
    rank. A component's rank is its highest colocation group; ops without a group rank above all groups, earlier ops
    higher. Among components without predecessors the published order is that of a hash table; here `start` says which
    group comes first.
    """
    group = problem.group.astype(np.int64)
    alone = group.max(initial=0) + problem.n_ops - np.arange(problem.n_ops)
    rank, own = np.full((2, graph.n), -1, np.int64)
    np.maximum.at(rank, graph.component, np.where(group >= 0, group, alone))
    np.maximum.at(own, graph.component, group)
    sources = np.flatnonzero(np.diff(graph.predecessor_offsets) == 0)
    last = -own[sources] if start == "lowest" else own[sources]
    return sort_depth_first(graph, sources[np.lexsort((-sources, last))], rank)


def sort_depth_first(graph: Contraction, sources: Ints | Longs, key: Floats | Longs, stage: Ints | None = None) -> Ints:
    """The position [n] of each component in the order where the component that became ready last comes next.

    Of components that become ready together, the one with the largest `key` [n] comes first. `sources` are the
    components without predecessors; the last of them comes first. Components of an earlier `stage` [n] come before all
    of a later one; no edge may lead back to an earlier stage.
    """
    tail, head = graph.edges()
    heads = head[np.lexsort((key[head], tail))]
    rank = np.zeros(graph.n, np.int32) if stage is None else stage
    return _native.last_ready_first(graph.successor_offsets, heads, np.asarray(sources, np.int64), rank)


def propose_split(search: SearchContext, graph: Contraction, line: Ints, name: str) -> Proposal:
    """The best split of the components of `graph` in the order of their positions [n] in `line`, without a bound.

    Progress is reported under `name`.
    """
    problem, watch = search.problem, search.watch
    best = LineSplit(None, np.inf, Reason.FINISHED)

    def split(capacity: Floats) -> Ints | None:
        nonlocal best
        if best.reason is Reason.INTERRUPTED:
            return None
        best = find_best_split(problem, graph.component, (line,), capacity, go_on)
        return best.device

    def go_on(done: int, total: int, seconds: float) -> bool:
        value = seconds if np.isfinite(seconds) else None
        search.on_progress(Progress(name, watch.elapsed, f"component {done} of {total}", value))
        return not watch.out

    try:
        device, shrunk = fit_memory(problem, split)
    except KeyboardInterrupt:
        return Proposal(None, reason=Reason.INTERRUPTED)
    if device is None:
        return Proposal(None, reason=best.reason, notes=("no split of the order was found that fits in memory",))
    notes = [f"the best split of one order of {graph.n:,} components, no proof"]
    notes += ["stages were made smaller until their live activations fit"] if shrunk else []
    placement = relabel_placement(
        problem, Placement(device, replicas=build_replica_column(best.groups, problem.n_devices))
    )
    return Proposal(placement, reason=best.reason, notes=tuple(notes))
