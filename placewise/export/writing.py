"""export_placement(): a placement in a target's form, read back, and judged again where the target cannot say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from placewise.errors import ExportError, InternalError
from placewise.export.base import Exported, ExportInfo, OptionValue
from placewise.export.registry import available, exporter, filled
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.simulate import judge


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """The files for a placement, and the judge's word on what was asked and on what they say.

    `projected`: the target could not say the placement as it is; `moved` ops are on another device (none where only
    an order of ops, or replicas of stages, are left unsaid).
    """

    info: ExportInfo
    exported: Exported
    asked: Judgement
    said: Judgement
    projected: bool
    moved: int

    @property
    def loss(self) -> float:
        """By how much slower the projected placement is, as a share (negative: it is faster)."""
        return self.said.value / self.asked.value - 1 if self.asked.value > 0 else 0.0


def export_placement(
    problem: Problem, placement: Placement, target: str, options: Mapping[str, OptionValue] | None = None
) -> Export:
    """The files of `target` for a placement, compared with what they say when they are read back.

    Raises ExportError (an unknown target or option, a model that the target cannot take, a placement that leaves an
    op out), MissingExtraError, and InternalError where the files do not say what they should.
    """
    made = exporter(target)
    values = filled(made.info, options or {})
    available(made.info)
    asked = judge(problem, placement)
    unplaced = np.flatnonzero(placement.device < 0)
    if len(unplaced):
        name = problem.graph.ops.name[unplaced[0]]
        raise ExportError(f"op {name!r} has no device", remedy="place the model again")
    exported = made.export(problem, placement, values)
    read = made.read_back(exported, problem)
    _same(problem, target, exported.placement, read)
    moved = int((exported.placement.device != placement.device).sum())
    projected = exported.placement != placement
    said = judge(problem, exported.placement) if projected else asked
    return Export(made.info, exported, asked, said, projected, moved)


def _same(problem: Problem, target: str, placement: Placement, read: Ints) -> None:
    wrong = np.flatnonzero(placement.device != read)
    if len(wrong):
        op = wrong[0]
        names = {-1: "nowhere", **dict(enumerate(problem.cluster.names))}
        raise InternalError(
            f"the files for {target} put {len(wrong)} ops elsewhere than they should, the first of them "
            f"{problem.graph.ops.name[op]!r}: {names[int(read[op])]} instead of {names[int(placement.device[op])]}"
        )
