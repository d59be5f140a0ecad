"""Latency by CP-SAT: the whole problem as one constraint program, for each of the three executions.

The models describe what they count. The search starts from the incumbent, and its bound counts too. Costs are rounded
down to whole units, so that the program's bound holds for the problem; the judge prices the placement. The models leave
out live activations: a solution that the judge rejects is excluded and the program solved again, and after too many
rejections devices get less memory. In `operator` execution another order of an excluded placement might have fitted:
only the first bound counts there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from placewise.model.columns import Floats
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import Progress, SearchContext
from placewise.placers.cp_sat import sequential_model
from placewise.placers.shared.fit import shrink_capacity
from placewise.placers.shared.schedule_models import operator_model, subgraph_model
from placewise.placers.shared.schedule_models.assignment import OpGroups, canonical_assignment, op_groups
from placewise.placers.shared.schedule_models.incumbent import Incumbent, find_incumbent
from placewise.placers.shared.schedule_models.model_builder import TimeScale, time_scale
from placewise.placers.shared.solve import Solved, solve_model, solver_parameters
from placewise.simulate import device_memory, judge_placement
from placewise.simulate.judge.subgraph import cut_calls

METHOD = "constraint program (CP-SAT)"
MAX_LITERALS = 300_000
ALL_CALLS, FEW_CALLS = 10, 2
"""With up to `ALL_CALLS` ops, each op may be a call of its own by default, which proves the bound; with more, an
accelerator has `FEW_CALLS` by default."""
WORK = 60.0
"""CP-SAT's deterministic time where the budget has neither seconds nor iterations: about as many seconds."""
REJECTIONS, SHRINKINGS = 60, 8
"""Solutions rejected for their live activations before devices get less memory, and how often they get less."""


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """Units per value, threads, the most calls of an accelerator (None: see `ALL_CALLS`), and the share of the time for
    a local search.
    """

    units: int
    workers: int
    calls: int | None = None
    search: float = 0.2


def too_large(problem: Problem, most_calls: int | None) -> str | None:
    """None, or why the program would be too large, and what to use instead."""
    execution = problem.objective.execution
    if execution == "subgraph":
        layout = subgraph_model.every_call(problem, op_groups(problem), _call_limit(problem, most_calls))
        size = subgraph_model.estimate(problem, layout)
    else:
        size = (operator_model if problem.objective.op_by_op else sequential_model).estimate(problem)
    if size <= MAX_LITERALS:
        return None
    return (
        f"its program for latency would have about {size:,} literals, and {MAX_LITERALS:,} are the most that cpsat "
        "solves; local and auto take models of any size"
    )


def _call_limit(problem: Problem, most: int | None) -> int:
    return most or (problem.n_ops if problem.n_ops <= ALL_CALLS else FEW_CALLS)


def place_for_latency(search: SearchContext, limits: LatencyLimits) -> Proposal:
    """The best of the starting placements, a local search and the program, under the best of their bounds."""
    incumbent = find_incumbent(search, limits.search)
    if search.watch.out and incumbent.reason is Reason.FINISHED:
        incumbent.reason = Reason.TIME_LIMIT
    if incumbent.optimal or incumbent.infeasible or incumbent.reason is not Reason.FINISHED:
        return incumbent.answer()
    return improve(search, incumbent, limits)


def improve(search: SearchContext, incumbent: Incumbent, limits: LatencyLimits) -> Proposal:
    """The program's placement, or the incumbent if that is better."""
    problem = search.problem
    scale = time_scale(problem, incumbent.value, limits.units)
    horizon = _horizon(problem, scale)
    if incumbent.best is not None:
        horizon = min(horizon, int(np.ceil(judge_placement(problem, incumbent.best).value / scale.seconds)) + 1)
    calls = _call_limit(problem, limits.calls)
    solver = _LatencySolver(search, incumbent, op_groups(problem), scale, horizon, calls, limits.workers)
    try:
        solver.run()
    except KeyboardInterrupt:
        incumbent.reason = Reason.INTERRUPTED
    notes = [f"costs were rounded down to whole units: {scale.rounding_error(_terms(problem)):.3g} s at most"]
    if not solver.complete:
        tried = f"at most {calls} calls per accelerator were tried, and there may be more"
        notes.append(f"{tried}: the bound is that of paths")
    return incumbent.answer(tuple(notes))


@dataclass(slots=True)
class _LatencySolver:
    """One call of the placer; `horizon` is in whole units, `calls` limits those of an accelerator."""

    search: SearchContext
    incumbent: Incumbent
    groups: OpGroups
    scale: TimeScale
    horizon: int
    calls: int
    workers: int

    @property
    def complete(self) -> bool:
        """Whether every placement with any calls is a solution."""
        problem = self.search.problem
        if problem.objective.execution != "subgraph":
            return True
        return self.calls >= int(subgraph_model.able_ops(problem, self.groups).max())

    def run(self) -> None:
        """Solve, judge, and solve again where the judge rejects the solution."""
        problem, watch, incumbent = self.search.problem, self.search.watch, self.incumbent
        capacity, proof = problem.capacity.copy(), self.complete
        model, rejected = self._build(capacity), 0
        while not watch.out or not rejected:
            solved = self._solve(model)
            if solved.interrupted:
                incumbent.reason = Reason.INTERRUPTED
            elif not solved.finished:
                incumbent.reason = Reason.TIME_LIMIT
            if proof:
                self._prove(model, solved)
            if solved.interrupted or not solved.found:
                return
            placement = model.placement(solved.solver.value)
            incumbent.offer(placement)
            if judge_placement(problem, placement).valid:
                return
            rejected += 1
            proof = proof and not problem.objective.op_by_op
            if rejected < REJECTIONS:
                _exclude(model, solved.solver)
            elif rejected < REJECTIONS + SHRINKINGS:
                proof, capacity = False, shrink_capacity(problem, capacity, *device_memory(problem, placement))
                model = self._build(capacity)
            else:
                return

    def _build(self, capacity: Floats) -> Any:
        """The model with at most `capacity` resident bytes [n_devices], hinted with the incumbent."""
        problem, best, execution = self.search.problem, self.incumbent.best, self.search.problem.objective.execution
        if execution == "subgraph":
            layout = subgraph_model.every_call(problem, self.groups, self.calls)
            model: Any = subgraph_model.SubgraphModel(problem, self.groups, layout, self.scale, capacity, self.horizon)
            model.number_calls()
        else:
            kind = operator_model.OperatorModel if problem.objective.op_by_op else sequential_model.SequentialModel
            model = kind(problem, self.groups, self.scale, capacity, self.horizon)
        model.assignment.chain()
        model.assignment.convex()
        model.assignment.break_symmetry()
        lost = self.scale.rounding_error(_terms(problem))
        floor = max(int((self.incumbent.bound.value - lost) / self.scale.seconds), 0)
        model.builder.model.add(model.makespan >= floor)
        if best is not None:
            assignment = canonical_assignment(problem, self.groups, best.device)
            if execution == "subgraph":
                call = cut_calls(problem, best.device) if best.call is None else best.call
                model.start_from(assignment, call)
            else:
                model.start_from(assignment)
        return model

    def _solve(self, model: Any) -> Solved:
        watch, reported = self.search.watch, -np.inf

        def report(solver: cp_model.CpSolver) -> None:
            nonlocal reported
            if watch.elapsed > reported + 0.5:
                reported = watch.elapsed
                value = self.incumbent.value if np.isfinite(self.incumbent.value) else None
                self.search.on_progress(Progress("cpsat", reported, "solving", value, self.incumbent.bound.value))

        chosen = solver_parameters(watch, workers=self.workers, most_work=WORK)
        return solve_model(model.builder.model, chosen, report, stop=watch.budget.stop)

    def _prove(self, model: Any, solved: Solved) -> None:
        """Keep what the solver proved."""
        if solved.status == cp_model.INFEASIBLE:
            proof = "no placement keeps the memory of every device and the rules: CP-SAT proved it"
            self.incumbent.infeasible = proof if self.incumbent.best is None else ""
        elif solved.bound >= 0:
            self.incumbent.prove(Bound(self.scale.lower_bound(solved.bound - model.excess), METHOD))


def _terms(problem: Problem) -> int:
    """An upper limit for the costs that add up to a value: ops and calls, and hops of tensors through the host."""
    return 2 * problem.n_ops + 4 * (len(problem.graph.consumers) + problem.graph.n_tensors)


def _exclude(model: Any, solver: cp_model.CpSolver) -> None:
    """Exclude the devices and calls of a solution."""
    rows = [*model.assignment.at, *getattr(model, "inside", [])]
    chosen = [x for row in rows for x in row.values() if x is not True and x is not False and solver.value(x)]
    model.builder.model.add_bool_or([~x for x in chosen])


def _horizon(problem: Problem, scale: TimeScale) -> int:
    """More units than any placement that can run takes: everything one after another."""
    seconds = problem.costs.op_seconds
    longest = np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1, initial=0.0).sum()
    readers = np.diff(problem.graph.consumer_offsets)
    moved = (problem.costs.transfer_seconds.max(axis=1, initial=0.0) * 2 * (readers + 1)).sum()
    overhead = max(device.call_overhead for device in problem.cluster) * problem.n_ops
    return int((longest + moved + overhead) / scale.seconds) + 1
