"""dp: the best contiguous pipeline, by dynamic programming over ideals.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020, section 5.
Exact for staged transfers in all three communication modes, with memory, colocation, training graphs,
unequal devices, several CPUs and stages that several equal devices share. For direct transfers each tensor that
leaves or enters a stage is charged once, at its quickest link; the judge charges at least that, so the optimum is
a lower bound and its placement a good proposal. The same holds where wires are shared or activations counted: both
are left out.
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
    OnProgress,
    PlacerInfo,
    Progress,
    SearchContext,
    Stopwatch,
)
from placewise.placers.pipeline_dp.leaf_merging import merge_leaves
from placewise.placers.pipeline_dp.random_orders import path_bound, wander
from placewise.placers.pipeline_dp.relaxations import readings
from placewise.placers.pipeline_dp.topological_orders import last_ready_first, unsuited
from placewise.placers.pipeline_dp.unequal_links import by_nodes, climbed
from placewise.placers.shared.fit import fit
from placewise.placers.shared.interchangeable import relabelled
from placewise.placers.shared.memory_footprint import unmet
from placewise.placers.shared.objective_value import worth
from placewise.placers.shared.stages.dp_driver import MOST_CELLS, Found, n_states
from placewise.placers.shared.stages.ideals import Ideals, all_ideals
from placewise.placers.shared.stages.line_split import Split, best_split
from placewise.placers.shared.stages.phase_dp import price, search
from placewise.placers.shared.stages.replicated_stages import Groups, replicas_of
from placewise.placers.shared.stages.stage_costs import NEVER
from placewise.simulate import Evaluator
from placewise.simulate.contiguity import Contraction, contract, depth_first, join

MOST_COMPONENTS = 20_000
ROUNDED = 1 - 1e-12
"""Costs were rounded down to whole units; this covers the rounding of the sums that came before."""
LEFT = 0.1
"""At most such a share of the time stays to weigh what was found; it is as much as reading the problem took."""
LINE = "instead the best split along many lines of the ops, under a bound from one path"


@dataclass(frozen=True, slots=True)
class DpOptions:
    """`max_ideals`: beyond it many lines of the components are split, under a bound from one path."""

    max_ideals: int = 1_000_000


@dataclass(slots=True)
class _Run:
    """One call: the problem, the clock, and what has come out so far."""

    problem: Problem
    graph: Contraction
    max_ideals: int
    watch: Stopwatch
    on_progress: OnProgress
    bound: float | None = None
    method: str = "ideals dynamic program"
    exhausted: bool = False
    reason: Reason = Reason.FINISHED
    notes: list[str] = field(default_factory=list)
    groups: Groups = ()
    prepared: float = 0.0
    _splits: dict[bytes, Split] = field(default_factory=dict)
    interrupted: bool = False
    _ideals: tuple[Contraction, Ideals | None] | None = None

    def along_a_line(self, capacity: Floats) -> Ints | None:
        """The best split of a few orders of the components within `capacity` [n_devices]; `groups` share stages."""
        split = self._split(capacity)
        self.groups = split.groups
        return split.device

    def over_ideals(self, capacity: Floats) -> Ints | None:
        """The best pipeline within `capacity`; the first call also proves what it can."""
        split, first = self._split(capacity), not self.notes
        self.groups = split.groups
        graph, ideals = self._ideals or self._enumerate(capacity)
        self._ideals = graph, ideals
        if ideals is None or split.reason is not Reason.FINISHED:
            cut_off = ideals is None and self.watch.out and split.reason is Reason.FINISHED
            self.reason = Reason.TIME_LIMIT if cut_off else split.reason
            return split.device
        priced = price(self.problem, graph.component, graph.n, capacity)
        beat = int(split.value * priced.scale) if split.device is not None else NEVER
        found = search(priced, ideals, self._go_on, beat, self.watch.budget.gap)
        self.reason = found.reason
        self.interrupted |= found.reason is Reason.INTERRUPTED
        if first:
            self._prove(found, beat, priced.scale)
            self.notes.append(f"{len(ideals):,} ideals of {graph.n:,} components: {_how_far(found, beat)}")
        if found.chain is None:
            return split.device
        self.groups = found.chain.groups
        return found.chain.device[graph.component]

    def over_nodes(self, known: list[Ints]) -> list[Ints]:
        """More pipelines from the program that knows nodes of devices; its bound counts if it is higher."""
        most = self.max_ideals
        found, floor, reason = by_nodes(self.problem, self.graph, known, self.watch, self._go_on, most)
        if floor * ROUNDED > (self.bound or 0.0):
            self.bound, self.method = floor * ROUNDED, "ideals dynamic program over nodes of devices"
        self.reason = reason if reason is not Reason.FINISHED else self.reason
        return found

    def along_many_lines(self, known: list[Ints]) -> list[Placement]:
        """The best of many lines where ideals are too many, and a bound from a path through the graph."""
        none = self._ideals is not None and self._ideals[1] is None
        if not none or self.reason is not Reason.FINISHED or not self.problem.constraints.contiguous:
            return []
        found, self.reason = wander(self.problem, self.graph, known, self.watch, self._go_on)
        if found and self.reason is Reason.FINISHED and self.graph.n <= MOST_COMPONENTS:
            reached = min(worth(self.problem, placed, Evaluator(self.problem, threads=1)) for placed in found)
            floor = path_bound(self.problem, self.graph, reached, self.watch) * ROUNDED
            if floor > 0:
                self.bound, self.method = floor, "path of minimum cuts through the stages"
        return found

    def _prove(self, found: Found, beat: int, scale: float) -> None:
        complete = found.reason is Reason.FINISHED
        self.exhausted = complete and found.floor == NEVER
        if found.floor < NEVER and (complete or found.floor > 0):
            self.bound = found.floor / scale * ROUNDED

    def _split(self, capacity: Floats) -> Split:
        key = capacity.tobytes()
        if key not in self._splits and self.watch.left <= self.prepared:
            return Split(None, np.inf, Reason.TIME_LIMIT)
        if key not in self._splits:
            numbered = np.arange(self.graph.n, dtype=np.int32)
            orders = (numbered, depth_first(self.graph), last_ready_first(self.problem, self.graph))
            lines = tuple({line.tobytes(): line for line in orders}.values())
            split = best_split(
                self.problem, self.graph.component, lines, capacity, self._go_on, left=lambda: self.watch.left
            )
            self.prepared = split.prepared
            self.interrupted |= split.reason is Reason.INTERRUPTED
            self._splits[key] = split
        return self._splits[key]

    def _enumerate(self, capacity: Floats) -> tuple[Contraction, Ideals | None]:
        """The contraction without free leaves, and its ideals if they are few enough."""
        graph = self.graph
        if graph.n > MOST_COMPONENTS:
            self.notes.append(f"{graph.n:,} components, more than the {MOST_COMPONENTS:,} that dp takes: {LINE}")
            return graph, None
        costs = price(self.problem, graph.component, graph.n, capacity).costs
        graph = join(graph, merge_leaves(graph, costs, lambda: self.watch.out))
        most = min(self.max_ideals, MOST_CELLS // n_states(costs))
        ideals = all_ideals(graph, most, self.watch.left / 2)
        if isinstance(ideals, Ideals):
            return graph, ideals
        self.notes.append(f"{ideals:,} ideals of {graph.n:,} components or more, too many for their program: {LINE}")
        return graph, None

    def _go_on(self, done: int, total: int, seconds: float) -> bool:
        value = min([seconds, *(split.value for split in self._splits.values())])
        message = f"ideal {done} of {total}"
        self.on_progress(Progress("dp", self.watch.elapsed, message, value if np.isfinite(value) else None))
        return not (self.watch.out or self.interrupted)


def _how_far(found: Found, beat: int) -> str:
    if found.reason is not Reason.FINISHED:
        return "not all of them were tried"
    return "all of them were tried" if found.chain or found.floor == beat else "tried until the gap was reached"


class DpPlacer:
    """The ideals dynamic program; where ideals are too many or time too short, the best split of a line."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="dp",
        summary="the best contiguous pipeline, proved, by dynamic programming over ideals",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 5",
        exact=True,
        objectives=frozenset({"throughput"}),
        replicates=True,
    )
    Options: ClassVar[type[DpOptions]] = DpOptions

    def __init__(self, options: DpOptions | None = None) -> None:
        self.options = options or DpOptions()

    def supports(self, problem: Problem) -> str | None:
        return unsuited(problem, "dp")

    def propose(self, search: SearchContext) -> Proposal:
        """The optimum over contiguous placements, with its proof where there is one; hints are not needed."""
        problem = search.problem
        graph, contiguous = contract(problem), problem.constraints.contiguous
        missing = unmet(problem, graph.component, graph.n) if contiguous else ""
        if missing:
            return Proposal(None, reason=Reason.PROVED, infeasible=missing)
        watch = search.watch.short_of(min(search.watch.elapsed, LEFT * search.budget.seconds))
        run = _Run(problem, graph, self.options.max_ideals, watch, search.on_progress)
        found: list[Placement] = []
        shrunk = False
        try:
            device, shrunk = fit(problem, run.along_a_line)
            found += _placed(problem, device, run.groups)
            for other in () if watch.out else readings(problem):
                if watch.left <= run.prepared:
                    break
                reading = _Run(other, graph, self.options.max_ideals, watch, search.on_progress, prepared=run.prepared)
                reading.interrupted = run.interrupted
                within = other.constraints is not problem.constraints
                device, _ = fit(other, reading.over_ideals if within else reading.along_a_line)
                found += _placed(problem, device, reading.groups)
                run.interrupted |= reading.interrupted
            device, shrunk = fit(problem, run.over_ideals)
            found += _placed(problem, device, run.groups)
            if run.interrupted:
                run.reason = Reason.INTERRUPTED
            if run.reason is not Reason.INTERRUPTED:
                alone = [placed.device for placed in found if placed.replicas is None]
                found += run.along_many_lines(alone)
            unseen = problem.cluster.transfers == "direct" or problem.cluster.wires
            if problem.constraints.shaped and unseen and run.reason is not Reason.INTERRUPTED:
                alone = [placed.device for placed in found if placed.replicas is None]
                better = climbed(problem, graph, alone, run.watch)
                better += run.over_nodes(better) if problem.most_replicas == 1 else []
                found = [*(placed for placed in found if placed.replicas is not None), *map(Placement, better)]
                if run.watch.out and run.reason is Reason.FINISHED:
                    run.reason = Reason.TIME_LIMIT
        except KeyboardInterrupt:
            run.reason = Reason.INTERRUPTED
        if run.exhausted and contiguous:
            order = " in the order of the devices" if problem.constraints.ordered else ""
            proof = f"no contiguous split{order} keeps memory, support, pins and forbidden pairs: all were tried"
            return Proposal(None, reason=Reason.PROVED, notes=tuple(run.notes), infeasible=proof)
        bound = Bound(run.bound, run.method) if run.bound is not None and contiguous else None
        if not found:
            run.notes.append("no contiguous split was found that fits in memory")
            return Proposal(None, bound, run.reason, tuple(run.notes))
        if shrunk:
            run.notes.append("stages were made smaller until their live activations fit")
        price_of, different = search.evaluate or Evaluator(problem, threads=1), _different(found[::-1])
        values = np.array([worth(problem, placed, price_of) for placed in different])
        best = different[int(np.argmin(np.where(np.isnan(values), np.inf, values)))]
        return Proposal(relabelled(problem, best), bound, run.reason, tuple(run.notes))


def _placed(problem: Problem, device: Ints | None, groups: Groups) -> list[Placement]:
    """The placement of a method, if it found one."""
    return [] if device is None else [Placement(device, replicas=replicas_of(groups, problem.n_devices))]


def _different(found: list[Placement]) -> list[Placement]:
    """The placements, each once."""
    first: dict[tuple[bytes, bytes | None], Placement] = {}
    for placed in found:
        replicas = None if placed.replicas is None else placed.replicas.tobytes()
        first.setdefault((placed.device.tobytes(), replicas), placed)
    return list(first.values())
