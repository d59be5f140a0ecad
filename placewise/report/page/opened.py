"""What a page is made of: a plan, and, where the model is at hand, its problem and what the judge says of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewise.files.plan_file import PlanFile
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse, Judgement
from placewise.report.critical import Step


@dataclass(frozen=True, slots=True, eq=False)
class Period:
    """One sample through a full pipeline: columns over its tasks, ops first and in order, then copies.

    `track` is the row that it is drawn on, an index into `tracks`, which are (device, what it does); `op` and `tensor`
    are −1 where a task is no op, or no copy. A sample begins every `seconds`.
    """

    seconds: float
    tracks: tuple[tuple[str, str], ...]
    track: Ints
    start: Floats
    spent: Floats
    op: Ints
    tensor: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A plan that is to be shown; `missing` says in words why there is no problem, where there is none.

    `path` is the critical path of a run.
    """

    plan: PlanFile
    name: str = ""
    problem: Problem | None = None
    placement: Placement | None = None
    judgement: Judgement | None = None
    period: Period | None = None
    path: tuple[Step, ...] = ()
    missing: str = ""

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, those of the problem first of all."""
        if self.problem is not None:
            return self.problem.cluster.names
        if self.plan.cluster is not None:
            return tuple(device.name for device in self.plan.cluster.devices)
        return tuple(dict.fromkeys((*(use.device for use in self.plan.devices), *self.plan.assignment.values())))

    @property
    def device_of(self) -> Ints:
        """The device of each op, in the order of the graph, or else of the plan."""
        if self.placement is not None:
            return self.placement.device
        index = {name: number for number, name in enumerate(self.devices)}
        return np.array([index[device] for device in self.plan.assignment.values()], np.int32)

    @property
    def uses(self) -> tuple[DeviceUse, ...]:
        """What each device does: by the judge, or else as the plan says."""
        if self.judgement is not None:
            return self.judgement.devices
        return tuple(DeviceUse(**dict(record)) for record in self.plan.devices)
