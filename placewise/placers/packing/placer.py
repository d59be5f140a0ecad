"""pack: any placement that fits, or the proof that none does. It considers memory only.

First come methods that take milliseconds: blocks by falling size into the device that suits them best, then a local
search over shifts and exchanges; if stages must follow each other, splits of many orders of the ops. Then CP-SAT
(OR-Tools) minimizes the missing bytes, counting a storage that several blocks use once per device. If bytes are missing
in every solution, nothing fits, and the answer says how many. There is no other proof of infeasibility.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np

from placewise._util.units import format_bytes
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import Hints, PlacerInfo, SearchContext, Stopwatch
from placewise.placers.packing.bin_packing import BlockKinds, assign_blocks, build_program, group_blocks
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import interchangeable, relabel
from placewise.placers.shared.partitions.component_lines import draw_order, fill_stages
from placewise.placers.shared.repair import PackingInstance, build_packing_instance, fill_by_size, repair, repair_memory
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.solve import solve_model, solver_parameters
from placewise.simulate.bounds.infeasible import largest_group
from placewise.simulate.contiguity import contract, depth_first

LONGEST = 30.0
"""The time limit for CP-SAT in seconds."""
SEARCHES, LINES = 2, 24
"""Local searches before CP-SAT, and orders of the ops if stages must follow each other."""
LATER = 200
"""Local searches after CP-SAT, within the time limit."""
MAX_LINED = 3_000_000
"""Components times orders that are tried."""


@dataclass(slots=True)
class _PackingOutcome:
    """The result of the last packing: the bytes that are missing at least, on which devices, and what was tried."""

    missing: int = 0
    devices: tuple[str, ...] = ()
    stopped: Reason | None = None
    tried: list[str] = field(default_factory=list)


class PackPlacer:
    """The last resort after greedy fills fail: a local search, then an exhaustive search over all packings."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="pack",
        summary="any placement that fits in memory, or the proof that there is none",
        source="bin packing by constraint programming (OR-Tools CP-SAT)",
        exact=True,
    )

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """A placement that fits, the proof that there is none, or a note of what was tried."""
        problem = search.problem
        watch, outcome = search.watch, _PackingOutcome()
        try:
            return self._answer(problem, search.hints, watch, outcome)
        except KeyboardInterrupt:
            return Proposal(None, reason=Reason.INTERRUPTED, notes=_describe_attempts(outcome))

    def _answer(self, problem: Problem, hints: Hints, watch: Stopwatch, outcome: _PackingOutcome) -> Proposal:
        instance, shaped = build_packing_instance(problem), problem.constraints.shaped
        starts = [placement.device for placement in hints.placements]
        device = (
            _split_orders(problem, watch, outcome)
            if shaped
            else _search_placement(problem, instance, starts, watch, outcome)
        )
        if device is not None:
            return Proposal(Placement(relabel(problem, device)))
        packed, shrunk = fit_memory(
            problem, partial(_solve_packing, problem, instance, group_blocks(instance), watch, outcome)
        )
        if outcome.missing and not shrunk:
            return Proposal(None, reason=Reason.PROVED, infeasible=_describe_proof(problem, outcome))
        if outcome.stopped is Reason.INTERRUPTED and packed is None:
            return Proposal(None, reason=Reason.INTERRUPTED, notes=_describe_attempts(outcome))
        if packed is not None and not find_broken_rule(problem, packed):
            return Proposal(Placement(relabel(problem, packed)), reason=outcome.stopped or Reason.FINISHED)
        if packed is not None:
            outcome.tried.append(f"a packing of weights, but {find_broken_rule(problem, packed)}")
        if not shaped and np.isfinite(watch.budget.seconds):
            again = _search_placement(problem, instance, [] if packed is None else [packed], watch, outcome, LATER)
            if again is not None:
                return Proposal(Placement(relabel(problem, again)))
        reason = outcome.stopped or (Reason.TIME_LIMIT if watch.out else Reason.FINISHED)
        return Proposal(None, reason=reason, notes=_describe_attempts(outcome))


def _describe_attempts(outcome: _PackingOutcome) -> tuple[str, ...]:
    tried = "; ".join(dict.fromkeys(outcome.tried)) or "nothing yet"
    return (f"no packing was found before the search ended, and infeasibility was not proved; tried: {tried}",)


def _describe_proof(problem: Problem, outcome: _PackingOutcome) -> str:
    where = f" ({', '.join(outcome.devices)})" if outcome.devices else ""
    lacking = f"memory is at least {format_bytes(outcome.missing)} ({outcome.missing} bytes) short"
    return f"{lacking} however the groups are spread{where}; {largest_group(problem)}"


def _search_placement(
    problem: Problem,
    instance: PackingInstance,
    starts: list[Ints],
    watch: Stopwatch,
    outcome: _PackingOutcome,
    most: int = SEARCHES,
) -> Ints | None:
    """Hints, fills by falling size and random fills, each repaired by local search."""
    fills = [fill_by_size(instance, problem.capacity, even=even)[problem.block] for even in (True, False)]
    done = 0
    for start in (*starts, *fills, *_draw_starts(instance, problem, watch.budget.seed, most)):
        if done and watch.out:
            break
        if not done or len(starts) <= done < len(starts) + len(fills) or most > SEARCHES:
            device = repair(problem, start, instance=instance, seed=watch.budget.seed + done, watch=watch)
            if device is not None:
                return device
        done += 1
    outcome.tried.append(f"local search from {done} starts, by falling size and at random")
    return None


def _draw_starts(instance: PackingInstance, problem: Problem, seed: int, most: int) -> Iterator[Ints]:
    """Random placements of the blocks on devices that may run them."""
    rng = np.random.default_rng(seed)
    for _ in range(most - SEARCHES):
        assignment = np.where(instance.runs, rng.random(instance.runs.shape), -1.0).argmax(axis=1).astype(np.int32)
        yield assignment[problem.block]


def _split_orders(problem: Problem, watch: Stopwatch, outcome: _PackingOutcome) -> Ints | None:
    """A split within memory of the first of many topological orders that has one."""
    graph = contract(problem)
    orders = [np.arange(graph.n, dtype=np.int32), depth_first(graph)]
    tries = max(2, min(LINES, MAX_LINED // max(graph.n, 1)))
    done = 0
    for number in range(tries):
        if done and watch.out:
            break
        order = orders[number] if number < len(orders) else draw_order(graph, watch.budget.seed + number)
        device, _ = fit_memory(problem, partial(fill_stages, problem, graph, order))
        done += 1
        if device is not None and not find_broken_rule(problem, device):
            return device
    outcome.tried.append(f"every split of {done} orders of the ops")
    return None


def _solve_packing(
    problem: Problem,
    instance: PackingInstance,
    kinds: BlockKinds,
    watch: Stopwatch,
    outcome: _PackingOutcome,
    capacity: Floats,
) -> Ints | None:
    """The devices [n_ops] of a packing within `capacity` [n_devices], or None; updates `outcome`."""
    if outcome.stopped is Reason.INTERRUPTED:
        return None
    program = build_program(instance, kinds, capacity, interchangeable(problem))
    limits = {"relative_gap_limit": 0.0, "max_time_in_seconds": min(watch.left, LONGEST)}
    solved = solve_model(program.model, solver_parameters(watch) | limits, stop=watch.budget.stop)
    solver, outcome.missing = solved.solver, max(solved.bound, 0)
    outcome.tried.append(
        "packing by CP-SAT" + (", small blocks as fractional items" if kinds.n_counted < len(kinds.count) else "")
    )
    if not solved.finished:
        outcome.stopped = Reason.INTERRUPTED if solved.interrupted else Reason.TIME_LIMIT
    if not solved.found:
        return None
    outcome.devices = tuple(problem.cluster.names[d] for d, short in program.missing.items() if solver.value(short))
    if outcome.devices:
        return None
    counts = {key: int(solver.value(variable)) for key, variable in program.chosen.items()}
    assignment = assign_blocks(kinds, counts, problem.n_blocks)
    if (assignment < 0).any() and not repair_memory(instance, assignment, capacity, seed=watch.budget.seed):
        return None
    return assignment[problem.block]
