"""When the stages of split ops do their work: one micro-batch in a full pipeline, or the answer to one request.

In a full pipeline, a stage of d replicas takes a micro-batch every period (the value), and each replica every d-th one:
its work repeats every d periods. A forward block starts when the blocks that feed it are done; later blocks have a
fixed place in the d periods of their replica, and wait whole rounds for their inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewise.exporters.stage_work import StageTask, StageWork, list_stage_work
from placewise.model.columns import Floats
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.simulate.judge.stages import list_transfers

_SLACK = 1e-9
"""A block may start before its inputs are there by this share of a round: rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class StageTimeline:
    """The tasks of micro-batch 0 with their stages and starts; `period` is None where only one micro-batch runs.

    Micro-batch i starts i periods later, on replica i mod d of a stage with d replicas. `after` are the numbers of the
    tasks that a task waits for besides the one before it in its stage: those that are last in the blocks before.
    """

    tasks: tuple[StageTask, ...]
    stage: tuple[int, ...]
    start: Floats
    after: tuple[tuple[int, ...], ...]
    period: float | None
    joined: bool

    @property
    def end(self) -> float:
        """When micro-batch 0 is done."""
        return max(
            (start + task.seconds for start, task in zip(self.start.tolist(), self.tasks, strict=True)), default=0
        )


def schedule_stages(problem: Problem, placement: Placement, judged: Judgement) -> StageTimeline:
    """The timeline of a placement with stages that keeps the rules, as the judge prices it."""
    work = list_stage_work(problem, placement, judged.stages)
    one_by_one = problem.objective.kind == "latency"
    feeds = sorted({(transfer.source, transfer.target) for transfer in list_transfers(problem, placement)})
    if one_by_one:
        feeds = [(s, s + 1) for s in range(len(placement.stages) - 1)]
    starts = _start_blocks(placement, work, feeds, math.inf if one_by_one else judged.value)
    tasks, stage, start = list[StageTask](), list[int](), list[float]()
    last: dict[tuple[int, int], int] = {}
    after: list[tuple[int, ...]] = []
    for block, backward in enumerate(work.backward):
        order = range(len(placement.stages))
        for s in reversed(order) if backward else order:
            moment, waits = starts[s, block], _blocks_before(work, feeds, s, block)
            for number, task in enumerate(work.tasks[s][block]):
                after.append(() if number else tuple(last[b] for b in waits if b in last))
                tasks.append(task)
                stage.append(s)
                start.append(moment)
                moment += task.seconds
            if work.tasks[s][block]:
                last[s, block] = len(tasks) - 1
    period = None if one_by_one else judged.value
    return StageTimeline(tuple(tasks), tuple(stage), np.array(start), tuple(after), period, work.joined)


def _blocks_before(work: StageWork, feeds: list[tuple[int, int]], s: int, block: int) -> list[tuple[int, int]]:
    """The blocks (stage, number) that a block waits for."""
    if work.backward[block]:
        return [(s, block - 1), *((reader, block) for maker, reader in feeds if maker == s)]
    last = [(len(work.tasks) - 1, block - 1)] if block else []
    return [*last, *((maker, block) for maker, reader in feeds if reader == s)]


def _start_blocks(
    placement: Placement, work: StageWork, feeds: list[tuple[int, int]], period: float
) -> dict[tuple[int, int], float]:
    starts: dict[tuple[int, int], float] = {}
    spent = [[math.fsum(task.seconds for task in block) for block in own] for own in work.tasks]
    order = range(len(work.tasks))
    for block, backward in enumerate(work.backward):
        for s in reversed(order) if backward else order:
            waits = _blocks_before(work, feeds, s, block)
            ready = max((starts[b] + spent[b[0]][b[1]] for b in waits), default=0.0)
            if block and period < math.inf:
                ready = _next_slot(
                    starts[s, 0] + sum(spent[s][:block]), ready, placement.stages[s].data_parallel * period
                )
            starts[s, block] = ready
    return starts


def _next_slot(first: float, ready: float, cycle: float) -> float:
    """The first of the moments `first` + k · `cycle` at which inputs that are `ready` are there."""
    late = math.ceil((ready - first) / cycle - _SLACK) if cycle > 0 else 0
    return first + max(late, 0) * cycle
