"""What a result means, in sentences: is a split worth it, and how good can it still get?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewise._util.units import format_seconds
from placewise.model.problem import Objective, Problem
from placewise.model.result import BALANCED_SPLIT, SINGLE_DEVICE, Judgement, Outcome, PhaseUse, Result

MOST_FINDS = 6
"""So many steps of the way to an answer are told."""


def value_name(objective: Objective) -> str:
    """What the value is called: time per sample, or latency of one sample."""
    flushes = " (gpipe)" if objective.schedule == "gpipe" else ""
    return f"time per sample{flushes}" if objective.kind == "throughput" else "latency"


def headline(result: Result) -> str:
    """Value, bound and gap in one line; or why there is none."""
    if result.judgement is None:
        return f"{result.status.outcome}: {result.unmet or 'no placement was found'}"
    line = f"{value_name(result.problem.objective)} {format_seconds(result.value)}"
    if result.status.outcome is Outcome.OPTIMAL:
        return f"{line}, proved optimal ({result.bound.method})"
    bound = format_seconds(result.lower_bound)
    return f"{line}; no placement is below {bound} ({result.bound.method}): at most {result.gap:.1%} is left to gain"


def phase_line(problem: Problem, judgement: Judgement) -> str:
    """What the phases of a model take, or how often they run per second in a full pipeline; "" where it has none."""
    if judgement.phases:
        return ", then ".join(_run_of(problem, use) for use in judgement.phases if use.seconds > 0)
    repeated = [phase for phase in problem.graph.phases if phase.repeats > 1]
    if not repeated or not 0 < judgement.value < math.inf:
        return ""
    rates = [_rate(problem, phase.repeats / judgement.value, phase.name) for phase in repeated]
    return f"in a full pipeline{', '.join(rates)}"


def _run_of(problem: Problem, use: PhaseUse) -> str:
    if use.repeats == 1:
        return f"{use.phase} {format_seconds(use.seconds)}"
    return f"{use.repeats} × {use.phase} of {format_seconds(use.seconds)}{_rate(problem, 1 / use.seconds, use.phase)}"


def _rate(problem: Problem, per_second: float, phase: str) -> str:
    """How often a phase runs per second; that many tokens where it decodes, times the batch."""
    source = problem.graph.source
    batch = 1 if source is None else int(source.options.get("dims", {}).get("batch", 1))
    if phase != "decode":
        return f" ({per_second:.4g} per second)"
    return f" ({per_second * batch:.4g} tokens per second{f' for the batch of {batch}' if batch > 1 else ''})"


@dataclass(frozen=True, slots=True)
class Naive:
    """A naive answer: its value in seconds, the first rule that it breaks, the devices that it uses."""

    value: float
    broken: str
    devices: tuple[str, ...]


def verdict(result: Result) -> str:
    """Whether splitting is worth it against the best single device, in one sentence; "" without a placement."""
    if result.judgement is None or result.placement is None:
        return ""
    usable = [result.problem.cluster.names[d] for d in np.flatnonzero(result.problem.allowed.any(axis=0))]
    used = sum(1 for use in result.judgement.devices if use.ops)
    return verdict_of(
        result.value, used, usable, {name: naive(judged) for name, (_, judged) in result.baselines.items()}
    )


def naive(judged: Judgement) -> Naive:
    """A judged naive answer."""
    broken = judged.violations[0].message if judged.violations else ""
    return Naive(judged.value, broken, tuple(use.device for use in judged.devices if use.ops))


def verdict_of(value: float, used: int, usable: Sequence[str], baselines: Mapping[str, Naive]) -> str:
    """The verdict on a plan of `value` seconds on `used` of the `usable` devices, beside the naive answers."""
    better, single = _better(value, baselines), baselines.get(SINGLE_DEVICE)
    if better is not None:
        return f"This plan is {_slower(value, better[1].value)} than {better[0]}: try another placer or more time."
    if len(usable) <= 1:
        return f"No split to decide: {usable[0] if usable else 'none'} is the only device that may run ops."
    if single is None or not math.isfinite(single.value):
        return f"A split is needed: no single device runs the whole model; this plan uses {used}."
    if single.broken:
        return f"A split is needed: the best single device would break a rule ({single.broken})."
    if used == 1:
        return "A split is not worth it: one device alone is the best answer found."
    return _gain(used, single, value)


def _gain(used: int, single: Naive, value: float) -> str:
    """What the plan gains over the naive answer on one device, which is no worse than the plan or slower."""
    speedup = single.value / value if value > 0 else 1.0
    if len(single.devices) > 1:
        start = f"The rules need more than one device; this plan on {used}"
        if speedup <= 1.01:
            return f"{start} gains {max(speedup - 1, 0.0):.1%} over {_AS_FAR}."
        return f"{start} is {speedup:.2f}× as fast as {_AS_FAR}."
    if speedup <= 1.01:
        return f"A split is hardly worth it: {used} devices gain {max(speedup - 1, 0.0):.1%} over the {SINGLE_DEVICE}."
    return f"The split is worth it: {used} devices are {speedup:.2f}× as fast as the {SINGLE_DEVICE}."


def history_line(result: Result) -> str:
    """Who found something better and when, the first and the last few; "" where there was one find only."""
    finds, last = [], None
    for step in result.history:
        if step.placer == last:
            finds.pop()
        finds.append(f"{step.placer} {format_seconds(step.value)} after {step.seconds:.2f} s")
        last = step.placer
    if len(finds) < 2:
        return ""
    shown = (
        finds if len(finds) <= MOST_FINDS else [finds[0], f"{len(finds) - MOST_FINDS} more", *finds[2 - MOST_FINDS :]]
    )
    return f"found by {', '.join(shown)}"


def baseline_lines(result: Result) -> list[tuple[str, str, str]]:
    """(name, value, remark) of each naive answer."""
    return lines_of(result.value, {name: naive(judged) for name, (_, judged) in result.baselines.items()})


def lines_of(value: float, baselines: Mapping[str, Naive]) -> list[tuple[str, str, str]]:
    """The same beside a plan of `value` seconds."""
    lines = []
    for name in (SINGLE_DEVICE, BALANCED_SPLIT):
        found = baselines.get(name)
        if found is None:
            lines.append((name, "–", "finds nothing that keeps the rules"))
            continue
        remark = f"breaks a rule: {found.broken}" if found.broken else _ratio(value, found.value)
        lines.append((_named(name, found), format_seconds(found.value), remark))
    return lines


def host_remark(problem: Problem, judgement: Judgement) -> str:
    """Why the load of a host device may exceed the latency; "" where none does."""
    over = [
        use.device
        for device, use in zip(problem.cluster, judgement.devices, strict=True)
        if device.is_host and use.load > judgement.value * (1 + 1e-9)
    ]
    if problem.objective.kind != "latency" or not over:
        return ""
    return f"{over[0]} runs several ops at once: its load adds up their times, which may be more than the latency"


def replica_lines(judgement: Judgement) -> list[str]:
    """A sentence per stage that several devices share: which, and what it takes to keep their weights the same."""
    lines, names = [], [use.device for use in judgement.devices]
    for use in judgement.devices:
        members = [d for d, other in enumerate(judgement.devices) if use.device in (other.device, other.repeats)]
        if len(members) > 1 and use.ops:
            sync = f", synchronization {format_seconds(use.sync)} per sample" if use.sync else ""
            lines.append(f"{_in_runs(members, names)} share one stage (×{len(members)}){sync}")
    return lines


def _in_runs(members: list[int], names: list[str]) -> str:
    """Names of devices; three or more that follow each other as the first and the last of them."""
    runs: list[list[int]] = []
    for d in members:
        if runs and runs[-1][-1] == d - 1:
            runs[-1].append(d)
        else:
            runs.append([d])
    words = [[f"{names[run[0]]} – {names[run[-1]]}"] if len(run) > 2 else [names[d] for d in run] for run in runs]
    return ", ".join(word for some in words for word in some)


_AS_FAR = "one device as far as the rules allow"


def _named(name: str, found: Naive) -> str:
    """A naive answer by its name; the single device by its own, unless the rules force other devices in."""
    if name != SINGLE_DEVICE:
        return name
    used = found.devices
    return _AS_FAR if len(used) > 1 else f"{name} ({used[0]})" if used else name


def _better(value: float, baselines: Mapping[str, Naive]) -> tuple[str, Naive] | None:
    """The best of the naive answers that beat the plan, if any does."""
    names = {SINGLE_DEVICE: "single device", BALANCED_SPLIT: BALANCED_SPLIT}
    faster = [
        (_AS_FAR if len(found.devices) > 1 and name == SINGLE_DEVICE else f"the {names[name]}", found)
        for name, found in baselines.items()
        if not found.broken and found.value < value * (1 - 1e-9)
    ]
    return min(faster, key=lambda pair: pair[1].value, default=None)


def _slower(value: float, best: float) -> str:
    """How much slower, in words that are true of small differences as well."""
    more = value / best - 1 if best > 0 else math.inf
    if more < 0.001:
        return "slightly slower"
    return f"{more:.1%} slower" if math.isfinite(more) else "slower"


def _ratio(value: float, other: float) -> str:
    return f"{other / value:.2f}× the plan's time" if value > 0 and math.isfinite(value) else ""
