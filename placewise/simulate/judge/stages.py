"""The value of a pipeline whose ops are split over devices (Piper, NeurIPS 2021, section 3); docs/judge.md.

A stage of d replicas on t devices each takes, per micro-batch,

    Σ seconds / d + passes · Σ (boundary bytes + gathered bytes) / (d · bandwidth) + gradients,

where each replica takes every d-th micro-batch, and gradients are ``gradient_factor · (d − 1) / d · bytes / bandwidth``
once per step of all micro-batches. The throughput is set by the slowest stage; the latency is the sum of all stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placewise.model.cluster import Cluster
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse, Judgement, StageUse
from placewise.model.ways import StageGroup, Ways, count_in_flight
from placewise.simulate.check.stages import check_stages

IN_FLIGHT, WORKSPACE = "activations in flight", "workspace"


def judge_stages(problem: Problem, placement: Placement) -> Judgement:
    """Price a placement that consists of stages, and list every rule that it breaks."""
    broken = check_stages(problem, placement)
    if any(violation.kind in ("coverage", "degree") for violation in broken):
        return Judgement(math.inf, (), tuple(broken))
    loads = load_stages(problem, placement)
    seconds = [load.seconds for load in loads]
    is_sum = problem.objective.kind == "latency"
    value = math.fsum(seconds) if is_sum else max(seconds, default=0.0)
    pace = problem.cluster.names[placement.stages[int(np.argmax(seconds))].devices[0]] if seconds else ""
    uses = _use_devices(problem, placement, loads, math.inf if is_sum else value, pace)
    return Judgement(value, uses, tuple(broken), bottleneck=pace, stages=tuple(loads))


def stages_value(problem: Problem, placement: Placement) -> float:
    """The value of a placement that consists of stages, in seconds, without looking at the rules."""
    seconds = [load.seconds for load in load_stages(problem, placement)]
    return math.fsum(seconds) if problem.objective.kind == "latency" else max(seconds, default=0.0)


def load_stages(problem: Problem, placement: Placement) -> list[StageUse]:
    """Seconds and bytes of every stage, in order."""
    ways = problem.require_ways()
    unit_stage, way = stage_of_units(ways, placement), np.asarray(placement.way)
    replicas = np.array([group.data_parallel for group in placement.stages], np.int32)
    in_flight = count_in_flight(ways.in_flight, ways.microbatches, replicas).tolist()
    send, receive = _exchange(problem, placement)
    loads = []
    for s, group in enumerate(placement.stages):
        chosen = way[unit_stage == s]
        kind = int(ways.device_class[group.devices[0]])
        held = ways.held_bytes[chosen].sum(axis=0).tolist()
        memory = dict(zip(ways.parts, held, strict=True))
        if workspace := ways.workspace_of(group.tensor_parallel):
            memory[WORKSPACE] = workspace
        loads.append(
            StageUse(
                float(ways.seconds[chosen, kind].sum()) / group.data_parallel,
                float(ways.collective_seconds[chosen, kind].sum()) / group.data_parallel,
                send[s] / group.data_parallel,
                receive[s] / group.data_parallel,
                _exchange_gradients(problem, group, float(ways.gradient_bytes[chosen].sum())),
                in_flight[s],
                memory | {IN_FLIGHT: in_flight[s] * float(ways.bytes_in_flight[chosen].sum())},
            )
        )
    return loads


def stage_of_units(ways: Ways, placement: Placement) -> Ints:
    """The stage [n_units] of every unit: that of its first op."""
    stage = np.full(ways.n_units, -1, np.int32)
    assert placement.stage is not None
    stage[ways.unit[::-1]] = placement.stage[::-1]
    return stage


class StageTransfer(NamedTuple):
    """A boundary tensor that one stage hands to another: seconds per micro-batch, all passes together, of a replica.

    `tensor` is a row of the ways' boundary tensors. Staged, a tensor that several stages read is sent with the first.
    """

    tensor: int
    source: int
    target: int
    send: float
    receive: float


def list_transfers(problem: Problem, placement: Placement) -> list[StageTransfer]:
    """What crosses between the stages of a placement, by tensor."""
    ways, cluster, stages = problem.require_ways(), problem.cluster, placement.stages
    unit_stage, way = stage_of_units(ways, placement), np.asarray(placement.way)
    staged = cluster.transfers == "staged"
    pays_for_sending = staged or problem.objective.kind == "throughput"
    found = []
    for tensor in range(ways.n_tensors):
        maker = int(ways.tensor_unit[tensor])
        source = int(unit_stage[maker])
        readers = ways.reader[ways.reader_offsets[tensor] : ways.reader_offsets[tensor + 1]]
        outside = np.unique(readers[unit_stage[readers] != source])
        size, gathered = ways.tensor_bytes[tensor], ways.sync_bytes[way[maker], tensor]
        for number, target in enumerate(np.unique(unit_stage[outside]).tolist()):
            send = 0.0
            if pays_for_sending and not (staged and number):
                send = _cross(problem, stages[source], stages[target], size + gathered)
            own = outside[unit_stage[outside] == target]
            arriving = size + float(ways.sync_bytes[way[own], tensor].sum())
            receive = _cross(problem, stages[target], stages[source], arriving)
            found.append(StageTransfer(tensor, source, target, send, receive))
    return found


def _exchange(problem: Problem, placement: Placement) -> tuple[list[float], list[float]]:
    """Seconds [n_stages] that one replica of each stage sends and receives per micro-batch, all passes together."""
    send, receive = [0.0] * len(placement.stages), [0.0] * len(placement.stages)
    for transfer in list_transfers(problem, placement):
        send[transfer.source] += transfer.send
        receive[transfer.target] += transfer.receive
    return send, receive


def _cross(problem: Problem, own: StageGroup, other: StageGroup, nbytes: float) -> float:
    seconds = boundary_seconds(problem.cluster, own.devices, other.devices, np.array([nbytes]))
    return problem.require_ways().passes * float(seconds[0])


def _exchange_gradients(problem: Problem, group: StageGroup, nbytes: float) -> float:
    ways, d = problem.require_ways(), group.data_parallel
    if d == 1 or not ways.gradient_factor:
        return 0.0
    moved = ways.gradient_factor * (d - 1) / d * nbytes
    return gradient_seconds(problem.cluster, group.devices, moved, 2.0 * (d - 1)) / ways.microbatches


def _use_devices(
    problem: Problem, placement: Placement, loads: list[StageUse], value: float, pace: str
) -> tuple[DeviceUse, ...]:
    names, capacity = problem.cluster.names, problem.capacity
    stage_of = {d: s for s, group in enumerate(placement.stages) for d in group.devices}
    ops = np.bincount(np.asarray(placement.stage), minlength=len(loads))
    uses = []
    for d, name in enumerate(names):
        if d not in stage_of:
            idle = value if math.isfinite(value) else 0.0
            uses.append(DeviceUse(name, 0, 0.0, 0.0, 0.0, 0.0, idle, 0.0, 0.0, float(capacity[d])))
            continue
        s = stage_of[d]
        load, group = loads[s], placement.stages[s]
        idle = value - load.seconds if load.seconds < value < math.inf else 0.0
        first = names[group.devices[0]]
        uses.append(
            DeviceUse(
                name,
                int(ops[s]),
                load.compute,
                load.send,
                load.receive,
                load.seconds,
                idle,
                load.peak - load.memory[IN_FLIGHT],
                load.peak,
                float(capacity[d]),
                pace if idle and first != pace else "",
                sync=load.gradients,
                replicas=group.data_parallel,
                repeats="" if name == first else first,
            )
        )
    return tuple(uses)


def boundary_seconds(cluster: Cluster, own: Sequence[int], other: Sequence[int], nbytes: Floats) -> Floats:
    """Seconds [n] that a device of the stage on `own` is busy with tensors [n] to or from the stage on `other`.

    Staged: over its link with host memory, free where it works there. Direct: over the slowest link between the two,
    in either direction.
    """
    return _slowest(cluster, _boundary_classes(cluster, own, other), nbytes)


def gradient_seconds(cluster: Cluster, devices: Sequence[int], moved: float, messages: float) -> float:
    """Seconds that each of `devices` is busy with `moved` bytes of gradients in `messages`, over the slowest link."""
    classes = _boundary_classes(cluster, devices, devices)
    bandwidth, latency = cluster.class_bandwidth[classes], cluster.class_latency[classes]
    with np.errstate(over="ignore"):
        return float((messages * latency + moved / bandwidth).max(initial=0.0))


def _boundary_classes(cluster: Cluster, own: Sequence[int], other: Sequence[int]) -> Ints:
    a = cluster.location[list(own)]
    if cluster.transfers == "staged":
        host = len(cluster)
        pairs = np.concatenate((cluster.link_class[a, host], cluster.link_class[host, a]))
    else:
        b = cluster.location[list(other)]
        pairs = np.concatenate((cluster.link_class[np.ix_(a, b)], cluster.link_class[np.ix_(b, a)].T))
    classes: Ints = np.unique(pairs)
    return classes[classes > 0]


def _slowest(cluster: Cluster, classes: Ints, nbytes: Floats) -> Floats:
    if not len(classes):
        return np.zeros(len(nbytes))
    with np.errstate(over="ignore"):
        seconds = cluster.class_latency[classes] + nbytes[:, None] / cluster.class_bandwidth[classes]
    slowest: Floats = seconds.max(axis=1)
    return slowest
