"""What a result means, in sentences: is a split worth it, and how good can it still get?"""

from __future__ import annotations

import math

from placewise.model.problem import Objective
from placewise.model.result import BALANCED_SPLIT, SINGLE_DEVICE, Judgement, Outcome, Result
from placewise.units import format_seconds


def value_name(objective: Objective) -> str:
    """What the value is called: time per sample, or latency of one sample."""
    return "time per sample" if objective.kind == "throughput" else "latency"


def headline(result: Result) -> str:
    """Value, bound and gap in one line; or why there is none."""
    if result.judgement is None:
        return f"{result.status.outcome}: {result.unmet or 'no placement was found'}"
    line = f"{value_name(result.problem.objective)} {format_seconds(result.value)}"
    if result.status.outcome is Outcome.OPTIMAL:
        return f"{line}, proved optimal ({result.bound.method})"
    bound = format_seconds(result.lower_bound)
    return f"{line}; no placement is below {bound} ({result.bound.method}): at most {result.gap:.1%} is left to gain"


def verdict(result: Result) -> str:
    """Whether splitting is worth it against the best single device, in one sentence."""
    if result.judgement is None or result.placement is None:
        return ""
    used = sum(1 for use in result.judgement.devices if use.ops)
    single = _judged(result, SINGLE_DEVICE)
    if single is None or not math.isfinite(single.value):
        return f"A split is needed: no single device runs the whole model; this plan uses {used}."
    if not single.valid:
        return f"A split is needed: the best single device would break a rule ({single.violations[0].message})."
    if used == 1:
        return "A split is not worth it: one device alone is the best answer found."
    speedup = single.value / result.value if result.value > 0 else 1.0
    if speedup <= 1.01:
        return f"A split is hardly worth it: {used} devices gain {speedup - 1:.1%} over the best single device."
    return f"The split is worth it: {used} devices are {speedup:.2f}× as fast as the best single device."


def baseline_lines(result: Result) -> list[tuple[str, str, str]]:
    """(name, value, remark) of each naive answer."""
    lines = []
    for name in (SINGLE_DEVICE, BALANCED_SPLIT):
        found = result.baselines.get(name)
        if found is None:
            lines.append((name, "–", "finds nothing that keeps the rules"))
            continue
        judged = found[1]
        used = [use.device for use in judged.devices if use.ops]
        named = f"{name} ({used[0]})" if name == SINGLE_DEVICE and len(used) == 1 else name
        remark = "breaks a rule: " + judged.violations[0].message if judged.violations else _ratio(result, judged)
        lines.append((named, format_seconds(judged.value), remark))
    return lines


def _ratio(result: Result, judged: Judgement) -> str:
    if not result.value > 0 or not math.isfinite(result.value):
        return ""
    return f"{judged.value / result.value:.2f}× the plan's time"


def _judged(result: Result, name: str) -> Judgement | None:
    found = result.baselines.get(name)
    return found[1] if found else None
