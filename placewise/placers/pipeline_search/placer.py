"""pipeline_search: the schedule, the devices and the cuts of a training pipeline, by simulated steps.

Candidates are the cuts of least max-load along several orders of the model, for every schedule, number of stages and
line of devices, best max-load first; m times the max-load is less than any step, so that many need no simulation. Then
hill climbing moves the cuts of the best candidates of each schedule. Small problems are enumerated, which proves the
answer optimal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Bound, Improvement, Proposal, Reason
from placewise.placers import registry
from placewise.placers.base import Budget, PlacerInfo, Progress, SearchContext, run_placer
from placewise.placers.pipeline_search.cuts import Cuts, cut_evenly, list_chains, move_cuts, stages_of
from placewise.placers.pipeline_search.device_lines import Lines, list_lines
from placewise.simulate.contiguity import Contraction, contract, depth_first
from placewise.simulate.step.judge import price_pipeline
from placewise.simulate.step.orders import CHUNKED, SCHEDULES, count_stages, device_of_stage, refuse_microbatches
from placewise.simulate.step.pipelines import AUTO, pipeline_of, placement_of_pipeline, schedules_of
from placewise.simulate.step.roles import UPDATE, op_roles
from placewise.simulate.step.stage_costs import Pipeline

MOST_LINES = 24
"""Orders of unequal devices that are tried for each number of stages."""
MOST_COUNTS = 8
"""Numbers of stages that are tried."""
MOST_CHAINS = 2_000
"""Pipelines of a problem that is enumerated."""
CLIMBS = 3
"""Candidates of each schedule whose cuts are moved."""
LINE_SHARE = 0.2
"""Of the time, for the throughput search."""
ALWAYS_PRICED = 32
"""Pipelines that are priced however short the time is, until one fits."""
ENUMERATED = "every pipeline"


class _Value(NamedTuple):
    """What is minimized: bytes that are missing, then seconds."""

    short: float
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A cut of an order of the components for a schedule and its devices; `load` is its max-load per micro-batch."""

    schedule: str
    lines: Lines
    order: int
    cuts: Cuts
    load: float


@dataclass(slots=True)
class _Search:
    """The state of a search: what it knows, and the best that it has."""

    context: SearchContext
    graph: Contraction
    orders: list[Longs]  # each [n_components]: the component at each place
    best: Pipeline | None = None
    value: _Value = field(default_factory=lambda: _Value(math.inf, math.inf))
    evaluated: int = 0
    history: list[Improvement] = field(default_factory=list)
    priced: dict[tuple[object, ...], _Value] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        return self.context.problem

    @property
    def out(self) -> bool:
        """Whether a budget has ended the search."""
        most = self.context.budget.evaluations
        bound = self.context.hints.bound
        gap = self.context.budget.gap
        near = bound is not None and not self.value.short and self.value.seconds * (1 - gap) <= bound.value
        return self.context.watch.out or (most is not None and self.evaluated >= most) or (near and gap > 0)

    @property
    def ends(self) -> bool:
        """Whether the search ends now: a budget is used up, and an answer is found or `ALWAYS_PRICED` did not fit."""
        most = self.context.budget.evaluations
        least = ALWAYS_PRICED if most is None else min(ALWAYS_PRICED, most)
        fits = self.best is not None and not self.value.short
        return self.out and (fits or self.evaluated >= least)

    def price(self, pipeline: Pipeline) -> _Value:
        """The value of a pipeline; the best is kept."""
        short, run = price_pipeline(self.problem, pipeline)
        value = _Value(short, run.value) if math.isfinite(run.value) else _Value(math.inf, math.inf)
        self.evaluated += 1
        if value < self.value:
            self.best, self.value = pipeline, value
            if not value.short:
                seconds = self.context.watch.elapsed
                self.history.append(Improvement(seconds, value.seconds, PipelineSearchPlacer.info.name))
                self.context.on_progress(
                    Progress(PipelineSearchPlacer.info.name, seconds, pipeline.schedule, value.seconds)
                )
        return value

    def price_cuts(self, candidate: _Candidate, cuts: Cuts) -> _Value:
        """The value of a candidate with other cuts, which is worked out once."""
        key = (candidate.schedule, candidate.lines, candidate.order, cuts)
        if key not in self.priced:
            self.priced[key] = self.price(self.pipeline(candidate, cuts))
        return self.priced[key]

    def pipeline(self, candidate: _Candidate, cuts: Cuts) -> Pipeline:
        order = self.orders[candidate.order]
        stage = np.empty(self.graph.n, np.int32)
        stage[order] = stages_of(cuts, self.graph.n)
        return Pipeline(candidate.schedule, candidate.lines, stage[self.graph.component], len(cuts) + 1)


class PipelineSearchPlacer:
    """The pipeline with the shortest simulated training step that a search over cuts and schedules finds."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="pipeline_search",
        summary="schedule, devices and cuts of a training pipeline, by simulated steps",
        source="ours; schedules of Huang et al. 2019, Narayanan et al. 2019 and 2021, Qi et al. 2024",
        objectives=frozenset({"step"}),
        replicates=True,
    )

    def supports(self, problem: Problem) -> str | None:
        return None if problem.objective.kind == "step" else "it places for a training step (--objective step) only"

    def propose(self, search: SearchContext) -> Proposal:
        """The best pipeline that fits, or none."""
        problem = search.problem
        graph = contract(problem)
        state = _Search(search, graph, [])
        try:
            _price_hints(state)
            bound = _enumerate(state)
            if bound is None:
                _search(state)
        except KeyboardInterrupt:
            return _answer(state, None, Reason.INTERRUPTED)
        reason = Reason.TIME_LIMIT if search.watch.out else Reason.FINISHED
        return _answer(state, bound, reason)


def _answer(state: _Search, bound: Bound | None, reason: Reason) -> Proposal:
    fits = state.best is not None and not state.value.short
    placement = placement_of_pipeline(state.best) if fits and state.best is not None else None
    infeasible = ""
    if not fits and bound is not None and not state.out:
        infeasible = "no pipeline of whole stages fits, under any schedule that is allowed"
        reason = Reason.PROVED
    known = bound if fits else None
    notes = () if fits or infeasible else ("no pipeline that fits was found",)
    return Proposal(placement, known, reason, notes, infeasible, tuple(state.history))


def _schedules(problem: Problem) -> tuple[str, ...]:
    asked = problem.objective.schedule
    return SCHEDULES if asked == AUTO else (asked,)


def _copies(problem: Problem) -> list[int]:
    """Numbers of replicas that divide the micro-batches."""
    total = problem.constraints.microbatches
    return [c for c in range(1, problem.max_replicas + 1) if total % c == 0]


def _shapes(problem: Problem) -> Iterator[tuple[str, int, int]]:
    """Every schedule, number of devices along the pipeline and number of copies that may go together."""
    usable = int(problem.allowed.any(axis=0).sum())
    for copies in _copies(problem):
        own = problem.constraints.microbatches // copies
        for count in range(1, usable // copies + 1):
            for schedule in _schedules(problem):
                if not refuse_microbatches(schedule, count, own):
                    yield schedule, count, copies


def _price_hints(state: _Search) -> None:
    problem = state.problem
    for placement in state.context.hints.placements:
        for schedule in schedules_of(problem, placement):
            pipeline = pipeline_of(problem, placement, schedule)
            if isinstance(pipeline, Pipeline) and _is_allowed(problem, pipeline) and not state.ends:
                state.price(pipeline)


def _enumerate(state: _Search) -> Bound | None:
    """Price every pipeline of a small problem; the bound that this proves, or None if there are too many."""
    if state.graph.n > MOST_CHAINS:
        return None
    jobs: list[tuple[str, Lines, Longs]] = []
    cut: dict[int, list[Longs] | None] = {}  # by the number of stages
    for schedule, count, copies in _shapes(state.problem):
        stages = count_stages(schedule, count)
        if stages > state.graph.n:
            continue
        if state.ends:
            return None
        lines, complete = list_lines(state.problem, count, copies, MOST_LINES)
        if stages not in cut:
            cut[stages] = list_chains(state.graph, stages, MOST_CHAINS)
        chains = cut[stages]
        if chains is None or not complete or len(jobs) + len(lines) * len(chains) > MOST_CHAINS:
            return None
        jobs += [(schedule, line, chain) for line in lines for chain in chains]
    for schedule, line, chain in jobs:
        if state.out:
            return None
        pipeline = Pipeline(
            schedule, line, chain[state.graph.component].astype(np.int32), count_stages(schedule, len(line[0]))
        )
        if _is_allowed(state.problem, pipeline):
            state.price(pipeline)
    seconds = state.value.seconds if not state.value.short else 0.0
    return Bound(seconds * (1 - 1e-12) if math.isfinite(seconds) else 0.0, ENUMERATED)


def _is_allowed(problem: Problem, pipeline: Pipeline) -> bool:
    ops = np.arange(problem.n_ops)
    return all(
        bool(problem.allowed[ops, pipeline.stage_devices(copy)[pipeline.stage]].all())
        for copy in range(len(pipeline.replicas))
    )


def _search(state: _Search) -> None:
    problem, graph = state.problem, state.graph
    state.orders = _list_orders(state)
    seconds = [_seconds_along(problem, graph, order) for order in state.orders]
    candidates = sorted(_list_candidates(state, seconds), key=lambda one: one.load)
    starts: dict[str, list[tuple[_Value, int]]] = {schedule: [] for schedule in _schedules(problem)}
    for number, candidate in enumerate(candidates):
        if state.ends:
            break
        own = problem.constraints.microbatches // len(candidate.lines)
        if not state.value.short and candidate.load * own * (1 - 1e-9) >= state.value.seconds:
            continue
        starts[candidate.schedule].append((state.price_cuts(candidate, candidate.cuts), number))
    first = [[candidates[number] for _, number in sorted(own)[:CLIMBS]] for own in starts.values()]
    ranked = sorted((one for own in first for one in own), key=lambda one: state.price_cuts(one, one.cuts))
    for candidate in ranked:
        _climb(state, candidate)


def _climb(state: _Search, candidate: _Candidate) -> None:
    """Move the cuts of a candidate while its step gets shorter, by large steps first."""
    n, cuts = state.graph.n, candidate.cuts
    value = state.price_cuts(candidate, cuts)
    by = 1 << max(0, (n // (4 * (len(cuts) + 1))).bit_length() - 1)
    while by:
        improved = False
        for moved in list(move_cuts(cuts, n, by)):
            if state.out:
                return
            if not _cut_is_allowed(state.problem, state.pipeline(candidate, moved)):
                continue
            found = state.price_cuts(candidate, moved)
            if found < value:
                cuts, value, improved = moved, found, True
                break
        by = by if improved else by // 2


def _cut_is_allowed(problem: Problem, pipeline: Pipeline) -> bool:
    return bool(problem.allowed.all()) or _is_allowed(problem, pipeline)


def _list_candidates(state: _Search, seconds: list[Floats]) -> Iterator[_Candidate]:
    """The cuts of least max-load for every schedule, line of devices and order of the components."""
    problem, known = state.problem, dict[tuple[tuple[int, ...], int], Cuts | None]()
    alike = np.unique(seconds[0], axis=0, return_inverse=True)[1].ravel()  # devices of equal seconds have equal cuts
    shapes = list(_shapes(problem))
    counts = sorted({count for _, count, _ in shapes}, reverse=True)
    kept = set(counts[:MOST_COUNTS]) | {1}
    for schedule, count, copies in shapes:
        if count not in kept or count_stages(schedule, count) > state.graph.n or (count == 1 and schedule in CHUNKED):
            continue
        for line in list_lines(problem, count, copies, MOST_LINES)[0]:
            stages = range(count_stages(schedule, count))
            devices = tuple(line[0][device_of_stage(schedule, s, count)] for s in stages)
            for order in range(len(state.orders)):
                if state.ends:
                    return
                key = (tuple(alike[list(devices)].tolist()), order)
                if key not in known:
                    known[key] = cut_evenly(seconds[order], devices)
                cuts = known[key]
                if cuts is not None:
                    yield _Candidate(schedule, line, order, cuts, _max_load(seconds[order], cuts, devices))


def _max_load(seconds: Floats, cuts: Cuts, devices: tuple[int, ...]) -> float:
    """Seconds per micro-batch of the busiest device; a device may run several stages."""
    loads = dict.fromkeys(devices, 0.0)
    for (first, last), d in zip(pairwise((0, *cuts, seconds.shape[1])), devices, strict=True):
        loads[d] += float(seconds[d, first:last].sum())
    return max(loads.values())


def _list_orders(state: _Search) -> list[Longs]:
    """Orders of the components: that of the model, depth first, and those of the placements that are known."""
    graph, base = state.graph, np.arange(state.graph.n)
    orders = [base, np.argsort(depth_first(graph), kind="stable")]
    placements = [placement.device for placement in state.context.hints.placements]
    throughput = _throughput_placement(state)
    for device in (*placements, *(() if throughput is None else (throughput,))):
        rank = _stage_ranks(state.problem, device)
        if rank is not None:
            orders.append(np.lexsort((base, rank)))
    distinct: list[Longs] = []
    for order in orders:
        if not any(np.array_equal(order, other) for other in distinct):
            distinct.append(order)
    return distinct


def _throughput_placement(state: _Search) -> Ints | None:
    """The pipeline of least max-load along lines, which is a different problem, and often a good start."""
    problem, search = state.problem, state.context
    free = problem.with_(objective=Objective("throughput", memory=problem.objective.memory))
    placer = registry.create("dpl")
    if placer.supports(free) is not None:
        return None
    budget = Budget(seconds=LINE_SHARE * search.watch.left, threads=search.budget.threads, seed=search.budget.seed)
    found = run_placer(placer, free, budget).placement
    return None if found is None else found.device


def _stage_ranks(problem: Problem, device: Ints) -> Longs | None:
    """The place in the chain [n_components] of each component's device; None for devices that form no chain."""
    flat = problem.with_(objective=Objective("step", schedule="1f1b", memory=problem.objective.memory))
    pipeline = pipeline_of(flat, Placement(device), "1f1b")
    if not isinstance(pipeline, Pipeline):
        return None
    graph = contract(problem)
    rank = np.zeros(graph.n, np.int64)
    rank[graph.component] = pipeline.stage
    return rank


def _seconds_along(problem: Problem, graph: Contraction, order: Longs) -> Floats:
    """Seconds [n_devices, n_components] per micro-batch of the components, in an order; inf where one may not run."""
    works = op_roles(problem) != UPDATE
    times = np.where(problem.allowed, np.where(works[:, None], problem.costs.op_seconds, 0.0), np.inf)
    found = np.zeros((graph.n, problem.n_devices))
    np.add.at(found, graph.component, times)
    return np.ascontiguousarray(found[order].T)
