"""The summary at the top of a page: what runs where, what it waits for, how good it is, and what to try."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from placewise._util.units import format_bytes, format_gap, format_seconds
from placewise.files.plan_file import baselines_of
from placewise.model.problem import Objective
from placewise.model.result import DeviceUse, gap_of
from placewise.model.verdict import SINGLE_DEVICE
from placewise.reporting.breakdown import COMPUTE, COPY, ValuePart, break_down_value
from placewise.reporting.leaderboard import finite
from placewise.reporting.page.columns import clean_text
from placewise.reporting.page.plan_view import PlanView
from placewise.reporting.pipeline import pipeline_line, pipeline_rows
from placewise.reporting.sentences import list_baselines, phase_line, value_name, whole_op_line

FULL, IDLE, MUCH = 0.9, 0.5, 0.15
"""Shares from which a page gives a hint: memory in use, idle time, transfers in the value."""
MAX_PARTS, MAX_FULL = 4, 8


def summarize_plan(view: PlanView) -> dict[str, Any]:
    """The figures and sentences at the top of a page. Sentences are plain text, since they contain names."""
    plan, value, parts = view.plan, plan_value(view), _value_parts(view)
    baselines = baselines_of(plan)
    objective = _objective(view)
    single = baselines.get(SINGLE_DEVICE)
    ratio = single.value / value if single and not single.broken and 0 < value < math.inf else None
    placed = view.placed
    return {
        "value": finite(value),
        "name": value_name(objective, view.problem.ways if view.problem else None) if objective else "value",
        "bound": finite(plan.lower_bound) if plan.lower_bound > 0 else None,
        "method": plan.bound_method,
        "left": format_gap(gap_of(value, plan.lower_bound)),
        "status": plan.status,
        "reason": plan.reason,
        "unmet": clean_text(plan.unmet),
        "verdict": clean_text(plan.verdict.sentence) if plan.verdict else "",
        "faster": ratio if ratio is not None and math.isfinite(ratio) else None,
        "baselines": [[clean_text(cell) for cell in line] for line in list_baselines(value, baselines)]
        if baselines
        else [],
        "values": [finite(baseline.value) for baseline in baselines.values()],
        "phases": phase_line(placed.problem, placed.judgement) if placed else "",
        "violations": [
            [broken.kind, clean_text(broken.message)]
            for broken in (placed.judgement.violations if placed else plan.violations)
        ],
        "sentences": [[title, clean_text(text)] for title, text in _list_sentences(view, value, parts) if text],
        "hints": [clean_text(hint) for hint in _list_hints(view, value, parts)],
    }


def plan_value(view: PlanView) -> float:
    """The value in seconds, from the plan or else from the judge."""
    if math.isfinite(view.plan.value) or view.placed is None:
        return view.plan.value
    return view.placed.judgement.value


def _objective(view: PlanView) -> Objective | None:
    if view.problem is not None:
        return view.problem.objective
    return Objective(**dict(view.plan.objective)) if view.plan.objective else None


def _list_sentences(view: PlanView, value: float, parts: tuple[ValuePart, ...]) -> Iterator[tuple[str, str]]:
    if view.placed is None:
        yield "What runs where", _describe_devices(view)
    yield "What it waits for", _describe_parts(view, parts)
    yield "How good it is", _describe_bound(view, value)


def _describe_devices(view: PlanView) -> str:
    uses = view.uses
    compute = sum(use.compute for use in uses if math.isfinite(use.compute))
    idle = [use.device for use in uses if not use.ops]
    if len(idle) == len(uses):
        return ""
    busy = [_describe_device(use, compute) for use in uses if use.ops]
    rest = f" {', '.join(idle)} {'runs' if len(idle) == 1 else 'run'} nothing." if idle else ""
    return f"{', '.join(busy)}.{rest}"


def _describe_device(use: DeviceUse, compute: float) -> str:
    share = f" ({_format_share(use.compute, compute)} of the compute)" if compute > 0 else ""
    return f"{use.device} runs {use.ops:,} ops{share}"


def _format_share(part: float, whole: float) -> str:
    share = part / whole
    return "under 1%" if 0 < share < 0.005 else f"{share:.0%}"


def _value_parts(view: PlanView) -> tuple[ValuePart, ...]:
    placed = view.placed
    return break_down_value(placed.problem, placed.placement, placed.judgement, placed.path) if placed else ()


def _describe_parts(view: PlanView, parts: tuple[ValuePart, ...]) -> str:
    whole = math.fsum(part.seconds for part in parts)
    if view.placed is None or whole <= 0:
        return ""
    words = [
        f"{part.what} {'' if part.what == COPY else 'on '}{part.where} {format_seconds(part.seconds)} "
        f"({_format_share(part.seconds, whole)})"
        for part in parts[:MAX_PARTS]
    ]
    rest = math.fsum(part.seconds for part in parts[MAX_PARTS:])
    words += [f"the rest {format_seconds(rest)} ({_format_share(rest, whole)})"] if rest else []
    if view.placed.judgement.timeline is not None:
        return f"The critical path, from the first op to the last, is {', '.join(words)}."
    bottleneck = view.placed.judgement.bottleneck
    others = [use for use in view.uses if use.device != bottleneck and use.ops]
    second = max(others, key=lambda use: use.load, default=None)
    then = f" Next is {second.device} with {format_seconds(second.load)}." if second else ""
    return f"{bottleneck} sets the pace: {', '.join(words)}.{then}"


def _describe_bound(view: PlanView, value: float) -> str:
    plan = view.plan
    if plan.status == "optimal":
        return f"It is proved optimal ({plan.bound_method}): no placement that keeps the rules is better."
    if not plan.lower_bound > 0 or not math.isfinite(value):
        return ""
    gap = format_gap(gap_of(value, plan.lower_bound))
    return (
        f"No placement is below {format_seconds(plan.lower_bound)} ({plan.bound_method}): {gap} is left "
        f"to gain, and perhaps nothing, since the bound may be below what can be reached."
    )


def _describe_stage(row: tuple[str, ...]) -> str:
    """One stage of a training pipeline, from its row."""
    s, devices, forward, backward, weight, _, held, each = row
    apart = "" if weight == "–" else f", gradients of weights {weight}"
    return (
        f"Stage {s} on {devices}: forward {forward}, backward {backward}{apart} per micro-batch; at most {held} in "
        f"flight, {each} each."
    )


def _list_hints(view: PlanView, value: float, parts: tuple[ValuePart, ...]) -> Iterator[str]:
    plan, objective = view.plan, _objective(view)
    pipeline = view.placed.judgement.pipeline if view.placed else plan.pipeline
    if pipeline is not None:
        line = pipeline_line(pipeline)
        yield f"{line[:1].upper()}{line[1:]}."
        yield from (_describe_stage(row) for row in pipeline_rows(pipeline))
    if view.problem is not None and (remark := whole_op_line(view.problem)):
        yield remark
    if plan.reason == "time limit" and plan.status != "optimal" and gap_of(value, plan.lower_bound) > 0.01:
        yield "The search ended at its time limit: a longer --time-limit, with --start and this plan, may find better."
    whole = math.fsum(part.seconds for part in parts)
    moved = [part for part in parts if part.what not in (COMPUTE, "overhead") and "load" not in part.what]
    share = math.fsum(part.seconds for part in moved) / whole if whole > 0 else 0.0
    if share >= MUCH:
        measure = "pace" if objective is not None and objective.kind == "throughput" else "latency"
        yield (
            f"Transfers make {share:.0%} of what sets the {measure}, most of it on {moved[0].where}: a faster link "
            "there, or smaller tensors across it, would help. The cuts below name them."
        )
    full = [use for use in view.uses if use.ops and 0 < use.capacity < math.inf and use.peak >= FULL * use.capacity]
    for use in full[:MAX_FULL]:
        free = f"{format_bytes(use.capacity - use.peak)} free" if use.peak <= use.capacity else "more than there is"
        yield (
            f"{use.device} is {use.peak / use.capacity:.0%} full ({free}): a larger batch, or longer inputs, meet "
            "this limit first."
        )
    if len(full) > MAX_FULL:
        yield f"{len(full) - MAX_FULL} more devices are at least {FULL:.0%} full."
    idle = [use.device for use in view.uses if use.ops and math.isfinite(value) and use.idle > IDLE * value]
    if len(idle) > 1 and objective is not None and objective.kind == "latency":
        yield (
            f"{', '.join(idle)} idle more than half of the time, as is usual with one sample at a time: if samples "
            "come one after the other, --objective throughput keeps all devices busy."
        )
