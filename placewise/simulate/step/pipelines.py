"""The pipeline that a placement stands for: from its stages, or from its devices in the order of the model."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Violation
from placewise.model.ways import StageGroup
from placewise.simulate.contiguity import contract, device_cycle, strong_components
from placewise.simulate.replicas import equal_devices
from placewise.simulate.step.orders import CHUNKED, CHUNKS, FLAT, device_of_stage, refuse_microbatches
from placewise.simulate.step.stage_costs import Pipeline

AUTO = "auto"


def schedules_of(problem: Problem, placement: Placement) -> tuple[str, ...]:
    """The schedules under which a placement may run: the one that is asked for, else its own, else any without chunks.

    A placement whose stages share devices in pairs says so with its schedule.
    """
    asked = problem.objective.schedule
    if asked != AUTO:
        return (asked,)
    return (placement.schedule,) if placement.schedule else FLAT


def pipeline_of(problem: Problem, placement: Placement, schedule: str) -> Pipeline | Violation:
    """The pipeline of a complete placement under a schedule, or why it has none."""
    groups, stage = placement.stages, placement.stage
    if not groups or stage is None:
        found = _derive_stages(problem, placement)
        if isinstance(found, Violation):
            return found
        groups, stage = found
    else:
        stage = _follow_devices(groups, stage, placement.device)
        if stage is None:
            return Violation("schedule", "an op is on a device that runs no stage of the plan's pipeline")
    if any(group.tensor_parallel != 1 or not group.devices for group in groups):
        return Violation("schedule", "its stages split ops over devices, and the step of split ops is not simulated")
    copies = {len(group.devices) for group in groups}
    if len(copies) > 1:
        return Violation(
            "replicas", "its stages have different numbers of replicas, and the copies of a step are equal"
        )
    chunked = schedule in CHUNKED
    if chunked and len(groups) % CHUNKS:
        stages = f"{len(groups)} stage{'s' if len(groups) > 1 else ''}"
        return Violation("schedule", f"{schedule} gives every device two stages, and the plan has {stages}")
    count = len(groups) // CHUNKS if chunked else len(groups)
    lines = [tuple(groups[place].devices[copy] for place in range(count)) for copy in range(max(copies, default=1))]
    for s, group in enumerate(groups):
        place = device_of_stage(schedule, s, count)
        if list(group.devices) != [line[place] for line in lines]:
            names = problem.cluster.names
            message = f"under {schedule}, stage {s} runs on {names[lines[0][place]]}, and the plan has it on "
            return Violation("schedule", message + names[group.devices[0]])
    used = [device for line in lines for device in line]
    if len(set(used)) < len(used):
        return Violation("schedule", f"under {schedule}, two places of the pipeline are on one device")
    return Pipeline(schedule, tuple(lines), np.asarray(stage, np.int32), len(groups))


def check_pipeline(problem: Problem, pipeline: Pipeline) -> list[Violation]:
    """The rules of a step that a pipeline breaks, besides those of ops and of memory."""
    copies, total = len(pipeline.replicas), problem.constraints.microbatches
    broken: list[Violation] = []
    components = contract(problem)
    tail, head = components.edges()
    where = np.full(components.n, -1, np.int64)
    where[components.component] = pipeline.stage
    if (where[tail] > where[head]).any() or (where[components.component] != pipeline.stage).any():
        broken.append(Violation("contiguity", "the stages are no chain: one reads what a later one makes"))
    if copies > 1:
        kind = equal_devices(problem)
        unlike = [line for line in zip(*pipeline.replicas, strict=True) if len({int(kind[d]) for d in line}) > 1]
        most = problem.max_replicas
        if copies > most:
            broken.append(Violation("replicas", f"{copies} devices share a stage, and {most} may"))
        if unlike:
            names = ", ".join(problem.cluster.names[d] for d in unlike[0])
            broken.append(Violation("replicas", f"{names} share a stage and are not equal"))
        if total % copies:
            broken.append(Violation("replicas", f"{copies} replicas do not divide {total} micro-batches"))
    refusal = refuse_microbatches(pipeline.schedule, len(pipeline.devices), total // copies)
    if refusal:
        broken.append(Violation("schedule", refusal))
    if problem.constraints.ordered and list(pipeline.devices) != sorted(pipeline.devices):
        broken.append(Violation("order", "the stages do not follow the order of the devices"))
    return broken


def placement_of_pipeline(pipeline: Pipeline) -> Placement:
    """The placement that says what a pipeline is."""
    places = pipeline.stage_places()
    groups = tuple(
        StageGroup(tuple(line[place] for line in pipeline.replicas), len(pipeline.replicas)) for place in places
    )
    device = pipeline.stage_devices()[pipeline.stage]
    return Placement(device, stages=groups, stage=pipeline.stage, schedule=pipeline.schedule)


def _follow_devices(groups: tuple[StageGroup, ...], stage: Ints, device: Ints) -> Ints | None:
    """The stages, where an op that is not on the first device of its stage is in the nearest stage there; or None."""
    first = np.array([group.devices[0] if group.devices else -1 for group in groups])
    moved = np.flatnonzero(first[stage] != device)
    if not len(moved):
        return stage
    followed = stage.copy()
    for op in moved.tolist():
        there = np.flatnonzero(first == device[op])
        if not len(there):
            return None
        followed[op] = there[np.argmin(np.abs(there - stage[op]))]
    return followed


def _derive_stages(problem: Problem, placement: Placement) -> tuple[tuple[StageGroup, ...], Ints] | Violation:
    """A stage per device that runs ops, in the order in which they need each other."""
    components, device = contract(problem), placement.device
    cycle = device_cycle(components, device)
    if cycle is not None:
        names = " → ".join(problem.cluster.names[d] for d in (*cycle, cycle[0]))
        return Violation("contiguity", f"the stages are no chain: {names}")
    where = np.zeros(components.n, np.int32)
    where[components.component] = device
    used = sorted(set(device.tolist()), key=lambda d: int(np.argmax(where == d)))
    number = np.zeros(problem.n_devices, np.int32)
    number[used] = np.arange(len(used))
    tail, head = (number[where[ends]] for ends in components.edges())
    apart = tail != head
    rank, _ = strong_components(tail[apart], head[apart], len(used))
    members = _members(problem, placement)
    groups = [StageGroup(())] * len(used)
    for d in used:
        groups[int(rank[number[d]])] = StageGroup(tuple(members[d]), len(members[d]))
    return tuple(groups), rank[number[device]]


def _members(problem: Problem, placement: Placement) -> list[list[int]]:
    """The devices that run the stage of each device, itself first."""
    members = [[d] for d in range(problem.n_devices)]
    if placement.replicas is not None:
        for d, e in enumerate(placement.replicas.tolist()):
            if d != e:
                members[e].append(d)
    return members
