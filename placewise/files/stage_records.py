"""The stages of a plan as records of a plan file: of ops that are split over devices, and of the objective `step`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

import numpy as np
from pydantic import Field

from placewise.errors import PlanError
from placewise.files.records import Amount, Record, Whole
from placewise.model.cluster import Cluster
from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.model.ways import StageGroup, Ways


class StageRecord(Record):
    """One stage of a pipeline whose ops are split over devices, for models with ways to split their ops."""

    ops: tuple[str, ...] = Field(description="names of its ops")
    data_parallel: Whole = Field(ge=1, description="replicas; each takes every d-th micro-batch")
    tensor_parallel: Whole = Field(ge=1, description="devices over which each replica splits its ops")
    ways: dict[str, str] = Field(description="op name → id of the way to run its unit")
    devices: tuple[str, ...] = Field(description="names of its devices, one replica after the other")
    seconds: Amount = Field(0.0, description="per micro-batch")
    in_flight: Whole = Field(1, description="micro-batches that it holds at once")
    memory: dict[str, Amount] = Field({}, description="bytes on each of its devices, by what holds them")


class PipelineStageRecord(Record):
    """One stage of a training pipeline; seconds are per micro-batch."""

    devices: tuple[str, ...] = Field(min_length=1, description="names of its devices, one per replica")
    ops: tuple[str, ...] = Field(description="names of its ops")
    forward: Amount = Field(0.0, description="seconds")
    backward: Amount = Field(0.0, description="seconds; with the gradients of weights, unless these are tasks")
    weight: Amount = Field(0.0, description="seconds of the gradients of weights, where these are tasks")
    update: Amount = Field(0.0, description="seconds of the optimizer, once per step")
    in_flight: Whole = Field(0, ge=0, description="most micro-batches that wait for their backward task")
    unfinished: Whole = Field(0, ge=0, description="most micro-batches that wait for their last task")
    activation_bytes: Amount = Field(0.0, description="bytes of a micro-batch between forward and backward task")


class PipelineRecord(Record):
    """One training step: the schedule, the micro-batches, and the stages in order."""

    schedule: Literal["gpipe", "1f1b", "zb-h1", "interleaved", "zb-v"]
    microbatches: Whole = Field(ge=1, description="per step, over all replicas")
    bubble: Amount = Field(0.0, description="share of the step in which the devices of the pipeline idle")
    stages: tuple[PipelineStageRecord, ...] = Field(min_length=1)


def pipeline_record(problem: Problem, placement: Placement, judgement: Judgement | None) -> PipelineRecord | None:
    """What a placement and its judgement say of a pipeline; None without one."""
    use = None if judgement is None else judgement.pipeline
    if use is None or placement.stage is None:
        return None
    names, stage = problem.graph.ops.name, placement.stage
    ops = (tuple(names[op] for op in np.flatnonzero(stage == s).tolist()) for s in range(len(use.stages)))
    stages = [asdict(own) | {"ops": inside} for own, inside in zip(use.stages, ops, strict=True)]
    return PipelineRecord.model_validate(asdict(use) | {"stages": stages})


def list_stages(problem: Problem, placement: Placement, judgement: Judgement | None) -> tuple[StageRecord, ...]:
    """The stages of a placement, with what the judge says of each."""
    ways, names = problem.require_ways(), problem.graph.ops.name
    stage, way = np.asarray(placement.stage), np.asarray(placement.way)
    uses = judgement.stages if judgement is not None else ()
    records = []
    for s, group in enumerate(placement.stages):
        ops = np.flatnonzero(stage == s).tolist()
        use = uses[s] if uses else None
        records.append(
            StageRecord(
                ops=tuple(names[op] for op in ops),
                data_parallel=group.data_parallel,
                tensor_parallel=group.tensor_parallel,
                ways={names[op]: ways.name[way[ways.unit[op]]] for op in ops},
                devices=tuple(problem.cluster.names[d] for d in group.devices),
                seconds=use.seconds if use else 0.0,
                in_flight=use.in_flight if use else 1,
                memory=dict(use.memory) if use else {},
            )
        )
    return tuple(records)


def parse_stages(records: Sequence[StageRecord], graph: Graph, cluster: Cluster, ways: Ways) -> Placement:
    """The placement of stages in a plan file.

    Raises PlanError for an op, device or way that does not exist, an op without a stage or in two, and a unit whose ops
    are told different things.
    """
    for s, record in enumerate(records):
        if not record.devices or not record.ops:
            fault = f"has no {'ops' if record.devices else 'devices'}"
            raise PlanError(fault, where=f"stage {s}", remedy="name them")
        stranger = next((name for name in record.ways if name not in set(record.ops)), None)
        if stranger is not None:
            fault = f"has a way for op {stranger!r}, which is not in it"
            raise PlanError(fault, where=f"stage {s}", remedy="leave it out")
    devices, stage = _read_stages(records, graph, cluster)
    way = np.full(ways.n_units, -1, np.int32)
    for name, unit, s in zip(graph.ops.name, ways.unit.tolist(), stage.tolist(), strict=True):
        _choose_way(way, ways, unit, records[s], name, f"stage {s}")
    sizes = ((record.data_parallel, record.tensor_parallel) for record in records)
    groups = tuple(StageGroup(own, *size) for own, size in zip(devices, sizes, strict=True))
    return Placement(_first_devices(groups, stage), stages=groups, stage=stage, way=way)


def parse_pipeline(record: PipelineRecord, graph: Graph, cluster: Cluster) -> Placement:
    """The placement of a pipeline in a plan file.

    Raises PlanError for an op or a device that does not exist, and for an op without a stage or in two.
    """
    devices, stage = _read_stages(record.stages, graph, cluster)
    groups = tuple(StageGroup(own, len(own)) for own in devices)
    return Placement(_first_devices(groups, stage), stages=groups, stage=stage, schedule=record.schedule)


def _read_stages(
    records: Sequence[StageRecord | PipelineStageRecord], graph: Graph, cluster: Cluster
) -> tuple[list[tuple[int, ...]], Ints]:
    """The devices of every stage, and the stage [n_ops] of every op. Raises PlanError."""
    op_of = {name: op for op, name in enumerate(graph.ops.name)}
    device_of = {name: d for d, name in enumerate(cluster.names)}
    stage = np.full(graph.n_ops, -1, np.int32)
    for s, record in enumerate(records):
        where = f"stage {s}"
        strange = next((name for name in record.devices if name not in device_of), None)
        if strange is not None:
            remedy = f"the cluster has {', '.join(cluster.names[:8])}{' …' if len(cluster) > 8 else ''}"
            raise PlanError(f"there is no device {strange!r}", where=where, remedy=remedy)
        for name in record.ops:
            if name not in op_of:
                raise PlanError(f"the model has no op {name!r}", where=where, remedy="use the plan of this model")
            if stage[op_of[name]] >= 0:
                raise PlanError(f"op {name!r} is in another stage already", where=where, remedy="list it once")
            stage[op_of[name]] = s
    missing = next((name for name, op in op_of.items() if stage[op] < 0), None)
    if missing is not None:
        raise PlanError(f"op {missing!r} has no stage", remedy="a plan with stages names every op in one")
    return [tuple(device_of[name] for name in record.devices) for record in records], stage


def _choose_way(way: Ints, ways: Ways, unit: int, record: StageRecord, op: str, where: str) -> None:
    wished = record.ways.get(op)
    if wished is None:
        raise PlanError(f"op {op!r} has no way", where=where, remedy="name the way of every op in 'ways'")
    fitting = [w for w in ways.ways_of(unit, record.tensor_parallel).tolist() if ways.name[w] == wished]
    if not fitting:
        known = sorted({f"{ways.name[w]} ({ways.degree[w]})" for w in ways.ways_of(unit).tolist()})
        message = f"op {op!r} has no way {wished!r} for degree {record.tensor_parallel}"
        raise PlanError(message, where=where, remedy=f"it has {', '.join(known)}")
    if way[unit] not in (-1, fitting[0]):
        raise PlanError(f"op {op!r} runs in another way than the rest of its unit", where=where, remedy="name one")
    way[unit] = fitting[0]


def _first_devices(groups: Sequence[StageGroup], stage: Ints) -> Ints:
    first = np.array([group.devices[0] for group in groups] or [0], np.int32)
    return first[stage]
