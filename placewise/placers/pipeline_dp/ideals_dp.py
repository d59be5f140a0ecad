"""The dynamic program over ideals, for the best contiguous pipeline: the method "ideals" of `dp`.

Exact for staged transfers in all three communication modes, with memory, colocation, training graphs, unequal devices,
several CPUs and stages that several equal devices share. For direct transfers each tensor that leaves or enters a stage
is charged once, at its quickest link. The judge charges at least that, so that the optimum is a lower bound and its
placement a good proposal. The same holds for shared wires and live activations, which the program leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import OnProgress, Progress, SearchContext, Stopwatch
from placewise.placers.pipeline_dp.leaf_merging import merge_leaves
from placewise.placers.pipeline_dp.random_orders import LONGEST_PROOF, ROUNDED, bound_by_relaxations, search_orders
from placewise.placers.pipeline_dp.topological_orders import sort_last_ready_first
from placewise.placers.pipeline_dp.unequal_links import climb_splits, list_relaxations, split_over_nodes
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel_placement
from placewise.placers.shared.objective_value import objective_value
from placewise.placers.shared.stages.dp_driver import MAX_CELLS, ChainSearchResult, count_states
from placewise.placers.shared.stages.ideals import Ideals, enumerate_ideals
from placewise.placers.shared.stages.line_split import LineSplit, find_best_split
from placewise.placers.shared.stages.phase_dp import price_phases, search_phases
from placewise.placers.shared.stages.replicated_stages import Groups, build_replica_column
from placewise.placers.shared.stages.stage_costs import NEVER
from placewise.simulate import Evaluator
from placewise.simulate.contiguity import Contraction, depth_first, join

MAX_COMPONENTS = 20_000
LEFT = 0.1
"""The largest share of the time that is kept for the final choice; it is as much as reading the problem took."""
FEW_IDEALS = 20_000
"""With this many ideals or fewer, a proof takes seconds on a slow machine: it may take `proof_share`."""
INSTEAD = "instead the best split along many orders of the ops, under a bound from parts of the graph"


@dataclass(slots=True)
class _DpRun:
    """The state of one run: the problem, the clock, and the results so far."""

    problem: Problem
    graph: Contraction
    max_ideals: int
    watch: Stopwatch
    on_progress: OnProgress
    name: str
    proof_share: float = 0.0
    bound: float | None = None
    method: str = "ideals dynamic program"
    exhausted: bool = False
    reason: Reason = Reason.FINISHED
    notes: list[str] = field(default_factory=list)
    groups: Groups = ()
    prepared: float = 0.0
    _splits: dict[bytes, LineSplit] = field(default_factory=dict)
    interrupted: bool = False
    _ideals: tuple[Contraction, Ideals | None] | None = None

    def split_orders(self, capacity: Floats) -> Ints | None:
        """The best split of a few orders of the components within `capacity` [n_devices]; sets `groups`."""
        split = self._split(capacity)
        self.groups = split.groups
        return split.device

    def search_ideals(self, capacity: Floats) -> Ints | None:
        """The best pipeline within `capacity` [n_devices]; the first call also proves what it can."""
        split, first = self._split(capacity), not self.notes
        self.groups = split.groups
        graph, ideals = self._ideals or self._enumerate(capacity)
        self._ideals = graph, ideals
        if ideals is None or split.reason is not Reason.FINISHED:
            cut_off = ideals is None and self._hurries and split.reason is Reason.FINISHED
            self.reason = Reason.TIME_LIMIT if cut_off else split.reason
            return split.device
        priced = price_phases(self.problem, graph.component, graph.n, capacity)
        beat = int(split.value * priced.scale) if split.device is not None else NEVER
        watch = self.watch
        if first and self.problem.constraints.contiguous and len(ideals) <= FEW_IDEALS:
            watch = watch.extended(self.proof_share)
        result = search_phases(priced, ideals, partial(self._go_on, watch=watch), beat, watch.budget.gap)
        self.reason = result.reason
        self.interrupted |= result.reason is Reason.INTERRUPTED
        if first:
            self._prove(result, beat, priced.scale)
            self.notes.append(f"{len(ideals):,} ideals of {graph.n:,} components: {_describe_progress(result, beat)}")
        if result.chain is None:
            return split.device
        self.groups = result.chain.groups
        return result.chain.device[graph.component]

    def search_nodes(self, known: list[Ints]) -> list[Ints]:
        """More pipelines, from the program over nodes of devices; its bound counts if it is higher."""
        most = self.max_ideals
        placements, floor, reason = split_over_nodes(self.problem, self.graph, known, self.watch, self._go_on, most)
        if floor * ROUNDED > (self.bound or 0.0):
            self.bound, self.method = floor * ROUNDED, "ideals dynamic program over nodes of devices"
        self.reason = reason if reason is not Reason.FINISHED else self.reason
        return placements

    def split_many_orders(self, known: list[Ints]) -> list[Placement]:
        """The best split of many orders if ideals are too many, and a bound from parts of the graph."""
        none = self._ideals is not None and self._ideals[1] is None
        if not none or self.reason is not Reason.FINISHED or not self.problem.constraints.contiguous:
            return []
        placements, self.reason = search_orders(self.problem, self.graph, known, self.watch, self._go_on)
        if placements and self.reason is Reason.FINISHED and self.graph.n <= MAX_COMPONENTS:
            reached = min(
                objective_value(self.problem, placement, Evaluator(self.problem, threads=1)) for placement in placements
            )
            bound = bound_by_relaxations(self.problem, self.graph, reached, self.watch)
            if bound is not None:
                self.bound, self.method = bound.value, bound.method
        return placements

    def _prove(self, result: ChainSearchResult, beat: int, scale: float) -> None:
        complete = result.reason is Reason.FINISHED
        self.exhausted = complete and result.floor == NEVER
        if result.floor < NEVER and (complete or result.floor > 0):
            self.bound = result.floor / scale * ROUNDED

    @property
    def _hurries(self) -> bool:
        """Whether the time that is left is over before costs are prepared."""
        return self.watch.left <= self.prepared

    def _split(self, capacity: Floats) -> LineSplit:
        key = capacity.tobytes()
        if key not in self._splits and self._hurries:
            return LineSplit(None, np.inf, Reason.TIME_LIMIT)
        if key not in self._splits:
            numbered = np.arange(self.graph.n, dtype=np.int32)
            orders = (numbered, depth_first(self.graph), sort_last_ready_first(self.problem, self.graph))
            lines = tuple({line.tobytes(): line for line in orders}.values())
            split = find_best_split(
                self.problem, self.graph.component, lines, capacity, self._go_on, left=lambda: self.watch.left
            )
            self.prepared = split.prepared
            self.interrupted |= split.reason is Reason.INTERRUPTED
            self._splits[key] = split
        return self._splits[key]

    def _enumerate(self, capacity: Floats) -> tuple[Contraction, Ideals | None]:
        """The contraction without free leaves, and its ideals unless they are too many."""
        graph = self.graph
        if graph.n > MAX_COMPONENTS:
            self.notes.append(f"{graph.n:,} components, more than the {MAX_COMPONENTS:,} that dp takes: {INSTEAD}")
            return graph, None
        if self._hurries:
            return graph, None
        costs = price_phases(self.problem, graph.component, graph.n, capacity).costs
        graph = join(graph, merge_leaves(graph, costs, lambda: self.watch.out))
        most = min(self.max_ideals, MAX_CELLS // count_states(costs))
        ideals = enumerate_ideals(graph, most, self.watch.left / 2)
        if isinstance(ideals, Ideals):
            return graph, ideals
        self.notes.append(f"{ideals:,} ideals of {graph.n:,} components or more, too many for their program: {INSTEAD}")
        return graph, None

    def _go_on(self, done: int, total: int, seconds: float, watch: Stopwatch | None = None) -> bool:
        watch = watch or self.watch
        value = min([seconds, *(split.value for split in self._splits.values())])
        message = f"ideal {done} of {total}"
        self.on_progress(Progress(self.name, watch.elapsed, message, value if np.isfinite(value) else None))
        return not (watch.out or self.interrupted)


def _describe_progress(result: ChainSearchResult, beat: int) -> str:
    if result.reason is not Reason.FINISHED:
        return "not all of them were tried"
    return "all of them were tried" if result.chain or result.floor == beat else "tried until the gap was reached"


def propose_over_ideals(
    search: SearchContext, graph: Contraction, max_ideals: int, name: str, *, proof_share: float = 0.0
) -> Proposal:
    """The best contiguous placement of the components of `graph`, with its proof if there is one.

    Progress is reported under `name`.
    """
    problem, contiguous = search.problem, search.problem.constraints.contiguous
    watch = search.watch.short_of(min(search.watch.elapsed, LEFT * search.budget.seconds))
    run = _DpRun(problem, graph, max_ideals, watch, search.on_progress, name, proof_share)
    candidates: list[Placement] = []
    shrunk = False
    try:
        device, shrunk = fit_memory(problem, run.split_orders)
        candidates += _wrap_placement(problem, device, run.groups)
        for other in () if watch.out else list_relaxations(problem):
            if watch.left <= run.prepared:
                break
            relaxed = _DpRun(other, graph, max_ideals, watch, search.on_progress, name, prepared=run.prepared)
            relaxed.interrupted = run.interrupted
            restricted = other.constraints is not problem.constraints
            device, _ = fit_memory(other, relaxed.search_ideals if restricted else relaxed.split_orders)
            candidates += _wrap_placement(problem, device, relaxed.groups)
            run.interrupted |= relaxed.interrupted
        device, shrunk = fit_memory(problem, run.search_ideals)
        candidates += _wrap_placement(problem, device, run.groups)
        if run.interrupted:
            run.reason = Reason.INTERRUPTED
        if run.reason is not Reason.INTERRUPTED:
            candidates += run.split_many_orders(_list_unreplicated(candidates))
        unseen = problem.cluster.transfers == "direct" or problem.cluster.wires
        if problem.constraints.shaped and unseen and run.reason is not Reason.INTERRUPTED:
            better = climb_splits(problem, graph, _list_unreplicated(candidates), run.watch)
            better += run.search_nodes(better) if problem.max_replicas == 1 else []
            candidates = [*(c for c in candidates if c.replicas is not None), *map(Placement, better)]
            if run.watch.out and run.reason is Reason.FINISHED:
                run.reason = Reason.TIME_LIMIT
    except KeyboardInterrupt:
        run.reason = Reason.INTERRUPTED
    if run.exhausted and contiguous:
        order = " in the order of the devices" if problem.constraints.ordered else ""
        proof = f"no contiguous split{order} keeps memory, support, pins and forbidden pairs: all were tried"
        return Proposal(None, reason=Reason.PROVED, notes=tuple(run.notes), infeasible=proof)
    bound = Bound(run.bound, run.method) if run.bound is not None and contiguous else None
    if not candidates:
        run.notes.append("no contiguous split was found that fits in memory")
        return Proposal(None, bound, run.reason, tuple(run.notes))
    if shrunk:
        run.notes.append("stages were made smaller until their live activations fit")
    price_of, distinct = search.evaluate or Evaluator(problem, threads=1), _drop_duplicates(candidates[::-1])
    values = np.array([objective_value(problem, placement, price_of) for placement in distinct])
    best = distinct[int(np.argmin(np.where(np.isnan(values), np.inf, values)))]
    return Proposal(relabel_placement(problem, best), bound, run.reason, tuple(run.notes))


def bound_hints(search: SearchContext, graph: Contraction) -> Proposal:
    """The bound from parts of the graph alone, until it proves that no placement is better than the hints."""
    problem, placements = search.problem, search.hints.placements
    price = search.evaluate or Evaluator(problem, threads=1)
    reached = min((objective_value(problem, placement, price) for placement in placements), default=np.inf)
    longest = LONGEST_PROOF if np.isinf(search.budget.seconds) else np.inf
    bound = None
    if problem.constraints.contiguous:
        bound = bound_by_relaxations(problem, graph, reached, search.watch, longest)
    return Proposal(None, bound, Reason.TIME_LIMIT if search.watch.out else Reason.FINISHED)


def _list_unreplicated(placements: list[Placement]) -> list[Ints]:
    """The devices [n_ops] of the placements without replicas."""
    return [placement.device for placement in placements if placement.replicas is None]


def _wrap_placement(problem: Problem, device: Ints | None, groups: Groups) -> list[Placement]:
    """The placement of devices [n_ops] and replicated stages; empty if there is none."""
    return [] if device is None else [Placement(device, replicas=build_replica_column(groups, problem.n_devices))]


def _drop_duplicates(placements: list[Placement]) -> list[Placement]:
    """The distinct placements."""
    first: dict[tuple[bytes, bytes | None], Placement] = {}
    for placed in placements:
        replicas = None if placed.replicas is None else placed.replicas.tobytes()
        first.setdefault((placed.device.tobytes(), replicas), placed)
    return list(first.values())
