"""dp: the best contiguous pipeline, by dynamic programming over ideals.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020, section 5.
Exact for staged transfers in all three communication modes, with memory, colocation, training graphs,
unequal devices and several CPUs. For direct transfers each tensor that leaves or enters a stage is charged
once, at its quickest link; the judge charges at least that, so the optimum is a lower bound and its
placement a good proposal. The same holds where wires are shared or activations counted: both are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import (
    NO_HINTS,
    Budget,
    Evaluate,
    Hints,
    OnProgress,
    PlacerInfo,
    Progress,
    Stopwatch,
    ignore,
)
from placewise.placers.exact.ideals import all_ideals
from placewise.placers.exact.leaves import merge_leaves
from placewise.placers.exact.linear import best_split
from placewise.placers.exact.program import MOST_CELLS, n_states, search
from placewise.placers.exact.stages import NEVER, price
from placewise.placers.heuristic.alike import alike, relabel
from placewise.placers.heuristic.fit import fit
from placewise.placers.heuristic.holdings import unmet
from placewise.simulate.contract import Contraction, contract, depth_first, join
from placewise.simulate.infeasible import why_infeasible

MOST_STATES = 1 << 16
MOST_COMPONENTS = 20_000
ROUNDED = 1 - 1e-12
"""Costs were rounded down to whole units; this covers the rounding of the sums that came before."""


@dataclass(frozen=True, slots=True)
class DpOptions:
    """`max_ideals`: beyond it the components are put in one line, which is near-optimal but proves nothing."""

    max_ideals: int = 1_000_000


@dataclass(slots=True)
class _Run:
    """One call: the problem, the clock, and what has come out so far."""

    problem: Problem
    graph: Contraction
    max_ideals: int
    watch: Stopwatch
    on_progress: OnProgress
    best: Ints | None = None
    bound: float | None = None
    exhausted: bool = False
    reason: Reason = Reason.FINISHED
    notes: list[str] = field(default_factory=list)

    def go_on(self, done: int, total: int, seconds: float) -> bool:
        self.on_progress(Progress("dp", self.watch.elapsed, f"ideal {done} of {total}", seconds))
        return not self.watch.out

    def attempt(self, capacity: Floats) -> Ints | None:
        """The best pipeline within `capacity` [n_devices] that time allows."""
        first = not self.notes
        split = best_split(self.problem, self.graph.component, self._lines(), capacity, self.go_on)
        device, self.reason = split.device, split.reason
        if first:
            self.best = device
        if self.reason is not Reason.FINISHED:
            self.notes.append("it ended before any ideals were tried: no proof")
            return device
        return self._exact(capacity, device, split.value, first)

    def _lines(self) -> list[Ints]:
        """Two orders of the components: as they are numbered, and depth first."""
        numbered, followed = np.arange(self.graph.n, dtype=np.int32), depth_first(self.graph)
        return [numbered] if np.array_equal(numbered, followed) else [numbered, followed]

    def _exact(self, capacity: Floats, device: Ints | None, value: float, first: bool) -> Ints | None:
        graph = self.graph
        if graph.n <= MOST_COMPONENTS:
            priced = price(self.problem, graph.component, graph.n, capacity)
            graph = join(graph, merge_leaves(graph, priced.costs))
        priced = price(self.problem, graph.component, graph.n, capacity)
        most = min(self.max_ideals, MOST_CELLS // n_states(priced.costs))
        ideals = all_ideals(graph, most) if graph.n <= MOST_COMPONENTS else None
        if ideals is None:
            self.notes.append(f"more than {most:,} ideals: the best split along one line of the ops, no proof")
            return device
        beat = int(value * priced.scale) if device is not None else NEVER
        found = search(priced, ideals, self.go_on, beat)
        self.reason = found.reason
        if first:
            complete = found.reason is Reason.FINISHED
            self.exhausted = complete and found.floor == NEVER
            if found.floor < NEVER and (complete or found.floor > 0):
                self.bound = found.floor / priced.scale * ROUNDED
            tried = "all ideals were tried" if complete else "it ended before all ideals were tried"
            self.notes.append(f"{len(ideals):,} ideals of {graph.n:,} components: {tried}")
        return device if found.chain is None else found.chain.device[graph.component]


class DpPlacer:
    """The ideals dynamic program; where ideals are too many or time too short, the best split of a line."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="dp",
        summary="the best contiguous pipeline, proved, by dynamic programming over ideals",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 5",
        exact=True,
        objectives=frozenset({"throughput"}),
    )
    Options: ClassVar[type[DpOptions]] = DpOptions

    def __init__(self, options: DpOptions | None = None) -> None:
        self.options = options or DpOptions()

    def supports(self, problem: Problem) -> str | None:
        if problem.objective.kind != "throughput":
            return "dp minimizes the max-load of a pipeline, not latency"
        kind, states = alike(problem).tolist(), 1
        for k in set(kind):
            states *= kind.count(k) + 1
        if states > MOST_STATES:
            return f"dp counts the devices in use kind by kind: {len(set(kind))} kinds of devices are too many"
        return None

    def propose(
        self,
        problem: Problem,
        budget: Budget,
        *,
        hints: Hints = NO_HINTS,
        evaluate: Evaluate | None = None,
        on_progress: OnProgress = ignore,
    ) -> Proposal:
        """The optimum over contiguous placements, with its proof where there is one; hints are not needed."""
        graph = contract(problem)
        contiguous = problem.constraints.contiguous
        missing = why_infeasible(problem)
        if not missing and contiguous:
            missing = unmet(problem, graph.component, graph.n)
        if missing:
            return Proposal(None, reason=Reason.PROVED, infeasible=missing)
        run = _Run(problem, graph, self.options.max_ideals, Stopwatch(budget), on_progress)
        try:
            device, shrunk = fit(problem, run.attempt)
        except KeyboardInterrupt:
            device, shrunk, run.reason = run.best, True, Reason.INTERRUPTED
        if run.exhausted and contiguous:
            proof = "no contiguous split keeps the memory of every device: all of them were tried"
            return Proposal(None, reason=Reason.PROVED, notes=tuple(run.notes), infeasible=proof)
        if shrunk and device is not None:
            run.notes.append("stages were made smaller until their live activations fit")
        bound = Bound(run.bound, "ideals dynamic program") if run.bound is not None and contiguous else None
        if device is None:
            run.notes.append("no contiguous split was found that fits in memory")
            return Proposal(None, bound, run.reason, tuple(run.notes))
        return Proposal(Placement(relabel(problem, device)), bound, run.reason, tuple(run.notes))
