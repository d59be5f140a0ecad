"""A result in sentences: whether a split is worth it, and how much could still be gained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewise._util.units import format_bytes, format_seconds
from placewise.model.cluster import ASSUMED, MEANT, Cluster
from placewise.model.problem import Objective, Problem
from placewise.model.result import BALANCED_SPLIT, SINGLE_DEVICE, Judgement, Outcome, PhaseUse, Result

MAX_FINDS = 6
"""How many improvements of a search are listed."""


def assumption_lines(cluster: Cluster) -> list[str]:
    """A line per model that was assumed for devices, and per short name that stands for one of several."""
    lines: dict[str, list[str]] = {}
    for device in cluster:
        for note in device.notes:
            if note.startswith((ASSUMED, MEANT)):
                line = note.removeprefix(MEANT).replace(ASSUMED, "assumed ", 1)
                size = f", with {format_bytes(device.memory)}" if note.startswith(ASSUMED) else ""
                lines.setdefault(f"{line}{size}", []).append(device.name)
    return [f"{', '.join(names)}: {note}" for note, names in lines.items()]


def value_name(objective: Objective) -> str:
    """The name of the value: time per sample, or latency."""
    flushes = " (gpipe)" if objective.schedule == "gpipe" else ""
    return f"time per sample{flushes}" if objective.kind == "throughput" else "latency"


def headline(result: Result) -> str:
    """Value, bound and gap in one line; or why there is no placement."""
    if result.judgement is None:
        return f"{result.status.outcome}: {result.unmet or 'no placement was found'}"
    line = f"{value_name(result.problem.objective)} {format_seconds(result.value)}"
    if result.status.outcome is Outcome.OPTIMAL:
        return f"{line}, proved optimal ({result.bound.method})"
    bound = format_seconds(result.lower_bound)
    return f"{line}; no placement is below {bound} ({result.bound.method}): at most {result.gap:.1%} is left to gain"


def phase_line(problem: Problem, judgement: Judgement) -> str:
    """Seconds per phase, or runs per second in a full pipeline; "" for a model without phases."""
    if judgement.phases:
        return ", then ".join(_phase_time(problem, use) for use in judgement.phases if use.seconds > 0)
    repeated = [phase for phase in problem.graph.phases if phase.repeats > 1]
    if not repeated or not 0 < judgement.value < math.inf:
        return ""
    rates = [_phase_rate(problem, phase.repeats / judgement.value, phase.name) for phase in repeated]
    return f"in a full pipeline{', '.join(rates)}"


def _phase_time(problem: Problem, use: PhaseUse) -> str:
    if use.repeats == 1:
        return f"{use.phase} {format_seconds(use.seconds)}"
    rate = _phase_rate(problem, 1 / use.seconds, use.phase)
    return f"{use.repeats} × {use.phase} of {format_seconds(use.seconds)}{rate}"


def _phase_rate(problem: Problem, per_second: float, phase: str) -> str:
    """How often a phase runs per second; for decoding, tokens per second of the whole batch."""
    source = problem.graph.source
    batch = 1 if source is None else int(source.options.get("dims", {}).get("batch", 1))
    if phase != "decode":
        return f" ({per_second:.4g} per second)"
    return f" ({per_second * batch:.4g} tokens per second{f' for the batch of {batch}' if batch > 1 else ''})"


@dataclass(frozen=True, slots=True)
class BaselineValue:
    """A naive baseline: its value in seconds, the first rule that it breaks, the devices that it uses."""

    value: float
    broken: str
    devices: tuple[str, ...]


def verdict(result: Result) -> str:
    """Whether the split is worth it against the best single device, in one sentence; "" without a placement."""
    if result.judgement is None or result.placement is None:
        return ""
    usable = [result.problem.cluster.names[d] for d in np.flatnonzero(result.problem.allowed.any(axis=0))]
    used = sum(1 for use in result.judgement.devices if use.ops)
    return compare_baselines(result.value, used, usable, _baseline_values(result))


def _baseline_values(result: Result) -> dict[str, BaselineValue]:
    return {
        name: BaselineValue(
            judged.value,
            judged.violations[0].message if judged.violations else "",
            tuple(use.device for use in judged.devices if use.ops),
        )
        for name, (_, judged) in result.baselines.items()
    }


def compare_baselines(value: float, used: int, usable: Sequence[str], baselines: Mapping[str, BaselineValue]) -> str:
    """The verdict on a plan of `value` seconds that uses `used` of the `usable` devices."""
    better, single = _better_baseline(value, baselines), baselines.get(SINGLE_DEVICE)
    if better is not None:
        name, faster = better
        more = value / faster.value - 1 if faster.value > 0 else math.inf
        how = "slightly slower" if more < 0.001 else f"{more:.1%} slower" if math.isfinite(more) else "slower"
        return f"This plan is {how} than {name}: try another placer or more time."
    if len(usable) <= 1:
        return f"No split to decide: {usable[0] if usable else 'none'} is the only device that may run ops."
    if single is None or not math.isfinite(single.value):
        return f"A split is needed: no single device runs the whole model; this plan uses {used}."
    if single.broken:
        return f"A split is needed: the best single device would break a rule ({single.broken})."
    if used == 1:
        return "A split is not worth it: one device alone is the best answer found."
    return _describe_gain(used, single, value)


def _describe_gain(used: int, single: BaselineValue, value: float) -> str:
    """What the plan gains over the best single device, which is not faster."""
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
    """Which placers improved the plan and when, the first and the last few; "" after a single improvement."""
    finds, last = [], None
    for step in result.history:
        if step.placer == last:
            finds.pop()
        finds.append(f"{step.placer} {format_seconds(step.value)} after {step.seconds:.2f} s")
        last = step.placer
    if len(finds) < 2:
        return ""
    if len(finds) > MAX_FINDS:
        finds = [finds[0], f"{len(finds) - MAX_FINDS} more", *finds[2 - MAX_FINDS :]]
    return f"found by {', '.join(finds)}"


def baseline_lines(result: Result) -> list[tuple[str, str, str]]:
    """(name, value, remark) of each naive baseline."""
    return list_baselines(result.value, _baseline_values(result))


def list_baselines(value: float, baselines: Mapping[str, BaselineValue]) -> list[tuple[str, str, str]]:
    """(name, value, remark) of each baseline, beside a plan of `value` seconds."""
    lines = []
    for name in (SINGLE_DEVICE, BALANCED_SPLIT):
        baseline = baselines.get(name)
        if baseline is None:
            lines.append((name, "–", "finds nothing that keeps the rules"))
            continue
        ratio = f"{baseline.value / value:.2f}× the plan's time" if value > 0 and math.isfinite(value) else ""
        remark = f"breaks a rule: {baseline.broken}" if baseline.broken else ratio
        lines.append((_baseline_name(name, baseline), format_seconds(baseline.value), remark))
    return lines


def host_remark(problem: Problem, judgement: Judgement) -> str:
    """Why the load of a host exceeds the latency; "" if none does."""
    over = [
        use.device
        for device, use in zip(problem.cluster, judgement.devices, strict=True)
        if device.is_host and use.load > judgement.value * (1 + 1e-9)
    ]
    if problem.objective.kind != "latency" or not over:
        return ""
    return f"{over[0]} runs several ops at once: its load adds up their times, which may be more than the latency"


def replica_lines(judgement: Judgement) -> list[str]:
    """A sentence per replicated stage: its devices, and the seconds of synchronization."""
    lines, names = [], [use.device for use in judgement.devices]
    for use in judgement.devices:
        members = [d for d, other in enumerate(judgement.devices) if use.device in (other.device, other.repeats)]
        if len(members) > 1 and use.ops:
            sync = f", synchronization {format_seconds(use.sync)} per sample" if use.sync else ""
            lines.append(f"{_format_runs(members, names)} share one stage (×{len(members)}){sync}")
    return lines


def _format_runs(members: list[int], names: list[str]) -> str:
    """Device names; three or more consecutive ones as the first and the last."""
    runs: list[list[int]] = []
    for d in members:
        if runs and runs[-1][-1] == d - 1:
            runs[-1].append(d)
        else:
            runs.append([d])
    words = [[f"{names[run[0]]} – {names[run[-1]]}"] if len(run) > 2 else [names[d] for d in run] for run in runs]
    return ", ".join(word for some in words for word in some)


_AS_FAR = "one device as far as the rules allow"


def _baseline_name(name: str, baseline: BaselineValue) -> str:
    """The name of a baseline; the best single device by its own, unless the rules need more than one."""
    if name != SINGLE_DEVICE:
        return name
    used = baseline.devices
    return _AS_FAR if len(used) > 1 else f"{name} ({used[0]})" if used else name


def _better_baseline(value: float, baselines: Mapping[str, BaselineValue]) -> tuple[str, BaselineValue] | None:
    """The name and value of the best baseline that beats the plan, if any does."""
    names = {SINGLE_DEVICE: "single device", BALANCED_SPLIT: BALANCED_SPLIT}
    faster = [
        (_AS_FAR if len(baseline.devices) > 1 and name == SINGLE_DEVICE else f"the {names[name]}", baseline)
        for name, baseline in baselines.items()
        if not baseline.broken and baseline.value < value * (1 - 1e-9)
    ]
    return min(faster, key=lambda pair: pair[1].value, default=None)
