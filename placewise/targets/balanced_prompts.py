"""Prompts in a pipeline: of splits over the same cards that are about as fast, the one that is fastest as a pipeline.

llama.cpp computes the micro-batches of a prompt as a pipeline where cards hold all layers (``pipeline_parallel``,
llama-context.cpp). A plan's value adds up its stages, so that it hardly depends on where they end; the pipeline is as
fast as its longest stage, and needs room for its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewise.exporters.llama_cpp import PlanBuffers, find_buffers, time_prompt
from placewise.exporters.projection import stage_devices
from placewise.exporters.space import Line, find_cuts
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Headroom, Problem
from placewise.model.result import OPTIMAL_GAP, Outcome, Reason, Result, Status, gap_of
from placewise.readers.run_dims import find_run_dims
from placewise.simulate import judge_placement
from placewise.targets.stage_costs import stage_costs

CLOSE = 0.02
"""How much slower a split may be by the plan's value."""


def balance_prompts(result: Result, line: Line) -> Result:
    """The result with a split over the same cards whose prompts take less as a pipeline, if it is `CLOSE` in value.

    Unchanged for prompts of one micro-batch, for plans with layers on the host, and where no other split is better.
    """
    problem, placement = result.problem, result.placement
    dims = find_run_dims(problem.graph.source)
    if placement is None or dims is None or dims.prompt_tokens <= dims.ubatch:
        return result
    found = find_cuts(problem, placement, line.unit)
    begin = int(line.first >= 0)
    if found is None or len(found[0]) < 2 + begin or found[1][begin] != begin:
        return result
    buffers, cards = find_buffers(problem, placement), found[0][begin:]
    cuts = _cut_evenly(_keep_pipeline(problem, buffers, cards), line, cards, begin)
    if cuts is None:
        return result
    other = Placement(stage_devices((*range(begin), *cuts), found[0])[line.unit])
    judged, changed = judge_placement(problem, other), find_buffers(problem, other)
    if not judged.valid or judged.value > result.value * (1 + CLOSE) or changed.missing or changed.ruled_out:
        return result
    if judged.value - _save(problem, other, changed) >= result.value - _save(problem, placement, buffers):
        return result
    notes = (*changed.describe(), *(note for note in result.notes if note not in buffers.describe()))
    if gap_of(judged.value, result.bound.value) <= OPTIMAL_GAP:
        return replace(result, placement=other, judgement=judged, notes=notes)
    more = f"{judged.value / result.value - 1:.1%} slower by the plan's sum, and faster as llama.cpp's pipeline"
    return replace(
        result, placement=other, judgement=judged, notes=(f"this split is {more}", *notes),
        status=Status(Outcome.FEASIBLE, Reason.FINISHED),
    )  # fmt: skip


def _save(problem: Problem, placement: Placement, buffers: PlanBuffers) -> float:
    """The seconds that a pipeline saves of a prompt."""
    added, seconds = time_prompt(problem, placement, buffers.under_way)
    return added - seconds


def _keep_pipeline(problem: Problem, buffers: PlanBuffers, cards: Sequence[int]) -> Problem:
    """The problem in which cards have room for the buffers of a pipeline."""
    rules, known = problem.constraints, problem.cluster.devices
    kept = {known[card].name: known[card].memory - known[card].reserved - problem.capacity[card] for card in cards}
    more = tuple(Headroom(name, bytes=max(float(size), buffers.pipelined.get(name, 0))) for name, size in kept.items())
    others = tuple(spare for spare in rules.spare if spare.device not in kept)
    return problem.with_(constraints=replace(rules, spare=(*others, *more)))


def _cut_evenly(problem: Problem, line: Line, cards: Sequence[int], begin: int) -> tuple[int, ...] | None:
    """The bounds of one stage per card, in their order, from the unit `begin` on, whose longest prompt is shortest."""
    fits = np.isfinite(stage_costs(problem, line, list(cards)))
    prompt = problem.graph.ops.phase == 0
    longest = np.full(line.count + 1, np.inf)
    longest[begin] = 0.0
    starts = list[Ints]()
    for place, card in enumerate(cards):
        seconds = np.where(prompt, problem.costs.op_seconds[:, card], 0.0)
        until = np.r_[0.0, np.cumsum(np.bincount(line.unit, seconds, line.count))]
        stages = np.where(fits[place], until[None, :] - until[:, None], np.inf)
        joined = np.maximum(longest[:, None], stages)
        starts.append(joined.argmin(axis=0).astype(np.int32))
        longest = joined.min(axis=0)
    if not np.isfinite(longest[-1]):
        return None
    cuts = [line.count]
    for start in reversed(starts):
        cuts.insert(0, int(start[cuts[0]]))
    return tuple(cuts)
