"""The plan in one minute: what runs where, what it waits for, why it is good, and what could change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from placewise._util.units import format_bytes, format_seconds
from placewise.files.plan_file import BaselineRecord
from placewise.model.problem import Objective
from placewise.model.result import SINGLE_DEVICE, DeviceUse, gap_of
from placewise.report.account import COMPUTE, COPY, Part, account
from placewise.report.leaderboard import finite
from placewise.report.page.layers import layers_of
from placewise.report.page.opened import Opened
from placewise.report.page.packed import shown
from placewise.report.words import Naive, lines_of, phase_line, value_name, verdict_of

FULL, IDLE, MUCH = 0.9, 0.5, 0.15
"""Shares from which a page speaks: of memory that is taken, of time without work, of the value that is transfers."""
MOST_PARTS = 4


def story(opened: Opened) -> dict[str, Any]:
    """The figures and sentences at the top of a page. Sentences are text: names of the user's stand in them."""
    plan, value, parts = opened.plan, value_of(opened), _parts(opened)
    baselines = {name: _naive(record) for name, record in plan.baselines.items()}
    usable = _usable(opened)
    used = sum(1 for use in opened.uses if use.ops)
    objective = _objective(opened)
    single = baselines.get(SINGLE_DEVICE)
    ratio = single.value / value if single and not single.broken and 0 < value < math.inf else None
    return {
        "value": finite(value),
        "name": value_name(objective) if objective else "value",
        "bound": finite(plan.lower_bound) if plan.lower_bound > 0 else None,
        "method": plan.bound_method,
        "gap": gap_of(value, plan.lower_bound),
        "status": plan.status,
        "reason": plan.reason,
        "unmet": shown(plan.unmet),
        "verdict": shown(verdict_of(value, used, usable, baselines)) if baselines and math.isfinite(value) else "",
        "faster": ratio if ratio is not None and math.isfinite(ratio) else None,
        "baselines": [[shown(cell) for cell in line] for line in lines_of(value, baselines)] if baselines else [],
        "values": [finite(naive.value) for naive in baselines.values()],
        "phases": _phases(opened),
        "violations": [[broken.kind, shown(broken.message)] for broken in _violations(opened)],
        "sentences": [[title, shown(text)] for title, text in _sentences(opened, value, parts) if text],
        "hints": [shown(hint) for hint in _hints(opened, value, parts)],
    }


def value_of(opened: Opened) -> float:
    """Seconds: what the plan says, or else the judge."""
    if math.isfinite(opened.plan.value) or opened.judgement is None:
        return opened.plan.value
    return opened.judgement.value


def _naive(record: BaselineRecord) -> Naive:
    return Naive(record.value, record.broken or ("" if record.valid else "see placewise check"), record.devices)


def _usable(opened: Opened) -> list[str]:
    problem = opened.problem
    if problem is None:
        return list(opened.devices)
    return [problem.cluster.names[d] for d in np.flatnonzero(problem.allowed.any(axis=0)).tolist()]


def _objective(opened: Opened) -> Objective | None:
    if opened.problem is not None:
        return opened.problem.objective
    return Objective(**dict(opened.plan.objective)) if opened.plan.objective else None


def _phases(opened: Opened) -> str:
    if opened.problem is None or opened.judgement is None:
        return ""
    return phase_line(opened.problem, opened.judgement)


def _violations(opened: Opened) -> tuple[Any, ...]:
    return opened.plan.violations if opened.judgement is None else opened.judgement.violations


def _sentences(opened: Opened, value: float, parts: tuple[Part, ...]) -> Iterator[tuple[str, str]]:
    yield "What runs where", _where(opened)
    yield "What it waits for", _waits(opened, parts)
    yield "Why it is good", _good(opened, value)


def _where(opened: Opened) -> str:
    uses = opened.uses
    compute = sum(use.compute for use in uses if math.isfinite(use.compute))
    busy = [use for use in uses if use.ops]
    idle = [use.device for use in uses if not use.ops]
    if not busy:
        return ""
    layers = [""] * len(uses)
    if opened.problem is not None and opened.placement is not None:
        layers = layers_of(opened.problem.graph, opened.placement, len(uses))
    what = dict(zip((use.device for use in uses), layers, strict=True))
    said = [_runs(use, compute, what[use.device]) for use in busy]
    rest = f" {', '.join(idle)} {'runs' if len(idle) == 1 else 'run'} nothing." if idle else ""
    return f"{', '.join(said)}.{rest}"


def _runs(use: DeviceUse, compute: float, layers: str) -> str:
    share = f"{_share(use.compute, compute)} of the compute" if compute > 0 else ""
    told = "; ".join(part for part in (layers, share) if part)
    return f"{use.device} runs {use.ops:,} ops{f' ({told})' if told else ''}"


def _share(part: float, whole: float) -> str:
    share = part / whole
    return "under 1%" if 0 < share < 0.005 else f"{share:.0%}"


def _parts(opened: Opened) -> tuple[Part, ...]:
    if opened.problem is None or opened.placement is None or opened.judgement is None:
        return ()
    return account(opened.problem, opened.placement, opened.judgement, opened.path)


def _waits(opened: Opened, parts: tuple[Part, ...]) -> str:
    whole = math.fsum(part.seconds for part in parts)
    if not parts or whole <= 0:
        return ""
    said = [f"{_named(part)} {format_seconds(part.seconds)} ({_share(part.seconds, whole)})" for part in parts]
    rest = math.fsum(part.seconds for part in parts[MOST_PARTS:])
    listed = ", ".join(said[:MOST_PARTS]) + (
        f", the rest {format_seconds(rest)} ({_share(rest, whole)})" if rest else ""
    )
    if opened.judgement is not None and opened.judgement.timeline is None:
        return f"{opened.judgement.bottleneck} sets the pace: {listed}.{_next(opened)}"
    return f"The critical path, from the first op to the last, is {listed}."


def _named(part: Part) -> str:
    return f"{part.what} {'' if part.what == COPY else 'on '}{part.where}"


def _next(opened: Opened) -> str:
    judged = opened.judgement
    others = [use for use in opened.uses if judged is not None and use.device != judged.bottleneck and use.ops]
    if not others:
        return ""
    second = max(others, key=lambda use: use.load)
    return f" Next is {second.device} with {format_seconds(second.load)}."


def _good(opened: Opened, value: float) -> str:
    plan = opened.plan
    if plan.status == "optimal":
        return f"It is proved optimal ({plan.bound_method}): no placement that keeps the rules is better."
    if not plan.lower_bound > 0 or not math.isfinite(value):
        return ""
    gap = gap_of(value, plan.lower_bound)
    return (
        f"No placement is below {format_seconds(plan.lower_bound)} ({plan.bound_method}): at most {gap:.1%} is left "
        f"to gain, and perhaps nothing, since the bound may be below what can be reached."
    )


def _hints(opened: Opened, value: float, parts: tuple[Part, ...]) -> Iterator[str]:
    plan = opened.plan
    if plan.reason == "time limit" and plan.status != "optimal" and gap_of(value, plan.lower_bound) > 0.01:
        yield "The search ended at its time limit: a longer --time-limit, with --start and this plan, may find better."
    whole = math.fsum(part.seconds for part in parts)
    moved = [part for part in parts if part.what not in (COMPUTE, "overhead") and "load" not in part.what]
    share = math.fsum(part.seconds for part in moved) / whole if whole > 0 else 0.0
    if share >= MUCH:
        yield (
            f"Transfers make {share:.0%} of what sets the {_word(opened)}, most of it on {moved[0].where}: a faster "
            "link there, or smaller tensors across it, would tell. The cuts below name them."
        )
    for use in opened.uses:
        if use.ops and use.capacity > 0 and math.isfinite(use.capacity) and use.peak >= FULL * use.capacity:
            free = f"{format_bytes(use.capacity - use.peak)} free" if use.peak <= use.capacity else "more than there is"
            yield (
                f"{use.device} is {use.peak / use.capacity:.0%} full ({free}): a larger batch, or longer inputs, meet "
                "this limit first."
            )
    idle = [use.device for use in opened.uses if use.ops and math.isfinite(value) and use.idle > IDLE * value]
    objective = _objective(opened)
    if len(idle) > 1 and objective is not None and objective.kind == "latency":
        yield (
            f"{', '.join(idle)} idle more than half of the time, as is usual with one sample at a time: if samples "
            "come one after the other, --objective throughput keeps all devices busy."
        )


def _word(opened: Opened) -> str:
    objective = _objective(opened)
    return "pace" if objective is not None and objective.kind == "throughput" else "latency"
