"""Placing along one line of components: the published order, and a proposal that splits it at best."""

from __future__ import annotations

from typing import Literal

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import Progress, SearchContext
from placewise.placers.pipeline_dp.depth_first_orders import walk
from placewise.placers.shared.fit import fit
from placewise.placers.shared.interchangeable import interchangeable, relabelled
from placewise.placers.shared.stages.line_split import Split, best_split
from placewise.placers.shared.stages.replicated_stages import replicas_of
from placewise.simulate.contiguity import Contraction

MOST_STATES = 1 << 16


def unsuited(problem: Problem, name: str) -> str | None:
    """None, or why no dynamic program over the devices in use can take the problem."""
    if problem.objective.kind != "throughput":
        return f"{name} minimizes the max-load of a pipeline, not latency"
    if problem.constraints.ordered:
        return None
    kind, states = interchangeable(problem).tolist(), 1
    for k in set(kind):
        states *= min(kind.count(k), problem.n_blocks * problem.most_replicas) + 1
    if states > MOST_STATES:
        return (
            f"{name} counts the devices in use kind by kind: {len(kind)} devices of {len(set(kind))} kinds make "
            f"{states:,} ways, and {MOST_STATES:,} are the most: use auto or greedy"
        )
    return None


def last_ready_first(problem: Problem, graph: Contraction, *, start: Literal["lowest", "highest"] = "lowest") -> Ints:
    """A topological order that mostly goes deep: the position [n] of each component.

    What became ready last comes next, as in the published program of Tarnawski et al. (2020). Of components
    that become ready together the highest rank comes first. Among those that are ready from the start it
    follows a hash table; here `start` says which group comes first. A component's rank is its highest
    colocation group; ops without one rank above all groups, earlier ops higher.
    """
    group = problem.group.astype(np.int64)
    alone = group.max(initial=0) + problem.n_ops - np.arange(problem.n_ops)
    rank, own = np.full((2, graph.n), -1, np.int64)
    np.maximum.at(rank, graph.component, np.where(group >= 0, group, alone))
    np.maximum.at(own, graph.component, group)
    sources = np.flatnonzero(np.diff(graph.predecessor_offsets) == 0)
    last = -own[sources] if start == "lowest" else own[sources]
    return walk(graph, sources[np.lexsort((-sources, last))], rank)


def propose_along(search: SearchContext, graph: Contraction, line: Ints, name: str) -> Proposal:
    """The best split of the components of `graph` in the order of their positions [n] in `line`; no bound."""
    problem, watch = search.problem, search.watch
    found = Split(None, np.inf, Reason.FINISHED)

    def split(capacity: Floats) -> Ints | None:
        nonlocal found
        if found.reason is Reason.INTERRUPTED:
            return None
        found = best_split(problem, graph.component, (line,), capacity, go_on)
        return found.device

    def go_on(done: int, total: int, seconds: float) -> bool:
        value = seconds if np.isfinite(seconds) else None
        search.on_progress(Progress(name, watch.elapsed, f"component {done} of {total}", value))
        return not watch.out

    try:
        device, shrunk = fit(problem, split)
    except KeyboardInterrupt:
        return Proposal(None, reason=Reason.INTERRUPTED)
    if device is None:
        return Proposal(None, reason=found.reason, notes=("no split of the line was found that fits in memory",))
    notes = [f"the best split of one line of {graph.n:,} components, no proof"]
    notes += ["stages were made smaller until their live activations fit"] if shrunk else []
    placement = relabelled(problem, Placement(device, replicas=replicas_of(found.groups, problem.n_devices)))
    return Proposal(placement, reason=found.reason, notes=tuple(notes))
