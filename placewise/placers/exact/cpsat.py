"""cpsat: the published integer program for throughput, by OR-Tools' CP-SAT.

Tarnawski et al., NeurIPS 2020, section 4 and their released program: x says which device has a block; a device
pays for a tensor that enters if it reads it and does not make it, and for one that leaves if it makes it and
somebody else reads it. Without contiguity placements are free. With it the devices stand in an order, and no edge
between components goes back in it (a chain of ideals; the published program asks less, convex sets).

CP-SAT knows whole numbers only. Costs are rounded down to `1 / units` of a value that is reached already, so
that the solver's bound, scaled back, is one; its placement is priced by the judge. The error of a load is below
one unit per term, and the note says how much that can be at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from ortools.sat.python import cp_model

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import NO_HINTS, Budget, Evaluate, Hints, OnProgress, PlacerInfo, Stopwatch, ignore
from placewise.placers.chains.linear import best_split
from placewise.placers.chains.stages import NEVER, Priced, StageCosts, price
from placewise.placers.common.alike import relabel
from placewise.placers.common.fit import fit
from placewise.placers.common.rules import broken
from placewise.simulate import Evaluator
from placewise.simulate.contract import Contraction, contract, depth_first
from placewise.simulate.infeasible import why_infeasible

MOST_PAIRS = 100_000
LONGEST = 60.0
"""Seconds, where the budget names none."""
ROUNDED = 1 - 1e-12


@dataclass(frozen=True, slots=True)
class CpsatOptions:
    """`units`: how many make up the value to start from; `workers`: threads, of which one is deterministic."""

    units: int = 1 << 24
    workers: int = 1


@dataclass(slots=True)
class _Run:
    """One call: what it works on, and what the first solve proved."""

    problem: Problem
    options: CpsatOptions
    graph: Contraction
    watch: Stopwatch
    hints: list[Ints]
    bound: float | None = None
    infeasible: bool = False
    reason: Reason = Reason.FINISHED
    notes: list[str] = field(default_factory=list)
    _solved: int = 0

    def solve(self, capacity: Floats) -> Ints | None:
        """The devices [n_ops] of the program's answer within `capacity` [n_devices], or None."""
        problem = self.problem
        contiguous = problem.constraints.contiguous
        group, n = (self.graph.component, self.graph.n) if contiguous else (problem.block, problem.n_blocks)
        priced = price(problem, group, n, capacity)
        reached = min((float(v) for v in Evaluator(problem)(np.stack(self.hints))), default=np.inf) if self.hints else 0
        unit = _unit(priced, float(reached), self.options.units)
        program = _Program(priced.costs, unit)
        if contiguous:
            program.chain(self.graph)
        program.break_symmetry(contiguous)
        for hint in self.hints[:1]:
            program.start_from(_on_machines(priced, program.kinds, group, n, hint))
        solver, status = self._call(program)
        if not self._solved:
            self._learn(program, priced, unit, solver, status)
        self._solved += 1
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        home = np.array([next(m for m, x in row.items() if solver.value(x)) for row in program.at], np.int32)
        device = [d for k, members in enumerate(priced.devices) for d in members[: priced.costs.n_devices[k]]]
        placed: Ints = np.array(device, np.int32)[home][group]
        return placed

    def _call(self, program: _Program) -> tuple[cp_model.CpSolver, Any]:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self.options.workers
        solver.parameters.random_seed = self.watch.budget.seed
        solver.parameters.max_time_in_seconds = min(self.watch.left, LONGEST) if self._endless else self.watch.left
        solver.parameters.relative_gap_limit = self.watch.budget.gap
        if self.watch.budget.iterations is not None:
            solver.parameters.max_deterministic_time = float(self.watch.budget.iterations)
        return solver, solver.solve(program.model)

    @property
    def _endless(self) -> bool:
        return not np.isfinite(self.watch.budget.seconds)

    def _learn(self, program: _Program, priced: Priced, unit: int, solver: cp_model.CpSolver, status: Any) -> None:
        self.infeasible = status == cp_model.INFEASIBLE
        if status not in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
            self.reason = Reason.TIME_LIMIT
        if self.infeasible or status == cp_model.MODEL_INVALID:
            return
        whole = int(np.ceil(solver.best_objective_bound - 1e-6))
        self.bound = max(whole, 0) * unit / priced.scale * ROUNDED
        error = program.terms * unit / priced.scale
        self.notes.append(f"costs were rounded down to whole units: {error:.3g} s at most on a device")


class _Program:
    """The model: `at[b][m]` says that block b is on machine m; machines of a class stand side by side."""

    def __init__(self, costs: StageCosts, unit: int) -> None:
        self.costs, self.unit, self.model = costs, unit, cp_model.CpModel()
        self.kinds = [kind for kind, count in enumerate(costs.n_devices.tolist()) for _ in range(count)]
        model = self.model
        able = costs.seconds < NEVER
        self.at = [
            {m: model.new_bool_var("") for m, kind in enumerate(self.kinds) if able[block, kind]}
            for block in range(len(costs.size))
        ]
        for row in self.at:
            model.add_exactly_one(row.values())
        self.terms = len(self.at) + len(costs.producer)
        self.worst = model.new_int_var(0, int(costs.seconds[able].sum() + costs.enter.sum() + costs.leave.sum()), "")
        self.compute = [self._machine(m, kind) for m, kind in enumerate(self.kinds)]
        model.minimize(self.worst)

    def _machine(self, m: int, kind: int) -> Any:
        """Load and memory of one machine; its compute."""
        costs, model = self.costs, self.model
        here = {block: row[m] for block, row in enumerate(self.at) if m in row}
        compute = sum(int(costs.seconds[block, kind]) // self.unit * x for block, x in here.items())
        send, receive = self._transfers(m, int(costs.rate[kind]), here)
        loads = ([compute + send + receive], [compute, send + receive], [compute, send, receive])[costs.mode]
        for part in loads:
            model.add(part <= self.worst)
        everything = int(costs.size.sum() + costs.storage_bytes.sum())
        if everything > costs.capacity[kind]:
            model.add(self._bytes(here) <= int(costs.capacity[kind]))
        return compute

    def _transfers(self, m: int, rate: int, here: dict[int, Any]) -> tuple[Any, Any]:
        """What machine m sends and receives, in whole units."""
        send: Any = 0
        receive: Any = 0
        costs, model = self.costs, self.model
        if rate < 0:
            return send, receive
        for tensor, maker in enumerate(costs.producer.tolist()):
            readers = costs.consumers[costs.consumer_offsets[tensor] : costs.consumer_offsets[tensor + 1]].tolist()
            entering, leaving = (int(table[tensor, rate]) // self.unit for table in (costs.enter, costs.leave))
            made = here.get(maker)
            inside = [here[reader] for reader in readers if reader in here]
            if entering and inside:
                enters = model.new_bool_var("")
                for reader in inside:
                    model.add(enters >= (reader if made is None else reader - made))
                receive += entering * enters
            if leaving and made is not None:
                if costs.output[tensor] or len(inside) < len(readers):
                    send += leaving * made
                    continue
                leaves = model.new_bool_var("")
                for reader in inside:
                    model.add(leaves >= made - reader)
                send += leaving * leaves
        return send, receive

    def _bytes(self, here: dict[int, Any]) -> Any:
        costs, model = self.costs, self.model
        total: Any = sum(int(costs.size[block]) * x for block, x in here.items())
        users: dict[int, list[Any]] = {}
        for block, x in here.items():
            for storage in costs.storages[costs.storage_offsets[block] : costs.storage_offsets[block + 1]].tolist():
                users.setdefault(storage, []).append(x)
        for storage, variables in users.items():
            held = model.new_bool_var("")
            for x in variables:
                model.add_implication(x, held)
            total += int(costs.storage_bytes[storage]) * held
        return total

    def chain(self, graph: Contraction) -> None:
        """The machines stand in an order, and no edge of the components goes back in it."""
        model, width = self.model, len(self.kinds)
        place = [model.new_int_var(0, width - 1, "") for _ in self.kinds]
        if width > 1:
            model.add_all_different(place)
        stage = [model.new_int_var(0, width - 1, "") for _ in self.at]
        for row, where in zip(self.at, stage, strict=True):
            for m, x in row.items():
                model.add(where == place[m]).only_enforce_if(x)
        for tail, head in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
            model.add(stage[tail] <= stage[head])
        for m in range(1, width):
            if self.kinds[m] == self.kinds[m - 1]:
                model.add(place[m - 1] < place[m])

    def break_symmetry(self, ordered: bool) -> None:
        """Of free machines that are alike, the earlier one computes at least as much."""
        for m in range(1, len(self.kinds)):
            if not ordered and self.kinds[m] == self.kinds[m - 1]:
                self.model.add(self.compute[m - 1] >= self.compute[m])

    def start_from(self, home: Ints) -> None:
        """Tell the solver of a placement [n] of blocks on machines; −1 says nothing."""
        for row, where in zip(self.at, home.tolist(), strict=True):
            for m, x in row.items():
                if where >= 0:
                    self.model.add_hint(x, m == where)


def _unit(priced: Priced, reached: float, units: int) -> int:
    """Units of the prices that become one of the program: so many that a value that is reached has `units`."""
    costs = priced.costs
    seconds = np.where(costs.seconds < NEVER, costs.seconds, 0)
    total = int(seconds.max(axis=1, initial=0).sum())
    value = min(int(reached * priced.scale) if 0 < reached < np.inf else total, total) or total
    return max(value // units, int((total + costs.enter.sum() + costs.leave.sum()) // (1 << 45)), 1)


def _on_machines(priced: Priced, kinds: list[int], group: Ints, n: int, device: Ints) -> Ints:
    """A placement [n_ops] on devices as one of the n groups on machines, −1 where the prices know no machine."""
    known = [d for k, members in enumerate(priced.devices) for d in members[: priced.costs.n_devices[k]]]
    machine = {d: m for m, d in enumerate(known)}
    home = np.full(n, -1, np.int32)
    home[group] = [machine.get(d, -1) for d in device.tolist()]
    return home


class CpsatPlacer:
    """The integer program of the paper, contiguous or free, with a licence that everybody has."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="cpsat",
        summary="the published integer program for throughput, contiguous or free",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 4, solved by OR-Tools CP-SAT",
        exact=True,
        objectives=frozenset({"throughput"}),
    )
    Options: ClassVar[type[CpsatOptions]] = CpsatOptions

    def __init__(self, options: CpsatOptions | None = None) -> None:
        self.options = options or CpsatOptions()

    def supports(self, problem: Problem) -> str | None:
        if problem.objective.kind != "throughput":
            return "cpsat minimizes the max-load of a pipeline, not latency"
        pairs = problem.n_blocks * problem.n_devices
        return f"{pairs:,} pairs of groups and devices are too many for cpsat" if pairs > MOST_PAIRS else None

    def propose(
        self,
        problem: Problem,
        budget: Budget,
        *,
        hints: Hints = NO_HINTS,
        evaluate: Evaluate | None = None,
        on_progress: OnProgress = ignore,
    ) -> Proposal:
        """The best of the program's answer, the hints and a split along a line, under the solver's bound."""
        missing = why_infeasible(problem)
        if missing:
            return Proposal(None, reason=Reason.PROVED, infeasible=missing)
        if not problem.n_ops:
            return Proposal(Placement(np.zeros(0, np.int32)))
        watch, graph = Stopwatch(budget), contract(problem)
        lines = (np.arange(graph.n, dtype=np.int32), depth_first(graph))
        split, _ = fit(
            problem, lambda room: best_split(problem, graph.component, lines, room, lambda *_: not watch.out).device
        )
        known = [h.device for h in hints.placements] + ([] if split is None else [split])
        known = sorted((d for d in known if not broken(problem, d)), key=partial(_value, problem))
        run = _Run(problem, self.options, graph, watch, known)
        try:
            device, _ = fit(problem, run.solve)
            known += [] if device is None else [device]
        except KeyboardInterrupt:
            run.reason = Reason.INTERRUPTED
        if run.infeasible:
            proof = "no placement keeps the memory of every device and the order of the stages: CP-SAT proved it"
            return Proposal(None, reason=Reason.PROVED, infeasible=proof)
        bound = None if run.bound is None else Bound(run.bound, "integer program (CP-SAT)")
        if not known:
            return Proposal(None, bound, run.reason, (*run.notes, "no placement was found that fits in memory"))
        values = (evaluate or Evaluator(problem))(np.stack(known))
        best = known[int(np.argmin(np.where(np.isnan(values), np.inf, values)))]
        return Proposal(Placement(relabel(problem, best)), bound, run.reason, tuple(run.notes))


def _value(problem: Problem, device: Ints) -> float:
    return float(Evaluator(problem, threads=1)(device[None])[0])
