"""exhaustive: every placement of a small problem, priced by the judge and checked.

Where a placement alone decides the value, the best one that keeps the rules is the optimum; and where none keeps them,
there is none. For latency with calls or an order of a placement's own it is the best under the judge's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import PlacerInfo, SearchContext, Stopwatch
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import Evaluator

MOST = 1 << 15
"""Placements."""
BATCH = 4096
ROUNDED = 1 - 1e-12


class ExhaustivePlacer:
    """The last word on a handful of ops, or on a model that one device only may run."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="exhaustive",
        summary="every placement of a small problem",
        source="enumeration",
        exact=True,
    )

    def supports(self, problem: Problem) -> str | None:
        choices = may_run(problem, problem.block, problem.n_blocks).sum(axis=1)
        digits = float(np.log10(np.maximum(choices, 1)).sum())
        if digits > math.log10(MOST):
            return f"there are about 10^{digits:.0f} placements, and {MOST:,} are the most that are tried"
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement with its proof, or the proof that there is none; what time allowed of both."""
        problem = search.problem
        watch, price = search.watch, Evaluator(problem, threads=search.budget.threads)
        devices = np.concatenate(list(_list_placements(problem)))
        values = np.concatenate([price(devices[at : at + BATCH]) for at in range(0, len(devices), BATCH)])
        best, whole, why = _find_best_valid(problem, devices, values, watch)
        reason = Reason.FINISHED if whole else Reason.TIME_LIMIT
        if best is None:
            if whole and _depends_on_devices_only(problem):
                said = f"none of the {len(devices):,} placements keeps the rules: {why}"
                return Proposal(None, reason=Reason.PROVED, infeasible=said)
            seen = f"none of the {len(devices):,} placements will do: {why}" if whole else "no time to look at them all"
            return Proposal(None, reason=reason, notes=(seen,))
        proved = whole and _depends_on_devices_only(problem)
        bound = Bound(float(values[best]) * ROUNDED, "every placement") if proved else None
        return Proposal(Placement(relabel(problem, devices[best])), bound, reason)


def _depends_on_devices_only(problem: Problem) -> bool:
    """Whether nothing but the device of each op decides value and memory."""
    objective = problem.objective
    return problem.most_replicas == 1 and (objective.kind == "throughput" or objective.execution == "sequential")


def _list_placements(problem: Problem) -> Iterator[Ints]:
    """All placements [K, n_ops] on devices that may run the blocks."""
    able = may_run(problem, problem.block, problem.n_blocks)
    homes = able.argmax(axis=1).astype(np.int32)
    open_blocks = np.flatnonzero(able.sum(axis=1) > 1).tolist()
    choices = [np.flatnonzero(able[block]) for block in open_blocks]
    shape = tuple(len(choice) for choice in choices)
    count = math.prod(shape)
    for first in range(0, count, BATCH):
        picked = np.unravel_index(np.arange(first, min(first + BATCH, count)), shape) if shape else ()
        placed = np.tile(homes, (min(BATCH, count - first), 1))
        for block, choice, which in zip(open_blocks, choices, picked, strict=True):
            placed[:, block] = choice[which]
        yield placed[:, problem.block]


def _find_best_valid(problem: Problem, devices: Ints, values: Floats, watch: Stopwatch) -> tuple[int | None, bool, str]:
    """The row of the least finite value that breaks no rule, whether all better ones were looked at, and why not."""
    why = "they cannot run"
    for row in np.argsort(np.where(np.isnan(values), np.inf, values), kind="stable").tolist():
        if watch.out:
            return None, False, why
        said = find_broken_rule(problem, devices[row])
        if not said and np.isfinite(values[row]):
            return row, True, ""
        why = said or why
    return None, True, why
