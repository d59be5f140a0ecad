"""Where the value comes from: parts in seconds that add up to it.

In latency they are those of the critical path; in throughput those of the device or shared link that sets the pace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.report.critical import Step, critical_path

COMPUTE, COPY, SEND, RECEIVE, SYNC, OVERHEAD = "compute", "copies", "send", "receive", "synchronization", "overhead"


@dataclass(frozen=True, slots=True)
class Part:
    """So many seconds of the value are spent on `what` at a device or link."""

    what: str
    where: str
    seconds: float


class Use(Protocol):
    """What is known of a device: by the judge, or in a plan file."""

    @property
    def device(self) -> str: ...
    @property
    def compute(self) -> float: ...
    @property
    def send(self) -> float: ...
    @property
    def receive(self) -> float: ...
    @property
    def sync(self) -> float: ...
    @property
    def forward(self) -> float | None: ...
    @property
    def backward(self) -> float | None: ...


def account(
    problem: Problem, placement: Placement, judgement: Judgement, path: Sequence[Step] | None = None
) -> tuple[Part, ...]:
    """The parts of the value, the largest first; none for a placement that cannot run.

    `path` is the critical path of a run, where that is known already.
    """
    if not math.isfinite(judgement.value):
        return ()
    if problem.objective.kind == "throughput":
        mode = problem.objective.communication
        return pace_parts(mode, judgement.devices, judgement.wires, judgement.bottleneck, judgement.value)
    if judgement.timeline is None:
        return ()
    what = {"op": COMPUTE, "copy": COPY, "overhead": OVERHEAD}
    path = critical_path(problem, placement, judgement.timeline) if path is None else path
    return _sorted(Part(what[step.kind], step.place, step.seconds) for step in path)


def pace_parts(
    mode: str, devices: Iterable[Use], wires: Mapping[str, float], bottleneck: str, value: float
) -> tuple[Part, ...]:
    """The parts of the load of the busiest device or link of a pipeline, as its communication mode counts them.

    A pipeline that flushes has two such devices or links, one for each phase.
    """
    devices = tuple(devices)
    if any(use.forward is not None for use in devices):
        return _phase_parts(devices, value)
    if bottleneck in wires:
        return (Part(COPY, f"link {bottleneck}", wires[bottleneck]),)
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
    return _sorted(Part(what, bottleneck, seconds) for what, seconds in longest.items())


def _phase_parts(devices: tuple[Use, ...], value: float) -> tuple[Part, ...]:
    """The longest forward and the longest backward load; what is left is the time of a shared link."""
    parts = []
    for phase in ("forward", "backward"):
        loads = {use.device: getattr(use, phase) or 0.0 for use in devices}
        slowest = max(loads, key=lambda device: loads[device])
        parts.append(Part(f"{phase} load", slowest, loads[slowest]))
    rest = value - math.fsum(part.seconds for part in parts)
    if rest > 1e-9 * value:
        parts.append(Part(COPY, "shared links", rest))
    return _sorted(parts)


def _sorted(parts: Iterable[Part]) -> tuple[Part, ...]:
    """One part for each thing at each place, the largest first, without those that take no time."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for part in parts:
        seconds.setdefault((part.what, part.where), []).append(part.seconds)
    total = [Part(what, where, math.fsum(each)) for (what, where), each in seconds.items()]
    return tuple(sorted((part for part in total if part.seconds > 0), key=lambda part: -part.seconds))
