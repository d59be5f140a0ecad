"""Placement: which device runs each op. It holds no score: only the judge makes scores."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from placewise.errors import PlanError
from placewise.model.cluster import Cluster
from placewise.model.columns import Ints, frozen
from placewise.model.graph import Graph
from placewise.model.ways import StageGroup, Ways

_COLUMNS = ("device", "call", "order", "replicas", "stage", "way")


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Op → device, and, where a placer decides them, replicas, and the call and priority of each op.

    `device` [n_ops], −1 for an op that has none; `call` [n_ops], for `subgraph` execution, the number of the
    op's call among those of its device (the judge cuts calls itself if it is None); `order` [n_ops], for
    `operator` execution, a priority (smaller starts earlier; upward rank if it is None). `replicas` [n_devices],
    for throughput: device d runs the stage of device ``replicas[d]`` as well, ops of which only that device is named
    in `device`; d itself where it runs a stage of its own, or nothing (None: no stage is replicated).

    For the objective `step`, `stages` are those of a training pipeline, in order, each with a device per replica,
    `stage` [n_ops] is the index of each op's, and `schedule` names the schedule ("": the best that fits).

    Where a problem has ways to split its ops, `stages` are the pipeline's stages in order, `stage` [n_ops] the index of
    each op's, and `way` [n_units] the way of each unit; `device` then names the first device of each op's stage.
    """

    device: Ints
    call: Ints | None = None
    order: Ints | None = None
    replicas: Ints | None = None
    stages: tuple[StageGroup, ...] = ()
    stage: Ints | None = None
    way: Ints | None = None
    schedule: str = ""

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            column = getattr(self, name)
            if column is not None:
                object.__setattr__(self, name, frozen(column, np.int32))

    def __repr__(self) -> str:
        devices = len(set(self.device.tolist()) - {-1})
        decided = [name for name in _COLUMNS[1:] if getattr(self, name) is not None]
        return f"Placement({len(self)} ops on {devices} devices{''.join(f', with {name}' for name in decided)})"

    def __len__(self) -> int:
        return len(self.device)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        pairs = [(getattr(self, name), getattr(other, name)) for name in _COLUMNS]
        return (self.stages, self.schedule) == (other.stages, other.schedule) and all(
            a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs
        )

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def on(cls, device: int, n_ops: int) -> Placement:
        """Every op on one device."""
        return cls(np.full(n_ops, device, np.int32))

    @classmethod
    def of_stages(cls, ways: Ways, stages: tuple[StageGroup, ...], unit_stage: Ints, way: Ints) -> Placement:
        """A pipeline of split stages, from the stage [n_units] and the way [n_units] of every unit."""
        stage = np.asarray(unit_stage, np.int32)[ways.unit]
        first = np.array([group.devices[0] for group in stages], np.int32)
        return cls(first[stage], stages=stages, stage=stage, way=way)

    @classmethod
    def named(cls, graph: Graph, cluster: Cluster, assignment: Mapping[str, str]) -> Placement:
        """From op names and device names; raises PlanError for an op that is missing or does not exist."""
        in_order = tuple(assignment) == graph.ops.name
        if not in_order:
            known = set(graph.ops.name)
            unknown = next((name for name in assignment if name not in known), None)
            if unknown is not None:
                raise PlanError(f"the model has no op {unknown!r}", remedy="use the plan of this model")
            missing = next((name for name in graph.ops.name if name not in assignment), None)
            if missing is not None:
                raise PlanError(f"op {missing!r} has no device", remedy="a plan names every op")
        index = {name: device for device, name in enumerate(cluster.names)}
        if not set(assignment.values()) <= index.keys():
            stranger = next(name for name in assignment.values() if name not in index)
            raise PlanError(f"there is no device {stranger!r}", remedy=f"the cluster has {', '.join(cluster.names)}")
        homes = assignment.values() if in_order else map(assignment.__getitem__, graph.ops.name)
        return cls(np.fromiter((index[home] for home in homes), np.int32, graph.n_ops))

    def assignment(self, graph: Graph, cluster: Cluster) -> dict[str, str]:
        """Op name → device name; ops that have no device are left out."""
        pairs = zip(graph.ops.name, self.device.tolist(), strict=True)
        return {op: cluster.names[device] for op, device in pairs if device >= 0}

    def digest(self, graph: Graph, cluster: Cluster) -> str:
        """sha256 of what it says of ops and devices by name: the same for equal placements, however they were found."""
        found = hashlib.sha256("\0".join((*graph.ops.name, "", *cluster.names)).encode("utf-8", "surrogatepass"))
        for column in (self.device, self.call, self.order, self.replicas):
            found.update(b"-" if column is None else column.astype("<i4").tobytes())
        if self.stages:
            found.update(repr((self.stages, _listed(self.stage), _listed(self.way))).encode())
        found.update(self.schedule.encode())
        return found.hexdigest()


def _listed(column: Ints | None) -> list[int] | None:
    return None if column is None else column.tolist()
