"""Latency by CP-SAT: the whole problem as one constraint program, for each of the three executions.

The programs (`placers/timed`) say what they count. The search starts from the hints and from a local search, whose
bounds count too. Costs are whole units, rounded down, so that the program's bound is one of the problem; the
placement is priced by the judge. Live activations are no part of the programs: a solution that the judge refuses is
forbidden and the program solved again, and where too many were refused, devices are given less. Where the order of
ops decides (`operator`), another order of a forbidden placement might have fitted: only the first bound counts then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from placewise.model.columns import Floats
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import Evaluate, Hints, OnProgress, Progress, Stopwatch
from placewise.placers.cp_sat import sequential_model
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.schedule_models import operator_model, subgraph_model
from placewise.placers.shared.schedule_models.assignment import Groups, groups_of, in_order
from placewise.placers.shared.schedule_models.incumbents import Known, start
from placewise.placers.shared.schedule_models.time_units import Units, units_of
from placewise.placers.shared.solve import Solved, solve_model, solver_parameters
from placewise.simulate import device_memory, judge_placement
from placewise.simulate.judge.subgraph import cut_calls
from placewise.simulate.problem_arrays import arrays_of

METHOD = "constraint program (CP-SAT)"
MOST_LITERALS = 300_000
ALL_CALLS = 10
"""With so few ops, every op may be a call of its own unless the user says otherwise: the bound is proved then."""
FEW_CALLS = 2
WORK = 60.0
"""CP-SAT's own measure of work, where the budget names neither seconds nor iterations: about as many seconds."""
REFUSALS = 60
"""So many solutions are refused for their live activations before devices are given less."""
SHRINKINGS = 8


@dataclass(frozen=True, slots=True)
class TimedLimits:
    """Units that make up a value, threads, the most calls of an accelerator (None: see `ALL_CALLS`), and the share of
    the time for a local search.
    """

    units: int
    workers: int
    calls: int | None = None
    search: float = 0.2


def too_large(problem: Problem, most_calls: int | None) -> str | None:
    """None, or why the program would be too large, and what to use instead."""
    execution = problem.objective.execution
    if execution == "operator":
        size = operator_model.estimate(problem)
    elif execution == "sequential":
        size = sequential_model.estimate(problem)
    else:
        size = subgraph_model.estimate(
            problem, subgraph_model.every_call(problem, groups_of(problem), _calls(problem, most_calls))
        )
    if size <= MOST_LITERALS:
        return None
    return (
        f"its program for latency would have about {size:,} literals, and {MOST_LITERALS:,} are the most that can be "
        "worked with; temper and auto take models of any size"
    )


def _calls(problem: Problem, most: int | None) -> int:
    return most or (problem.n_ops if problem.n_ops <= ALL_CALLS else FEW_CALLS)


@dataclass(slots=True)
class _Run:
    """One call of the placer."""

    problem: Problem
    groups: Groups
    known: Known
    units: Units
    horizon: int
    calls: int
    workers: int
    watch: Stopwatch
    on_progress: OnProgress
    infeasible: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every placement with all its calls is a solution."""
        if self.problem.objective.execution != "subgraph":
            return True
        return self.calls >= int(subgraph_model.able_ops(self.problem, self.groups).max())

    def build(self, capacity: Floats) -> Any:
        shared = (self.problem, self.groups)
        execution = self.problem.objective.execution
        if execution == "subgraph":
            layout = subgraph_model.every_call(*shared, self.calls)
            program: Any = subgraph_model.CallProgram(*shared, layout, self.units, capacity, self.horizon)
            program.number_calls()
        else:
            kind = operator_model.QueueProgram if execution == "operator" else sequential_model.PieceProgram
            program = kind(*shared, self.units, capacity, self.horizon)
        program.homes.chain()
        program.homes.convex()
        program.homes.break_symmetry()
        program.program.model.add(program.makespan >= self._floor())
        self._hint(program)
        return program

    def _floor(self) -> int:
        """The bound that is known, in whole units: it holds in the program too, but for what rounding took off."""
        lost = self.units.error(_terms(self.problem))
        return max(int((self.known.bound.value - lost) / self.units.seconds), 0)

    def _hint(self, program: Any) -> None:
        best = self.known.best
        if best is None:
            return
        home = in_order(self.problem, self.groups, best.device)
        if self.problem.objective.execution != "subgraph":
            program.start_from(home)
            return
        call = cut_calls(arrays_of(self.problem), best.device) if best.call is None else best.call
        program.start_from(home, call)

    def search(self) -> None:
        """Solve, judge, and solve again where the judge refuses."""
        capacity, proof = self.problem.capacity.copy(), self.complete
        program, refused = self.build(capacity), 0
        while not self.watch.out or not refused:
            solved = self._solve(program)
            if solved.interrupted:
                self.known.reason = Reason.INTERRUPTED
            elif not solved.finished:
                self.known.reason = Reason.TIME_LIMIT
            if proof:
                self._learn(program, solved)
            if solved.interrupted or not solved.found:
                return
            placement = program.placement(solved.solver.value)
            self.known.offer(placement)
            if judge_placement(self.problem, placement).valid:
                return
            refused += 1
            proof = proof and self.problem.objective.execution != "operator"
            if refused < REFUSALS:
                _forbid(program, solved.solver)
            elif refused < REFUSALS + SHRINKINGS:
                proof, capacity = False, _less(self.problem, placement, capacity)
                program = self.build(capacity)
            else:
                return

    def _solve(self, program: Any) -> Solved:
        told = [-np.inf]

        def tell(solver: cp_model.CpSolver) -> None:
            if self.watch.elapsed > told[0] + 0.5:
                told[0] = self.watch.elapsed
                value = self.known.value if np.isfinite(self.known.value) else None
                self.on_progress(Progress("cpsat", told[0], "solving", value, self.known.bound.value))

        chosen = solver_parameters(self.watch, workers=self.workers, most_work=WORK)
        return solve_model(program.program.model, chosen, tell, stop=self.watch.budget.stop)

    def _learn(self, program: Any, solved: Solved) -> None:
        if solved.status == cp_model.INFEASIBLE:
            self.infeasible = self.known.best is None
        elif solved.bound >= 0:
            self.known.prove(Bound(self.units.bound(solved.bound - program.excess), METHOD))


def _terms(problem: Problem) -> int:
    """More costs than any value is a sum of: ops and calls, and hops of tensors, to and from the host."""
    return 2 * problem.n_ops + 4 * (len(problem.graph.consumers) + problem.graph.n_tensors)


def _less(problem: Problem, placement: Placement, capacity: Floats) -> Floats:
    """Capacity [n_devices] for resident bytes, less what activations took too much, on all devices alike."""
    resident, peak = device_memory(problem, placement)
    kind, less = interchangeable(problem), capacity.copy()
    for d in np.flatnonzero(peak > problem.capacity).tolist():
        same = kind == kind[d]
        room = resident[d] - (peak[d] - problem.capacity[d])
        less[same] = np.maximum(np.minimum(capacity[same], room), 0.0)
    return less


def _forbid(program: Any, solver: cp_model.CpSolver) -> None:
    """Exclude the solution's homes and calls."""
    rows = [*program.homes.at, *getattr(program, "inside", [])]
    chosen = [x for row in rows for x in row.values() if x is not True and x is not False and solver.value(x)]
    program.program.model.add_bool_or([~x for x in chosen])


def place_in_time(
    problem: Problem,
    limits: TimedLimits,
    watch: Stopwatch,
    hints: Hints,
    evaluate: Evaluate | None,
    on_progress: OnProgress,
) -> Proposal:
    """The best of the hints, a local search and the program's answer, under the best of their bounds."""
    known = start(problem, watch, hints, evaluate, on_progress, limits.search)
    if watch.out and known.reason is Reason.FINISHED:
        known.reason = Reason.TIME_LIMIT
    if known.closed or known.reason is not Reason.FINISHED:
        return known.answer()
    return improve(known, limits, watch, on_progress)


def improve(known: Known, limits: TimedLimits, watch: Stopwatch, on_progress: OnProgress) -> Proposal:
    """The program's answer, or what is known already if that is better."""
    problem = known.problem
    scale = units_of(problem, known.value, limits.units)
    horizon = _horizon(problem, scale)
    if known.best is not None:
        horizon = min(horizon, int(np.ceil(judge_placement(problem, known.best).value / scale.seconds)) + 1)
    most = _calls(problem, limits.calls)
    run = _Run(problem, groups_of(problem), known, scale, horizon, most, limits.workers, watch, on_progress)
    try:
        run.search()
    except KeyboardInterrupt:
        known.reason = Reason.INTERRUPTED
    if run.infeasible:
        proof = "no placement keeps the memory of every device and the rules: CP-SAT proved it"
        return Proposal(None, reason=Reason.PROVED, infeasible=proof)
    run.notes.append(f"costs were rounded down to whole units: {scale.error(_terms(problem)):.3g} s at most")
    if not run.complete:
        run.notes.append(
            f"at most {run.calls} calls per accelerator were tried, and there may be more: the bound is that of paths"
        )
    return known.answer(tuple(run.notes))


def _horizon(problem: Problem, units: Units) -> int:
    """More units than any placement that can run takes: all its parts one after another."""
    seconds = problem.costs.op_seconds
    longest = np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1, initial=0.0).sum()
    readers = np.diff(problem.graph.consumer_offsets)
    moved = (problem.costs.transfer_seconds.max(axis=1, initial=0.0) * 2 * (readers + 1)).sum()
    overhead = max(device.call_overhead for device in problem.cluster) * problem.n_ops
    return int((longest + moved + overhead) / units.seconds) + 1
