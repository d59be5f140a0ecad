"""round_robin: one block after the other on one accelerator after the other. A floor, and no more than that."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.shared.calls import circles
from placewise.placers.shared.fit import fit
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.partitions.component_lines import fill_line
from placewise.placers.shared.partitions.partition import takers
from placewise.placers.shared.repair import packing_instance, repair
from placewise.placers.shared.rules import broken
from placewise.simulate.contiguity import contract


class RoundRobinPlacer:
    """Blocks in the order of their first ops, dealt to the accelerators in turn; stages of as many blocks each."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="round_robin",
        summary="blocks dealt to the accelerators in turn, within memory",
        source="a floor: what no method should be below",
    )

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The deal, made to fit; where stages have a shape to keep, or calls would wait in a circle, even stages."""
        problem = search.problem
        try:
            device = _stages(problem) if problem.constraints.shaped else _deal(problem)
            if device is not None and circles(problem, device):
                device = _stages(problem)
        except KeyboardInterrupt:
            return Proposal(None, reason=Reason.INTERRUPTED)
        why_not = "memory does not suffice" if device is None else broken(problem, device)
        if device is None or why_not:
            return Proposal(None, notes=(f"dealing blocks in turn will not do: {why_not}",))
        return Proposal(Placement(relabel(problem, device)))


def _deal(problem: Problem) -> Ints | None:
    """Each block on the next accelerator that may run it, in turn; repaired where memory or rules forbid it."""
    cargo = packing_instance(problem)
    turns = takers(problem) if problem.n_ops else np.zeros(1, np.int32)
    turn = np.arange(problem.n_blocks) % len(turns)
    later = (turn[:, None] + np.arange(len(turns))) % len(turns)
    can = np.take_along_axis(cargo.runs[:, turns], later, axis=1)
    home = turns[later[np.arange(len(turn)), can.argmax(axis=1)]]
    home = np.where(can.any(axis=1), home, cargo.runs.argmax(axis=1)).astype(np.int32)
    return repair(problem, home[problem.block], cargo=cargo)


def _stages(problem: Problem) -> Ints | None:
    """Stages of equally many components along the order of the ops; if they do not fit, any split of it that does."""
    graph = contract(problem)
    if not graph.n:
        return np.zeros(0, np.int32)
    turns = takers(problem)
    home = turns[np.arange(graph.n) * len(turns) // graph.n]
    if not broken(problem, home[graph.component]):
        even: Ints = home[graph.component]
        return even
    device, _ = fit(problem, partial(fill_line, problem, graph, np.arange(graph.n, dtype=np.int32)))
    return device
