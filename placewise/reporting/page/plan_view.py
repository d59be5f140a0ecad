"""What a page shows: a plan and, if the model is available, its problem, placement and judgement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewise.files.plan_file import PlanFile
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse, Judgement
from placewise.reporting.critical_path import CriticalStep


@dataclass(frozen=True, slots=True, eq=False)
class Period:
    """One sample in a full pipeline, as columns over its tasks: ops first and in order, then copies.

    `track` is an index into `tracks`, which are pairs of a device and an activity. `op` and `tensor` are −1 where a
    task is no op, or no copy. A sample starts every `seconds`; `start` and `spent` are in seconds.
    """

    seconds: float
    tracks: tuple[tuple[str, str], ...]
    track: Ints
    start: Floats
    spent: Floats
    op: Ints
    tensor: Ints


@dataclass(frozen=True, slots=True, eq=False)
class StagePeriod:
    """Micro-batch 0 in a pipeline of stages whose ops are split, as columns over its tasks: ops first and in order.

    Each replica of the `stage` of a task is busy with it for `spent` seconds from `start` on. What comes after the ops
    has a word in `what` ("all-reduce", "send", …), and an `op` or a `tensor` (−1: none). Micro-batches start every
    `seconds` (None: there is one alone), and the replicas of a stage take them in turns. `begins` are the ops that
    begin a pass through a stage. With `joined`, the forward and the backward pass of a micro-batch are not told apart.
    """

    seconds: float | None
    stage: Ints
    start: Floats
    spent: Floats
    what: tuple[str, ...]
    op: Ints
    tensor: Ints
    begins: Ints
    joined: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PlacedModel:
    """The problem of a plan with its placement and judgement, the period of a pipeline, the critical path of a run."""

    problem: Problem
    placement: Placement
    judgement: Judgement
    period: Period | None = None
    path: tuple[CriticalStep, ...] = ()
    stages: StagePeriod | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PlanView:
    """A plan to show; `missing` says why there is no `placed` model, if there is none."""

    plan: PlanFile
    name: str = ""
    placed: PlacedModel | None = None
    missing: str = ""

    @property
    def problem(self) -> Problem | None:
        return self.placed.problem if self.placed else None

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, from the problem if there is one, else from the plan."""
        if self.placed:
            return self.placed.problem.cluster.names
        if self.plan.cluster is not None:
            return tuple(device.name for device in self.plan.cluster.devices)
        return tuple(dict.fromkeys((*(use.device for use in self.plan.devices), *self.plan.assignment.values())))

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node of every device, "" where there is none."""
        if self.placed:
            return self.placed.problem.cluster.nodes
        if self.plan.cluster is not None:
            return tuple(device.node for device in self.plan.cluster.devices)
        return ("",) * len(self.devices)

    @property
    def device_of(self) -> Ints:
        """The device of each op [n_ops], in the order of the graph, or else of the plan."""
        if self.placed:
            return self.placed.placement.device
        index = {name: number for number, name in enumerate(self.devices)}
        return np.array([index[device] for device in self.plan.assignment.values()], np.int32)

    @property
    def uses(self) -> tuple[DeviceUse, ...]:
        """What each device does, as the judge or else the plan says."""
        if self.placed:
            return self.placed.judgement.devices
        return tuple(DeviceUse(**dict(record)) for record in self.plan.devices)
