"""cpsat: the published integer program for throughput, by OR-Tools' CP-SAT; for latency see `timed.py`.

Tarnawski et al., NeurIPS 2020, section 4 and their released program; `integer.py` states it. Placements are free,
convex or contiguous, as the problem asks: convex is what that program asks, contiguous what the dynamic programs do.

CP-SAT knows whole numbers only. Costs are rounded down to units, so many to a value that is reached already, so
that the solver's bound, scaled back, is one; its placement is priced by the judge. A note says what the unit is
and how much a load may have lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from ortools.sat.python import cp_model

from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import (
    Budget,
    PlacerInfo,
    SearchContext,
    Stopwatch,
)
from placewise.placers.cp_sat.latency import TimedLimits, place_in_time, too_large
from placewise.placers.cp_sat.throughput_model import Program, n_variables, unit_of
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.solve import Solved, solve_model, solver_parameters
from placewise.placers.shared.stages.line_split import find_best_split
from placewise.placers.shared.stages.stage_costs import PricedStages, price_stages
from placewise.simulate import Evaluator
from placewise.simulate.contiguity import Contraction, contract, depth_first

MOST_VARIABLES = 400_000
"""About what is built in half a minute and fits in 2 GB."""
WORK = 60.0
"""CP-SAT's own measure of work, where the budget names neither seconds nor iterations: about as many seconds."""
ROUNDED = 1 - 1e-12


@dataclass(frozen=True, slots=True)
class CpsatOptions:
    """`units`: how many make up the value to start from; `workers`: threads of the solver, no more than the budget has,
    of which one is deterministic.

    `calls`, for latency in subgraph execution: the most calls of an accelerator; None for as many as the bound
    needs in small models, and two in others. `search`, for latency: the share of the time for a local search to
    start from, 0 for none where there are hints.
    """

    units: int = 1 << 30
    workers: int = 1
    calls: int | None = None
    search: float = 0.2

    def __post_init__(self) -> None:
        for name, value, most in (("units", self.units, 1 << 40), ("workers", self.workers, 1 << 10)):
            if not isinstance(value, int) or not 1 <= value <= most:
                raise PlacerError(f"cpsat cannot do with {name}={value}", remedy=f"give a number from 1 to {most}")
        if self.calls is not None and (not isinstance(self.calls, int) or self.calls < 1):
            raise PlacerError(f"cpsat cannot do with calls={self.calls}", remedy="give a number from 1 on")
        if not 0 <= self.search <= 1:
            raise PlacerError(f"cpsat cannot do with search={self.search}", remedy="give a share from 0 to 1")


@dataclass(slots=True)
class _Run:
    """One call: what it works on, and what the first solve proved. `lost`: seconds that rounding took, at most."""

    problem: Problem
    options: CpsatOptions
    graph: Contraction
    watch: Stopwatch
    hints: list[Ints]
    bound: float | None = None
    infeasible: bool = False
    reason: Reason = Reason.FINISHED
    unit: float = 0.0
    lost: float = 0.0
    _work: float = 0.0
    _solved: int = 0

    def solve(self, capacity: Floats) -> Ints | None:
        """The devices [n_ops] of the program's answer within `capacity` [n_devices], or None."""
        if self.reason is Reason.INTERRUPTED:
            return None
        problem, rules = self.problem, self.problem.constraints
        graph = self.graph if rules.contiguous else None
        group, n = (problem.block, problem.n_blocks) if graph is None else (graph.component, graph.n)
        priced = price_stages(problem, group, n, capacity)
        reached = min((_value(problem, hint) for hint in self.hints), default=0.0)
        unit = unit_of(priced, reached, self.options.units)
        program = Program(priced.costs, unit)
        if graph is not None:
            program.chain(graph)
        else:
            program.order_by_compute()
            if rules.convex:
                program.convex(problem)
        for hint in self.hints[:1]:
            program.start_from(on_machines(priced, group, n, hint), graph)
        solved = self._call(program)
        if not self._solved:
            self._learn(program, priced, unit, solved)
        self._solved += 1
        if solved.interrupted:
            self.reason = Reason.INTERRUPTED
        if not solved.found:
            return None
        home = np.array([next(m for m, x in row.items() if solved.solver.value(x)) for row in program.at], np.int32)
        placed: Ints = np.array(_devices(priced), np.int32)[home][group]
        return placed

    def _call(self, program: Program) -> Solved:
        chosen = solver_parameters(self.watch, workers=_workers(self.options, self.watch.budget), most_work=WORK)
        if "max_deterministic_time" in chosen:
            chosen["max_deterministic_time"] = max(chosen["max_deterministic_time"] - self._work, 0.0)
        solved = solve_model(program.model, chosen, stop=self.watch.budget.stop)
        self._work += solved.solver.response_proto.deterministic_time
        return solved

    def _learn(self, program: Program, priced: PricedStages, unit: int, solved: Solved) -> None:
        self.infeasible = solved.status == cp_model.INFEASIBLE
        if not solved.finished:
            self.reason = Reason.TIME_LIMIT
        if self.infeasible or solved.status == cp_model.MODEL_INVALID:
            return
        self.bound = max(solved.bound, 0) * unit / priced.scale * ROUNDED
        self.unit, self.lost = unit / priced.scale, program.lost / priced.scale * (2 - ROUNDED)

    def notes(self, value: float) -> tuple[str, ...]:
        """What the user should know, at a placement's value in seconds (inf: there is none)."""
        found = []
        if self.bound is not None:
            share = f", {_up(100 * self.lost / value)} % of the value" if 0 < value < np.inf else ""
            said = f"costs were rounded down to whole units of {self.unit:.3g} s"
            found.append(f"{said}; the load of a device may have lost {_up(self.lost)} s{share}")
        if self.reason is Reason.TIME_LIMIT:
            budget = self.watch.budget
            if np.isfinite(budget.seconds):
                found.append("the time was over before the solver had its proof")
            elif budget.iterations is not None:
                found.append(f"the solver had no proof yet after {budget.iterations} units of its own work")
            else:
                found.append(
                    f"the solver had no proof yet after {WORK:.0f} units of its own work: a time limit allows more"
                )
        return tuple(found)


def _workers(options: CpsatOptions, budget: Budget) -> int:
    """How many threads the solver has; one is deterministic, others only where they are asked for."""
    return options.workers if budget.threads is None else min(options.workers, budget.threads)


def _up(number: float) -> str:
    """Three significant digits, never less than the number."""
    text = f"{number:.2e}"
    return text if float(text) >= number else f"{number * 1.006:.2e}"


def _devices(priced: PricedStages) -> list[int]:
    """The device that each machine of the program is."""
    return [d for k, members in enumerate(priced.devices) for d in members[: priced.costs.n_devices[k]]]


def on_machines(priced: PricedStages, group: Ints, n: int, device: Ints) -> Ints:
    """A placement [n_ops] on devices as one of the n groups on machines, −1 where the prices know no machine."""
    machine = {d: m for m, d in enumerate(_devices(priced))}
    home = np.full(n, -1, np.int32)
    home[group] = [machine.get(d, -1) for d in device.tolist()]
    return home


class CpsatPlacer:
    """The integer program of the paper, free, convex or contiguous, with a licence that everybody has."""

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
        if size > MOST_VARIABLES:
            made = (
                f"{problem.n_blocks:,} groups of ops, {problem.graph.n_tensors:,} tensors, {problem.n_devices} devices"
            )
            return (
                f"its integer program would have about {size:,} variables ({made}), and {MOST_VARIABLES:,} are the "
                f"most that cpsat takes: use {_instead(problem)}"
            )
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best of the program's answer, the hints and a split along a line, under the solver's bound."""
        problem = search.problem
        if problem.objective.kind == "latency":
            workers = _workers(self.options, search.budget)
            limits = TimedLimits(self.options.units, workers, self.options.calls, self.options.search)
            return place_in_time(problem, limits, search.watch, search.hints, search.evaluate, search.on_progress)
        watch, graph = search.watch, contract(problem)
        known = [h.device for h in search.hints.placements if not find_broken_rule(problem, h.device)]
        run = _Run(problem, self.options, graph, watch, known)
        try:
            split = _split(problem, graph, watch)
            known += [] if split is None or find_broken_rule(problem, split) else [split]
            known.sort(key=partial(_value, problem))
            device, _ = fit_memory(problem, run.solve)
            known += [] if device is None else [device]
        except KeyboardInterrupt:
            run.reason = Reason.INTERRUPTED
        if run.infeasible:
            shape = "contiguous" if problem.constraints.contiguous else "convex" if problem.constraints.convex else ""
            kept = f"keeps the memory of every device{' with ' + shape + ' stages' if shape else ''}"
            return Proposal(None, reason=Reason.PROVED, infeasible=f"no placement {kept}: CP-SAT proved it")
        bound = None if run.bound is None else Bound(run.bound, "integer program (CP-SAT)")
        if not known:
            notes = (*run.notes(np.inf), "no placement was found that fits in memory")
            return Proposal(None, bound, run.reason, notes)
        values = search.price(np.stack(known))
        values = np.where(np.isnan(values), np.inf, values)
        best = known[int(np.argmin(values))]
        return Proposal(Placement(relabel(problem, best)), bound, run.reason, run.notes(float(values.min())))


def _instead(problem: Problem) -> str:
    """What takes problems of any size."""
    if problem.constraints.contiguous:
        return "dp or dpl"
    return "dpl, whose stages are contiguous and so convex" if problem.constraints.convex else "auto or dpl"


def _split(problem: Problem, graph: Contraction, watch: Stopwatch) -> Ints | None:
    """The best split along two lines of the ops, one device per stage, to start from."""
    alone = problem.with_(constraints=replace(problem.constraints, replicas=1))
    lines = (np.arange(graph.n, dtype=np.int32), depth_first(graph))
    split, _ = fit_memory(
        problem, lambda room: find_best_split(alone, graph.component, lines, room, lambda *_: not watch.out).device
    )
    return split


def _value(problem: Problem, device: Ints) -> float:
    return float(Evaluator(problem, threads=1)(device[None])[0])
