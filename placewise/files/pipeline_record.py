"""The pipeline of a plan for the objective `step`, as a record of a plan file."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from placewise.errors import PlanError
from placewise.files.records import Amount, Record, Whole
from placewise.model.cluster import Cluster
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.model.ways import StageGroup


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
    return PipelineRecord.model_validate(
        {
            "schedule": use.schedule,
            "microbatches": use.microbatches,
            "bubble": use.bubble,
            "stages": [
                {
                    "devices": own.devices,
                    "ops": tuple(names[op] for op in np.flatnonzero(stage == s).tolist()),
                    "forward": own.forward,
                    "backward": own.backward,
                    "weight": own.weight,
                    "update": own.update,
                    "in_flight": own.in_flight,
                    "unfinished": own.unfinished,
                    "activation_bytes": own.activation_bytes,
                }
                for s, own in enumerate(use.stages)
            ],
        }
    )


def parse_pipeline(record: PipelineRecord, graph: Graph, cluster: Cluster) -> Placement:
    """The placement of a pipeline in a plan file.

    Raises PlanError for an op or a device that does not exist, and for an op without a stage or in two.
    """
    device_of = {name: d for d, name in enumerate(cluster.names)}
    op_of = {name: op for op, name in enumerate(graph.ops.name)}
    stage = np.full(graph.n_ops, -1, np.int32)
    groups = []
    for s, own in enumerate(record.stages):
        where = f"stage {s}"
        strange = next((name for name in own.devices if name not in device_of), None)
        if strange is not None:
            remedy = f"the cluster has {', '.join(cluster.names[:8])}{' …' if len(cluster) > 8 else ''}"
            raise PlanError(f"there is no device {strange!r}", where=where, remedy=remedy)
        groups.append(StageGroup(tuple(device_of[name] for name in own.devices), len(own.devices)))
        for name in own.ops:
            if name not in op_of:
                raise PlanError(f"the model has no op {name!r}", where=where, remedy="use the plan of this model")
            if stage[op_of[name]] >= 0:
                raise PlanError(f"op {name!r} is in another stage already", where=where, remedy="list it once")
            stage[op_of[name]] = s
    missing = next((name for name, op in op_of.items() if stage[op] < 0), None)
    if missing is not None:
        raise PlanError(f"op {missing!r} has no stage", remedy="a pipeline names every op in one")
    first = np.array([group.devices[0] for group in groups], np.int32)
    return Placement(first[stage], stages=tuple(groups), stage=stage, schedule=record.schedule)
