"""cpsat: the published integer program for throughput, by OR-Tools' CP-SAT; for latency see `latency.py`.

Tarnawski et al., NeurIPS 2020, section 4 and their released program; `throughput_model.py` states it. Placements are
free, convex or contiguous, as the problem asks: convex as in that program, contiguous as in the dynamic programs.

CP-SAT works with whole numbers. Costs are rounded down to units, `units` of them to a value that is reached already,
so that the solver's bound, scaled back, holds; the judge prices the placement. A note gives the unit and how much a
load may have lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
from ortools.sat.python import cp_model

from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import Budget, PlacerInfo, SearchContext
from placewise.placers.cp_sat.latency import LatencyLimits, place_for_latency, too_large
from placewise.placers.cp_sat.throughput_model import ThroughputModel, n_variables, unit_of
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.solve import Solved, solve_model, solver_parameters
from placewise.placers.shared.stages.stage_costs import PricedStages, price_stages
from placewise.placers.shared.starting_placements import find_starting_placements
from placewise.simulate import Evaluator
from placewise.simulate.contiguity import Contraction, contract

MAX_VARIABLES = 400_000
"""The model of about this size is built in several seconds and fits in 2 GB."""
BUILD_PACE, BUILD_SHARE = 1.5e-5, 0.5
"""Seconds per variable that the model takes to be built, and the most of the remaining time that this may be."""
WORK = 60.0
"""CP-SAT's deterministic time where the budget has neither seconds nor iterations: about as many seconds."""
START_SHARE = 0.1
"""Of the time, at most, for quick placers."""
ROUNDED = 1 - 1e-12


@dataclass(frozen=True, slots=True)
class CpsatOptions:
    """`units`: how many make up the first value; `workers`: threads of the solver, at most those of the budget; only
    one thread is deterministic.

    `calls`, for latency in subgraph execution: the most calls of an accelerator; None for as many as the bound needs
    in small models, and two in others. `search`, for latency: the share of the time for a local search first.
    """

    units: int = 1 << 30
    workers: int = 1
    calls: int | None = None
    search: float = 0.2

    def __post_init__(self) -> None:
        for name, value, most in (("units", self.units, 1 << 40), ("workers", self.workers, 1 << 10)):
            if not isinstance(value, int) or not 1 <= value <= most:
                raise PlacerError(
                    f"cpsat does not support {name}={value}", remedy=f"give a whole number from 1 to {most}"
                )
        if self.calls is not None and (not isinstance(self.calls, int) or self.calls < 1):
            raise PlacerError(f"cpsat does not support calls={self.calls}", remedy="give 1 or more")
        if not 0 <= self.search <= 1:
            raise PlacerError(f"cpsat does not support search={self.search}", remedy="give a share from 0 to 1")


@dataclass(slots=True)
class _ThroughputSolver:
    """One call: the problem, valid placements [n_ops] with the best first, and what the first solve proved.

    `unit` is in seconds; `lost` is the most seconds that rounding took from a load; `unbuilt` says that there was no
    time for the program.
    """

    search: SearchContext
    options: CpsatOptions
    graph: Contraction
    valid: list[Ints] = field(default_factory=list)
    bound: float | None = None
    infeasible: bool = False
    reason: Reason = Reason.FINISHED
    unit: float = 0.0
    lost: float = 0.0
    unbuilt: bool = False
    _work: float = 0.0
    _solved: int = 0

    def solve(self, capacity: Floats) -> Ints | None:
        """The devices [n_ops] of the program's solution within `capacity` [n_devices], or None."""
        if self.reason is Reason.INTERRUPTED:
            return None
        if BUILD_PACE * n_variables(self.search.problem) > BUILD_SHARE * self.search.watch.left:
            self.reason, self.unbuilt = Reason.TIME_LIMIT, not self._solved
            return None
        problem, rules = self.search.problem, self.search.problem.constraints
        graph = self.graph if rules.contiguous else None
        group, n = (problem.block, problem.n_blocks) if graph is None else (graph.component, graph.n)
        priced = price_stages(problem, group, n, capacity)
        reached = _value(problem, self.valid[0]) if self.valid else 0.0
        unit = unit_of(priced, reached, self.options.units)
        model = ThroughputModel(priced.costs, unit)
        if graph is not None:
            model.chain(graph)
        else:
            model.order_by_compute()
            if rules.convex:
                model.convex(problem)
        for device in self.valid[:1]:
            model.start_from(on_machines(priced, group, n, device), graph)
        solved = self._run(model)
        if not self._solved:
            self._learn(model, priced, unit, solved)
        self._solved += 1
        if solved.interrupted:
            self.reason = Reason.INTERRUPTED
        if not solved.found:
            return None
        machine = [next(m for m, x in row.items() if solved.solver.value(x)) for row in model.at]
        return np.array(_devices(priced), np.int32)[machine][group]

    def _run(self, model: ThroughputModel) -> Solved:
        budget = self.search.budget
        chosen = solver_parameters(self.search.watch, workers=_workers(self.options, budget), most_work=WORK)
        if "max_deterministic_time" in chosen:
            chosen["max_deterministic_time"] = max(chosen["max_deterministic_time"] - self._work, 0.0)
        solved = solve_model(model.model, chosen, stop=budget.stop)
        self._work += solved.solver.response_proto.deterministic_time
        return solved

    def _learn(self, model: ThroughputModel, priced: PricedStages, unit: int, solved: Solved) -> None:
        self.infeasible = solved.status == cp_model.INFEASIBLE
        if not solved.finished:
            self.reason = Reason.TIME_LIMIT
        if self.infeasible or solved.status == cp_model.MODEL_INVALID:
            return
        self.bound = max(solved.bound, 0) * unit / priced.scale * ROUNDED
        self.unit, self.lost = unit / priced.scale, model.lost / priced.scale * (2 - ROUNDED)

    def notes(self, value: float) -> tuple[str, ...]:
        """Notes on rounding and on a missing proof, for a placement of `value` seconds (inf: there is none)."""
        notes = []
        if self.bound is not None:
            share = f", {_round_up(100 * self.lost / value)} % of the value" if 0 < value < np.inf else ""
            rounding = f"costs were rounded down to whole units of {self.unit:.3g} s"
            notes.append(f"{rounding}; the load of a device may have lost {_round_up(self.lost)} s{share}")
        if self.unbuilt:
            size = n_variables(self.search.problem)
            notes.append(f"the time was too short to build the integer program of about {size:,} variables")
        elif self.reason is Reason.TIME_LIMIT:
            budget = self.search.budget
            if np.isfinite(budget.seconds):
                notes.append("the time was over before the solver had its proof")
            elif budget.iterations is not None:
                notes.append(f"the solver had no proof yet after {budget.iterations} units of its own work")
            else:
                work = f"{WORK:.0f} units of its own work"
                notes.append(f"the solver had no proof yet after {work}: a time limit allows more")
        return tuple(notes)


def _workers(options: CpsatOptions, budget: Budget) -> int:
    """The threads of the solver: one, which is deterministic, unless the options ask for more."""
    return options.workers if budget.threads is None else min(options.workers, budget.threads)


def _round_up(number: float) -> str:
    """Three significant digits, never less than the number."""
    text = f"{number:.2e}"
    return text if float(text) >= number else f"{number * 1.006:.2e}"


def _devices(priced: PricedStages) -> list[int]:
    """The device of each machine of the program."""
    return [d for k, members in enumerate(priced.devices) for d in members[: priced.costs.n_devices[k]]]


def on_machines(priced: PricedStages, group: Ints, n: int, device: Ints) -> Ints:
    """The machine of each of n groups under a placement [n_ops], −1 where the program has no machine for the device."""
    machine = {d: m for m, d in enumerate(_devices(priced))}
    machines = np.full(n, -1, np.int32)
    machines[group] = [machine.get(d, -1) for d in device.tolist()]
    return machines


class CpsatPlacer:
    """The integer program of the paper for free, convex or contiguous placements, on an open-source solver."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="cpsat",
        summary="the problem as one program: throughput contiguous, convex or free, and latency",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 4, solved by OR-Tools CP-SAT",
        exact=True,
    )
    Options: ClassVar[type[CpsatOptions]] = CpsatOptions

    def __init__(self, options: CpsatOptions | None = None) -> None:
        self.options = options or CpsatOptions()

    def supports(self, problem: Problem) -> str | None:
        if problem.objective.kind == "latency":
            return too_large(problem, self.options.calls)
        size = n_variables(problem)
        if size > MAX_VARIABLES:
            counts = (
                f"{problem.n_blocks:,} groups of ops, {problem.graph.n_tensors:,} tensors, {problem.n_devices} devices"
            )
            return (
                f"its integer program would have about {size:,} variables ({counts}), and {MAX_VARIABLES:,} are the "
                f"most that cpsat takes: use {_instead(problem)}"
            )
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best of the starting placements and the program's solution, under the solver's bound."""
        problem, options = search.problem, self.options
        if problem.objective.kind == "latency":
            workers = _workers(options, search.budget)
            return place_for_latency(search, LatencyLimits(options.units, workers, options.calls, options.search))
        solver = _ThroughputSolver(search, options, contract(problem))
        try:
            starts = find_starting_placements(search, quick_share=START_SHARE)
            solver.valid = sorted(starts.devices, key=partial(_value, problem))
            solver.reason = Reason.INTERRUPTED if starts.interrupted else Reason.FINISHED
            if starts.infeasible:
                return Proposal(None, reason=Reason.PROVED, infeasible=starts.infeasible)
            device, _ = fit_memory(problem, solver.solve)
            solver.valid += [] if device is None else [device]
        except KeyboardInterrupt:
            solver.reason = Reason.INTERRUPTED
        if solver.infeasible:
            shape = "contiguous" if problem.constraints.contiguous else "convex" if problem.constraints.convex else ""
            rules = f"keeps the memory of every device{' with ' + shape + ' stages' if shape else ''}"
            return Proposal(None, reason=Reason.PROVED, infeasible=f"no placement {rules}: CP-SAT proved it")
        bound = None if solver.bound is None else Bound(solver.bound, "integer program (CP-SAT)")
        if not solver.valid:
            notes = (*solver.notes(np.inf), "no placement was found that fits in memory")
            return Proposal(None, bound, solver.reason, notes)
        values = search.price(np.stack(solver.valid))
        values = np.where(np.isnan(values), np.inf, values)
        best = solver.valid[int(np.argmin(values))]
        return Proposal(Placement(relabel(problem, best)), bound, solver.reason, solver.notes(float(values.min())))


def _instead(problem: Problem) -> str:
    """Placers that take problems of any size."""
    if problem.constraints.contiguous:
        return "dp or dpl"
    return "dpl, whose stages are contiguous and so convex" if problem.constraints.convex else "auto or dpl"


def _value(problem: Problem, device: Ints) -> float:
    return float(Evaluator(problem, threads=1)(device[None])[0])
