"""What a plan takes on a target whose stages pass on what later ones read: inputs, and values that skip stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from placewise._util.units import format_seconds
from placewise.core.target_rules import find_rule, run_on_target
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Outcome, Reason, Result, Status
from placewise.simulate import judge_placement
from placewise.transform.stage_times import stage_times
from placewise.transform.stages import stage_order
from placewise.transform.stream_time import steady_seconds, stream_seconds

_SAME = 1e-6
"""Relays that cost no more than this share are not told."""


def judge_on_target(problem: Problem, placement: Placement, target: str) -> Judgement:
    """The judgement of a placement as a target runs it, relays included. Raises InputError for an objective that it
    does not have.
    """
    on_target = run_on_target(problem, target)
    judged = judge_placement(on_target, placement)
    if not find_rule(target).relays or not judged.valid:
        return judged
    return replace(judged, value=_relayed_seconds(on_target, placement, judged))


def shorten_relays(result: Result, target: str, search: Callable[[Problem], Result]) -> Result:
    """The result; or where relays cost something, the fastest with them of the plan, the naive answers, and what
    `search` finds with all that reads inputs in one stage, for which there must be time. The status is the plan's.
    """
    if not _relays_cost(result, target):
        return result
    problem, placement, judgement = result.problem, result.placement, result.judgement
    assert placement is not None and judgement is not None
    found = [(placement, judgement), *result.baselines.values()]
    readers = np.unique(problem.graph.edges.consumer[problem.graph.tensors.producer[problem.graph.edges.value] < 0])
    if len(readers) > 1 and result.status.reason not in (Reason.INTERRUPTED, Reason.TIME_LIMIT):
        names = tuple(problem.graph.ops.name[op] for op in readers.tolist())
        together = (*problem.constraints.together, names)
        other = search(problem.with_(constraints=replace(problem.constraints, together=together)))
        if other.placement is not None and other.judgement is not None:
            found.append((other.placement, other.judgement))
    valid = [pair for pair in found if pair[1].valid]
    best, judged = min(valid, key=lambda pair: _relayed_seconds(problem, *pair), default=found[0])
    return replace(result, placement=best, judgement=judged)


def with_relays(result: Result, target: str) -> Result:
    """A result for a target: relays are no part of what was searched, so a note says what they cost, and the plan is
    not called optimal.
    """
    if not _relays_cost(result, target):
        return result
    assert result.placement is not None and result.judgement is not None
    seconds = _relayed_seconds(result.problem, result.placement, result.judgement)
    note = (
        f"inputs and values that skip a stage pass through the stages between in {target}: run so, the plan takes "
        f"{format_seconds(seconds)} instead of {format_seconds(result.value)}, and another one may be faster"
    )
    return replace(result, status=_not_proved(result.status), notes=(note, *result.notes))


def _relays_cost(result: Result, target: str) -> bool:
    """Whether there is a plan, and its relays take time."""
    if not find_rule(target).relays or result.placement is None or result.judgement is None:
        return False
    return _relayed_seconds(result.problem, result.placement, result.judgement) > result.value * (1 + _SAME)


def _not_proved(status: Status) -> Status:
    """The status of a plan that is not optimal, though the one that was searched for may be."""
    reason = Reason.FINISHED if status.reason is Reason.PROVED else status.reason
    return Status(Outcome.FEASIBLE, reason) if status.outcome is Outcome.OPTIMAL else status


def _relayed_seconds(problem: Problem, placement: Placement, judged: Judgement) -> float:
    """Seconds with relays, per sample or of one, never less than judged; as judged for plans of training, and where
    stages feed each other.
    """
    if problem.graph.ops.backward.any() or placement.stages or placement.schedule:
        return judged.value
    order, back = stage_order(problem.graph, placement.device)
    if back is not None:
        return judged.value
    times = stage_times(problem, placement, order)
    relayed = steady_seconds(times) if problem.objective.kind == "throughput" else stream_seconds(times, 1)
    return max(judged.value, relayed)
