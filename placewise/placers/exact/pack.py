"""pack: any placement that fits, or the proof that none does. It looks at memory and nothing else.

Blocks are packed into devices by CP-SAT (OR-Tools), a storage that several blocks use once per device, so that
the fewest bytes are missing. If that is none, the packing is a placement; otherwise nothing fits, and the
answer says by how many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from ortools.sat.python import cp_model

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import NO_HINTS, Budget, Evaluate, Hints, OnProgress, PlacerInfo, Stopwatch, ignore
from placewise.placers.common.alike import alike, relabel
from placewise.placers.common.fit import fit
from placewise.placers.common.holdings import Holdings, holdings, may_run
from placewise.placers.common.rules import broken
from placewise.placers.common.solving import parameters, solve
from placewise.simulate.infeasible import largest_group, why_infeasible
from placewise.units import format_bytes

MOST_PAIRS = 200_000
LONGEST = 30.0
"""Seconds; packing that takes longer is left to placers that know more."""


@dataclass(slots=True)
class _Outcome:
    """What the last packing proved: the bytes that are missing at least, and where they were."""

    missing: int = 0
    devices: tuple[str, ...] = ()
    stopped: Reason | None = None


class PackPlacer:
    """The last resort where greedy fills fail: it backtracks over every way to fill the devices."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="pack",
        summary="any placement that fits in memory, or the proof that there is none",
        source="bin packing by constraint programming (OR-Tools CP-SAT)",
        exact=True,
    )

    def supports(self, problem: Problem) -> str | None:
        pairs = problem.n_blocks * problem.n_devices
        if pairs <= MOST_PAIRS:
            return None
        made = f"{problem.n_blocks:,} groups of ops, {problem.n_devices} devices"
        return (
            f"its packing program would have about {pairs:,} variables ({made}), and {MOST_PAIRS:,} are the most that "
            "pack takes: use greedy or balanced"
        )

    def propose(
        self,
        problem: Problem,
        budget: Budget,
        *,
        hints: Hints = NO_HINTS,
        evaluate: Evaluate | None = None,
        on_progress: OnProgress = ignore,
    ) -> Proposal:
        """A placement without missing bytes; where stages have a shape to keep, often only the proof is of use."""
        plain = why_infeasible(problem)
        if plain:
            return Proposal(None, reason=Reason.PROVED, infeasible=plain)
        watch, outcome = Stopwatch(budget), _Outcome()
        held, runs = (
            holdings(problem, problem.block, problem.n_blocks),
            may_run(problem, problem.block, problem.n_blocks),
        )
        device, shrunk = fit(problem, partial(_pack, problem, held, runs, watch, outcome))
        if outcome.missing and not shrunk:
            where = f" ({', '.join(outcome.devices)})" if outcome.devices else ""
            proof = (
                f"memory is at least {format_bytes(outcome.missing)} ({outcome.missing} bytes) short however the groups"
            )
            proof += f" are spread{where}; {largest_group(problem)}"
            return Proposal(None, reason=Reason.PROVED, infeasible=proof)
        if device is None:
            if outcome.stopped:
                return Proposal(None, reason=outcome.stopped, notes=("no packing was found before the search ended",))
            return Proposal(None, notes=("weights can be packed, but no packing tried has room for activations",))
        why_not = broken(problem, device)
        if why_not:
            return Proposal(None, notes=(f"a packing exists, but {why_not}",))
        return Proposal(Placement(relabel(problem, device)), reason=outcome.stopped or Reason.FINISHED)


def _pack(
    problem: Problem, held: Holdings, runs: Any, watch: Stopwatch, outcome: _Outcome, capacity: Floats
) -> Ints | None:
    """The devices [n_ops] of a packing within `capacity` [n_devices], or None; `outcome` hears what is missing."""
    if outcome.stopped is Reason.INTERRUPTED:
        return None
    model = cp_model.CpModel()
    chosen = {(int(b), int(d)): model.new_bool_var("") for b, d in np.argwhere(runs)}
    for block in range(problem.n_blocks):
        model.add_exactly_one(chosen[block, d] for d in np.flatnonzero(runs[block]).tolist())
    everything = int(held.totals().sum())
    missing, loads = {}, {}
    for d in np.flatnonzero(np.isfinite(capacity)).tolist():
        loads[d] = _load(model, chosen, held, d)
        missing[d] = model.new_int_var(0, everything, "")
        model.add(loads[d] <= min(int(capacity[d]), everything) + missing[d])
    _break_symmetry(model, problem, loads)
    model.minimize(sum(missing.values()))
    limits = {"relative_gap_limit": 0.0, "max_time_in_seconds": min(watch.left, LONGEST)}
    solved = solve(model, parameters(watch) | limits)
    solver, outcome.missing = solved.solver, max(solved.bound, 0)
    if not solved.finished:
        outcome.stopped = Reason.INTERRUPTED if solved.interrupted else Reason.TIME_LIMIT
    if not solved.found:
        return None
    outcome.devices = tuple(problem.cluster.names[d] for d, short in missing.items() if solver.value(short))
    if outcome.devices:
        return None
    home = np.full(problem.n_blocks, -1, np.int32)
    for (block, d), variable in chosen.items():
        if solver.value(variable):
            home[block] = d
    placed: Ints = home[problem.block]
    return placed


def _load(model: cp_model.CpModel, chosen: dict[tuple[int, int], Any], held: Holdings, d: int) -> Any:
    """Bytes on device d: states, and each storage that any of its blocks uses."""
    terms = [int(held.state[block]) * chosen[block, d] for block in range(len(held.state)) if (block, d) in chosen]
    users: dict[int, list[Any]] = {}
    for block, storage in zip(held.group.tolist(), held.storage.tolist(), strict=True):
        if (block, d) in chosen:
            users.setdefault(storage, []).append(chosen[block, d])
    for storage, variables in users.items():
        present = variables[0] if len(variables) == 1 else model.new_bool_var("")
        if len(variables) > 1:
            model.add_max_equality(present, variables)
        terms.append(int(held.stored[storage]) * present)
    return sum(terms)


def _break_symmetry(model: cp_model.CpModel, problem: Problem, loads: dict[int, Any]) -> None:
    """Of devices that are alike, the earlier one holds at least as much."""
    last: dict[int, int] = {}
    for d, kind in enumerate(alike(problem).tolist()):
        if d in loads and kind in last:
            model.add(loads[last[kind]] >= loads[d])
        last[kind] = d
