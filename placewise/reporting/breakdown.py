"""Breaks a value down into parts in seconds that add up to it.

For latency these are the parts of the critical path; for throughput, those of the device or shared link that sets the
pace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placewise.files.plan_file import DeviceUseRecord
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse, Judgement
from placewise.reporting.critical_path import CriticalStep, critical_path

COMPUTE, COPY, SEND, RECEIVE, SYNC, OVERHEAD = "compute", "copies", "send", "receive", "synchronization", "overhead"


@dataclass(frozen=True, slots=True)
class ValuePart:
    """The seconds of the value that a device or link spends on `what`."""

    what: str
    where: str
    seconds: float


DeviceLoad = DeviceUse | DeviceUseRecord
"""The load of a device in seconds, from the judge or from a plan file."""


def break_down_value(
    problem: Problem, placement: Placement, judgement: Judgement, path: Sequence[CriticalStep] | None = None
) -> tuple[ValuePart, ...]:
    """The parts of the value, largest first; empty for a placement that cannot run.

    `path` is the critical path if the caller already has it.
    """
    if not math.isfinite(judgement.value):
        return ()
    if problem.objective.kind == "throughput":
        mode = problem.objective.communication
        return break_down_pace(mode, judgement.devices, judgement.wires, judgement.bottleneck, judgement.value)
    if judgement.timeline is None:
        return ()
    what = {"op": COMPUTE, "copy": COPY, "overhead": OVERHEAD}
    path = critical_path(problem, placement, judgement.timeline) if path is None else path
    return _merge_parts(ValuePart(what[step.kind], step.place, step.seconds) for step in path)


def break_down_pace(
    mode: str, devices: Iterable[DeviceLoad], wires: Mapping[str, float], bottleneck: str, value: float
) -> tuple[ValuePart, ...]:
    """The parts of a pipeline's bottleneck load, counted as its communication `mode` counts them.

    A pipeline that flushes has one bottleneck per phase.
    """
    devices = tuple(devices)
    if any(use.forward is not None for use in devices):
        return _break_down_phases(devices, value)
    if bottleneck in wires:
        return (ValuePart(COPY, f"link {bottleneck}", wires[bottleneck]),)
    use = next((use for use in devices if use.device == bottleneck), None)
    if use is None:
        return ()
    compute = {COMPUTE: use.compute}
    sides: tuple[dict[str, float], ...]
    if mode == "blocking":
        sides = ({**compute, SEND: use.send, RECEIVE: use.receive, SYNC: use.sync},)
    elif mode == "overlap":
        sides = (compute, {SEND: use.send, RECEIVE: use.receive, SYNC: use.sync})
    else:
        sides = (compute, {SEND: use.send, SYNC: use.sync}, {RECEIVE: use.receive, SYNC: use.sync})
    longest = max(sides, key=lambda side: sum(side.values()))
    return _merge_parts(ValuePart(what, bottleneck, seconds) for what, seconds in longest.items())


def _break_down_phases(devices: tuple[DeviceLoad, ...], value: float) -> tuple[ValuePart, ...]:
    """The largest forward and the largest backward load; shared links take the rest."""
    parts = []
    for phase in ("forward", "backward"):
        loads = {use.device: getattr(use, phase) or 0.0 for use in devices}
        slowest = max(loads, key=lambda device: loads[device])
        parts.append(ValuePart(f"{phase} load", slowest, loads[slowest]))
    rest = value - math.fsum(part.seconds for part in parts)
    if rest > 1e-9 * value:
        parts.append(ValuePart(COPY, "shared links", rest))
    return _merge_parts(parts)


def _merge_parts(parts: Iterable[ValuePart]) -> tuple[ValuePart, ...]:
    """One part per (what, where), largest first, without empty ones."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for part in parts:
        seconds.setdefault((part.what, part.where), []).append(part.seconds)
    merged = [ValuePart(what, where, math.fsum(each)) for (what, where), each in seconds.items()]
    return tuple(sorted((part for part in merged if part.seconds > 0), key=lambda part: -part.seconds))
