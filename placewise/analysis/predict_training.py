"""Predicts a training step: seconds by the schedule that runs, and bytes of every process.

Backward ops are those of the training graph (docs/training.md). Where the times of forward ops were measured, those of
their backward ops are the estimates, scaled as the measurement scales the forward op.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewise.costing.roofline import cost_table
from placewise.costing.work import work_of
from placewise.errors import PlacewiseError
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.transform.training import to_training
from placewise.transform.virtual_stages import VirtualStages

Order = Sequence[Sequence[tuple[int, str, int]]]
"""By process of a replica: stage, kind of action (F, B, or I and W of a backward pass in two) and micro-batch."""
_VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}


@dataclass(frozen=True, slots=True)
class TrainingPrediction:
    """Seconds of a step, of one on the first device alone, and bytes of every process of a replica.

    NaN and empty where there is no training graph of the model; `note` says why.
    """

    seconds: float
    alone: float
    memory: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """By stage: seconds of a forward and of a backward pass of a micro-batch, and of passing its values on; bytes kept
    from one to the other. By process: seconds of an optimizer step, and bytes of weights, gradients and its state.
    """

    forward: Floats
    backward: Floats
    passing: Floats
    saved: Floats
    update: Floats
    held: Floats


def predict_training(
    problem: Problem,
    stages: VirtualStages,
    order: Order,
    *,
    optimizer: str,
    replicas: int = 1,
    frozen: Sequence[str] = (),
) -> TrainingPrediction:
    """The prediction for a problem of forward ops, their stages, and what each process does for its micro-batches."""
    try:
        graph = to_training(problem.graph, optimizer=optimizer, frozen=frozen)
        costs = price_stages(problem, graph, stages)
    except PlacewiseError as error:
        return TrainingPrediction(math.nan, math.nan, note=f"no prediction: {error}")
    finish = play_schedule(order, costs)
    weights = _gradient_bytes(graph, _stage_of_ops(problem.graph, graph, stages), len(stages.ranks))
    by_rank = np.bincount(np.array(stages.ranks), weights, len(stages.devices))
    exchange = [_all_reduce_seconds(problem, size, replicas) for size in by_rank.tolist()]
    seconds = max(end + update + more for end, update, more in zip(finish, costs.update, exchange, strict=True))
    microbatches = replicas * len({action[2] for actions in order for action in actions})
    alone = microbatches * float((costs.forward + costs.backward).sum()) + float(costs.update.sum())
    peaks = count_in_flight(order, costs.saved)
    memory = tuple(int(held + peak) for held, peak in zip(costs.held, peaks, strict=True))
    return TrainingPrediction(seconds, alone, memory)


def price_stages(problem: Problem, graph: Graph, stages: VirtualStages) -> StageCosts:
    """The costs of stages, from the training graph of a problem of forward ops. Raises InputError."""
    n_stages, n_ranks = len(stages.ranks), len(stages.devices)
    stage = _stage_of_ops(problem.graph, graph, stages)
    device = np.array([stages.devices[stages.ranks[s]] for s in stage.tolist()], np.int32)
    every = np.arange(graph.n_ops)
    estimated = cost_table(graph, problem.cluster, work=work_of(graph)).op_seconds[every, device]
    seconds = _scale_by_measured(problem, graph, device, estimated)
    updates = np.char.startswith(np.array([str(kind) for kind in graph.ops.kind] or [""]), "optimizer::")[: graph.n_ops]
    backward = graph.ops.backward & ~updates

    def by_stage(mask: Bools, values: Floats) -> Floats:
        return np.bincount(stage[mask], values[mask], n_stages).astype(np.float64)

    rank = np.array(stages.ranks)[stage]
    gradients = _gradient_bytes(graph, stage, n_stages)
    held = np.bincount(np.array(stages.ranks), gradients + _weight_bytes(problem.graph, stages), n_ranks)
    held = held + np.bincount(rank, np.maximum(graph.ops.state_bytes, 0).astype(np.float64), n_ranks)
    return StageCosts(
        forward=by_stage(~graph.ops.backward, seconds),
        backward=by_stage(backward, seconds),
        passing=_passing_seconds(problem, stages),
        saved=_saved_bytes(graph, stage, n_stages),
        update=np.bincount(rank[updates], seconds[updates], n_ranks).astype(np.float64),
        held=held.astype(np.float64),
    )


def play_schedule(order: Order, costs: StageCosts) -> list[float]:
    """When each process ends its actions, if each starts as soon as the values that it needs have arrived."""
    done: dict[tuple[int, str, int], float] = {}
    clock, place = [0.0] * len(order), [0] * len(order)
    last = len(costs.forward) - 1
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(order):
            while place[rank] < len(actions):
                stage, kind, number = actions[place[rank]]
                ready = _ready(done, stage, kind, number, last, costs.passing)
                if ready is None:
                    break
                half = 0.5 if kind in ("I", "W") else 1.0
                length = costs.forward[stage] if kind == "F" else half * costs.backward[stage]
                clock[rank] = max(clock[rank], ready) + float(length)
                done[stage, "B" if kind == "I" else kind, number] = clock[rank]
                place[rank] += 1
                moved = True
    return clock


def count_in_flight(order: Order, saved: Floats) -> list[float]:
    """The most bytes that each process keeps between forward and backward passes."""
    peaks = []
    for actions in order:
        splits = any(kind == "W" for _, kind, _ in actions)
        now = peak = 0.0
        for stage, kind, _ in actions:
            if kind == "F":
                now += float(saved[stage])
                peak = max(peak, now)
            elif kind == ("W" if splits else "B") or kind == "B":
                now -= float(saved[stage])
        peaks.append(peak)
    return peaks


def _ready(
    done: Mapping[tuple[int, str, int], float], stage: int, kind: str, number: int, last: int, passing: Floats
) -> float | None:
    """When an action can start; None if what it needs is not done."""
    if kind == "F":
        if stage == 0:
            return 0.0
        before = done.get((stage - 1, "F", number))
        return None if before is None else before + float(passing[stage - 1])
    if kind == "W":
        return done.get((stage, "B", number))
    if stage == last:
        return done.get((stage, "F", number))
    after = done.get((stage + 1, "B", number))
    return None if after is None else after + float(passing[stage])


def _stage_of_ops(forward: Graph, graph: Graph, stages: VirtualStages) -> Ints:
    """The stage of each op [n_ops] of the training graph: its forward op's, or the latest of what it reads."""
    known = dict(zip(forward.ops.name, stages.stage.tolist(), strict=True))
    groups: dict[int, int] = {}
    stage = np.zeros(graph.n_ops, np.int32)
    producer = graph.tensors.producer
    for op, (name, group) in enumerate(zip(graph.ops.name, graph.ops.group.tolist(), strict=True)):
        own = known.get(name, known.get(name.rpartition("/grad:")[0], groups.get(group) if group >= 0 else None))
        if own is None:
            makers = [int(producer[t]) for t in graph.inputs_of(op).tolist() if producer[t] >= 0]
            own = max((int(stage[maker]) for maker in makers), default=0)
        stage[op] = own
        if group >= 0:
            groups.setdefault(group, own)
    return stage


def _scale_by_measured(problem: Problem, graph: Graph, device: Ints, estimated: Floats) -> Floats:
    """Seconds of each op: those of the problem for forward ops, and estimates scaled alike for their backward ops."""
    forward = problem.graph
    base = cost_table(forward, problem.cluster).op_seconds
    place = {name: op for op, name in enumerate(forward.ops.name)}
    seconds: Floats = estimated.copy()
    for op, name in enumerate(graph.ops.name):
        own = place.get(name)
        source = place.get(name.rpartition("/grad:")[0]) if own is None else own
        if source is None:
            continue
        given, guess = problem.costs.op_seconds[source, device[op]], base[source, device[op]]
        if own is not None:
            seconds[op] = given
        elif guess > 0 and math.isfinite(given):
            seconds[op] = estimated[op] * given / guess
    return seconds


def _passing_seconds(problem: Problem, stages: VirtualStages) -> Floats:
    """Seconds in which the values that leave each stage, its own and those passed through, reach the next one."""
    graph, cluster = problem.graph, problem.cluster
    passing = np.zeros(max(len(stages.ranks) - 1, 0))
    location = cluster.location[list(stages.devices)]
    for tensor in range(graph.n_tensors):
        maker = int(graph.tensors.producer[tensor])
        born = int(stages.stage[maker]) if maker >= 0 else 0
        readers = graph.consumers_of(tensor)
        until = int(stages.stage[readers].max(initial=0)) if len(readers) else 0
        for stage in range(born, until):
            here, there = stages.ranks[stage], stages.ranks[stage + 1]
            kind = int(cluster.link_class[location[here], location[there]])
            passing[stage] += problem.costs.transfer_seconds[tensor, kind]
    return passing


def _saved_bytes(graph: Graph, stage: Ints, n_stages: int) -> Floats:
    """Bytes of forward tensors that the backward ops of each stage read, views as what they are views of."""
    saved: set[tuple[int, int]] = set()
    producer, kinds = graph.tensors.producer, graph.ops.kind
    for op in np.flatnonzero(graph.ops.backward).tolist():
        for tensor in graph.inputs_of(op).tolist():
            while (maker := int(producer[tensor])) >= 0 and kinds[maker] in _VIEWS and len(graph.inputs_of(maker)):
                tensor = int(graph.inputs_of(maker)[0])
            if maker >= 0 and not graph.ops.backward[maker]:
                saved.add((int(stage[op]), tensor))
    found = np.zeros(n_stages)
    for where, tensor in saved:
        found[where] += max(int(graph.tensors.bytes[tensor]), 0)
    return found


def _weight_bytes(graph: Graph, stages: VirtualStages) -> Floats:
    """Bytes of the weights that each stage reads; one that several read counts in each of their processes once."""
    seen: set[tuple[int, int]] = set()
    found = np.zeros(len(stages.ranks))
    for op in range(graph.n_ops):
        stage = int(stages.stage[op])
        for weight in graph.weights_of(op).tolist():
            key = (stages.ranks[stage], int(graph.weights.storage[weight]))
            if key not in seen:
                seen.add(key)
                found[stage] += int(graph.weights.bytes[weight])
    return found


def _gradient_bytes(graph: Graph, stage: Ints, n_stages: int) -> Floats:
    """Bytes of the gradients of the weights that each stage updates."""
    found = np.zeros(n_stages)
    for op, kind in enumerate(graph.ops.kind):
        if str(kind).startswith("optimizer::") and not str(kind).endswith("Renew"):
            found[stage[op]] += sum(max(int(graph.tensors.bytes[t]), 0) for t in graph.inputs_of(op).tolist())
    return found


def _all_reduce_seconds(problem: Problem, size: float, replicas: int) -> float:
    """Seconds of a ring over the slowest link of the cluster."""
    speeds = problem.cluster.class_bandwidth[1:]
    if replicas < 2 or not len(speeds):
        return 0.0
    latency = float(problem.cluster.class_latency[1:].max())
    return 2 * (replicas - 1) * (size / replicas / float(speeds.min()) + latency)
