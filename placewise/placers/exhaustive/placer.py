"""exhaustive: every placement of a small problem, priced by the judge and checked.

The best placement that keeps the rules is the optimum, and if none keeps them, the problem is infeasible. Where
placements also decide calls, priorities or replicas, all of these are tried too; if they are too many, the answer is
the best placement under the calls and priorities of the judge, without a proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import PlacerInfo, SearchContext, Stopwatch
from placewise.placers.exhaustive.decisions import Decided, decide
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import Evaluator, judge_placement

MOST = 1 << 16
"""The largest number of placements."""
BATCH = 4096
DECIDED = {"memory", "calls", "replicas"}
"""Rules that a placement may break or keep on the same devices, with other orders, calls or replicas."""
NO_TIME = "no time to check them all"
ROUNDED = 1 - 1e-12


class ExhaustivePlacer:
    """The exact answer for a handful of ops, or for a model that only one device may run."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="exhaustive",
        summary="every placement of a small problem",
        source="enumeration",
        exact=True,
        replicates=True,
    )

    def supports(self, problem: Problem) -> str | None:
        choices = may_run(problem, problem.block, problem.n_blocks).sum(axis=1)
        digits = float(np.log10(np.maximum(choices, 1)).sum())
        if digits > math.log10(MOST):
            return f"there are about 10^{digits:.0f} placements, and {MOST:,} are the most that are tried"
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement with its proof, or the proof that there is none, as far as time allows."""
        problem, watch = search.problem, search.watch
        price = Evaluator(problem, threads=search.budget.threads)
        devices = frozen(np.concatenate(list(_list_placements(problem))), np.int32)
        decided = None if _depends_on_devices_only(problem) else decide(problem, devices, watch)
        if decided is not None:
            return _propose_decided(problem, decided, watch)
        values = np.concatenate([price(devices[at : at + BATCH]) for at in range(0, len(devices), BATCH)])
        best, whole, why = _find_best_valid(problem, devices, values, watch)
        reason = Reason.FINISHED if whole else Reason.TIME_LIMIT
        if best is None:
            if whole and _depends_on_devices_only(problem):
                return _infeasible(len(devices), why)
            note = f"none of the {len(devices):,} placements is valid: {why}" if whole else NO_TIME
            return Proposal(None, reason=reason, notes=(note,))
        proved = whole and _depends_on_devices_only(problem)
        bound = Bound(float(values[best]) * ROUNDED, "every placement") if proved else None
        return Proposal(Placement(relabel(problem, devices[best])), bound, reason)


def _depends_on_devices_only(problem: Problem) -> bool:
    """Whether the devices of the ops alone decide value and memory."""
    objective = problem.objective
    return problem.max_replicas == 1 and (objective.kind == "throughput" or objective.execution == "sequential")


def _propose_decided(problem: Problem, decided: Decided, watch: Stopwatch) -> Proposal:
    """The best valid one of all placements and all that they decide, with its proof."""
    placements, values = decided
    torn, fault = set[bytes](), "they cannot run"
    for row in np.argsort(values, kind="stable").tolist():
        if watch.out:
            return Proposal(None, reason=Reason.TIME_LIMIT, notes=(NO_TIME,))
        if not np.isfinite(values[row]):
            break
        placement = placements[row]
        if placement.device.tobytes() in torn:
            continue
        violations = judge_placement(problem, placement).violations
        if not violations:
            return Proposal(placement, Bound(float(values[row]) * ROUNDED, "every placement"))
        fault = violations[0].message
        if {violation.kind for violation in violations} - DECIDED:
            torn.add(placement.device.tobytes())
    return _infeasible(len(placements), fault)


def _infeasible(count: int, why: str) -> Proposal:
    proof = f"none of the {count:,} placements keeps the rules: {why}"
    return Proposal(None, reason=Reason.PROVED, infeasible=proof)


def _list_placements(problem: Problem) -> Iterator[Ints]:
    """All placements on devices that may run the blocks, in batches [K, n_ops]."""
    able = may_run(problem, problem.block, problem.n_blocks)
    first_choice = able.argmax(axis=1).astype(np.int32)
    open_blocks = np.flatnonzero(able.sum(axis=1) > 1).tolist()
    choices = [np.flatnonzero(able[block]) for block in open_blocks]
    shape = tuple(len(choice) for choice in choices)
    count = math.prod(shape)
    for first in range(0, count, BATCH):
        picked = np.unravel_index(np.arange(first, min(first + BATCH, count)), shape) if shape else ()
        placed = np.tile(first_choice, (min(BATCH, count - first), 1))
        for block, choice, which in zip(open_blocks, choices, picked, strict=True):
            placed[:, block] = choice[which]
        yield placed[:, problem.block]


def _find_best_valid(problem: Problem, devices: Ints, values: Floats, watch: Stopwatch) -> tuple[int | None, bool, str]:
    """The valid row of the least finite value, whether all better rows were checked, and why the others are invalid."""
    fault = "they cannot run"
    for row in np.argsort(np.where(np.isnan(values), np.inf, values), kind="stable").tolist():
        if watch.out:
            return None, False, fault
        broken = find_broken_rule(problem, devices[row])
        if not broken and np.isfinite(values[row]):
            return row, True, ""
        fault = broken or fault
    return None, True, fault
