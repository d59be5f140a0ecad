"""etf: list scheduling, earliest task first, within the memory of every device.

Hwang, Chow, Anger and Lee, "Scheduling precedence graphs in systems with interprocessor communication times",
SIAM J. Computing 18 (1989); with memory as m-ETF in Jeon et al., "Baechi: fast device placement of machine
learning graphs", SoCC 2020. Of all ready ops and devices the pair that starts first is taken, by upward rank
if several do; a colocation group follows its first op and takes its memory at once. Two things differ. The
default is the pair that *finishes* first: on unequal devices, earliest start sends work to whatever slow
device is idle. And transfers queue behind each other on their link, as in the judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, get_args

import numpy as np

from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints, frozen, offsets_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import NO_HINTS, Budget, Evaluate, Hints, OnProgress, PlacerInfo, ignore
from placewise.placers.common.alike import relabel
from placewise.placers.common.fit import fit
from placewise.placers.common.holdings import holdings, may_run
from placewise.placers.heuristic.listing import Blocks, desk, list_schedule
from placewise.simulate.arrays import arrays_of
from placewise.simulate.infeasible import why_infeasible
from placewise.simulate.ranks import upward_ranks

By = Literal["finish", "start"]


@dataclass(frozen=True, slots=True)
class EtfOptions:
    """`by`: take the pair that finishes first, or, as published, the one that starts first."""

    by: By = "finish"

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise PlacerError(f"etf cannot go by {self.by!r}", remedy=f"choose from {', '.join(get_args(By))}")


class EtfPlacer:
    """Near-linear, and often hard to beat for latency; its placements are not contiguous."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="etf",
        summary="list scheduling, earliest task first, within memory",
        source="Jeon et al., Baechi, SoCC 2020 (m-ETF); Hwang et al., SIAM J. Computing 1989",
    )
    Options: ClassVar[type[EtfOptions]] = EtfOptions

    def __init__(self, options: EtfOptions | None = None) -> None:
        self.options = options or EtfOptions()

    def supports(self, problem: Problem) -> str | None:
        if problem.constraints.shaped:
            return "etf takes ops as they become ready, and its stages are seldom contiguous or convex"
        return None

    def propose(
        self,
        problem: Problem,
        budget: Budget,
        *,
        hints: Hints = NO_HINTS,
        evaluate: Evaluate | None = None,
        on_progress: OnProgress = ignore,
    ) -> Proposal:
        """One schedule's placement, or words that say where its memory ran out."""
        missing = why_infeasible(problem)
        if missing:
            return Proposal(None, reason=Reason.PROVED, infeasible=missing)
        stuck: list[str] = []
        device, _ = fit(problem, partial(_schedule, problem, 1.0 if self.options.by == "finish" else 0.0, stuck))
        if device is None:
            return Proposal(None, notes=(f"list scheduling ran out of memory{''.join(stuck[-1:])}",))
        return Proposal(Placement(relabel(problem, device)))


def _schedule(problem: Problem, weight: float, stuck: list[str], capacity: Floats) -> Ints | None:
    """The placement [n_ops] of one list schedule within `capacity` [n_devices]; None, and where, if it is stuck."""
    a, held = arrays_of(problem), holdings(problem, problem.block, problem.n_blocks)
    by_priority = np.argsort(-upward_ranks(problem, a), kind="stable")
    priority = np.empty(problem.n_ops, np.int32)
    priority[by_priority] = np.arange(problem.n_ops)
    blocks = Blocks(
        of=problem.block,
        allowed=frozen(may_run(problem, problem.block, problem.n_blocks), np.bool_),
        state=frozen(held.state, np.int64),
        storage_offsets=frozen(offsets_of(held.group, problem.n_blocks), np.int64),
        storages=frozen(held.storage, np.int32),
        storage_bytes=frozen(held.stored, np.int64),
        room=frozen(np.floor(np.minimum(capacity, 2.0**62)), np.int64),
    )
    device = np.full(problem.n_ops, -1, np.int32)
    inputs = (problem.graph.in_offsets, problem.graph.edges.value)
    order = frozen(by_priority, np.int32), frozen(priority, np.int32)
    placed = list_schedule(a, blocks, inputs, *order, weight, desk(a, blocks), device, False, True)
    if placed < problem.n_ops:
        stuck.append(f" after {placed:,} of {problem.n_ops:,} ops")
        return None
    return device
