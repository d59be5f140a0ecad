"""Predicts a training step: seconds by the schedule that runs, and bytes of every process (`simulate.step`).

Backward ops are those of the training graph (docs/training.md). Where only the times of forward ops were measured,
those of their backward ops are the estimates, scaled as the measurement scales the forward op.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise.costing.roofline import cost_table
from placewise.costing.work import work_of
from placewise.errors import PlacewiseError
from placewise.model.columns import Floats, Ints
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.problem import Constraints, Objective, Problem
from placewise.simulate.step.memory import copy_peaks
from placewise.simulate.step.orders import BACKWARD, FORWARD, WEIGHT, Task
from placewise.simulate.step.roles import UPDATE, op_roles
from placewise.simulate.step.simulate import StepRun, simulate_step
from placewise.simulate.step.stage_costs import NOWHERE, Pipeline
from placewise.transform.training import to_training
from placewise.transform.virtual_stages import VirtualStages

Order = Sequence[Sequence[tuple[int, str, int]]]
"""By process of a replica: stage, kind of action (F, B, or I and W of a backward pass in two) and micro-batch."""
_TASKS = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}


@dataclass(frozen=True, slots=True)
class TrainingPrediction:
    """Seconds of a step, of one on the first device alone, and bytes of every process of a replica: the `memory` of the
    simulated step, and `buffers` that are kept for messages besides.

    NaN and empty where there is no training graph of the model; `note` says why, or that times were not measured here.
    """

    seconds: float
    alone: float
    memory: tuple[int, ...] = ()
    buffers: tuple[int, ...] = ()
    note: str = ""


def predict_training(
    problem: Problem,
    stages: VirtualStages,
    order: Order,
    *,
    optimizer: str,
    replicas: Sequence[tuple[int, ...]] = (),
    frozen: Sequence[str] = (),
    priced: Problem | None = None,
    blocking: bool = False,
) -> TrainingPrediction:
    """The prediction for a problem of forward ops, their stages, and what each process does for its micro-batches.

    `replicas` are the devices of each copy of the pipeline; none for a single one. `priced` has the times of the
    training graph, where they are known. With `blocking`, processors copy what passes between them.
    """
    lines = tuple(replicas) or (stages.devices,)
    try:
        graph = to_training(problem.graph, optimizer=optimizer, frozen=frozen)
        step = price_step(problem, graph, copies=len(lines), microbatches=_count_microbatches(order) * len(lines))
        step = step if priced is None else step.with_(costs=_take_times(step, priced))
    except PlacewiseError as error:
        return TrainingPrediction(math.nan, math.nan, note=f"no prediction: {error}")
    orders = tuple(tuple(Task(_TASKS[kind], stage, i) for stage, kind, i in actions) for actions in order)
    splits = any(kind == "W" for actions in order for _, kind, _ in actions)
    there_and_back = len(stages.devices) > 1 and stages.ranks[-1] == 0
    schedule = ("zb-v" if there_and_back else "zb-h1") if splits else "interleaved"
    stage = _stage_of_ops(problem.graph, graph, stages)
    pipeline = Pipeline(schedule, lines, stage, len(stages.ranks), orders)
    run = simulate_step(step, pipeline, step.constraints.microbatches, blocking=blocking)
    if not math.isfinite(run.value):
        return TrainingPrediction(math.nan, math.nan, note="no prediction: a stage reads what a later one makes")
    own, updates = step.costs.op_seconds[:, stages.devices[0]], op_roles(step) == UPDATE
    alone = step.constraints.microbatches * float(own[~updates].sum()) + float(own[updates].sum())
    memory, buffers = (tuple(map(int, sizes.tolist())) for sizes in (copy_peaks(run, 0)[1], _buffer_bytes(run)))
    return TrainingPrediction(float(run.value), alone, memory, buffers)


def _buffer_bytes(run: StepRun) -> Floats:
    """Bytes [n_devices along the pipeline] of the messages that PyTorch's pipelines hold room for all the time.

    A stage has a buffer for what it receives of every micro-batch of a step (`PipelineStage.args_recv_info` and
    `grad_recv_info`, PyTorch 2.13); those of micro-batches in flight are activations that the simulation counts.
    """
    pipeline, costs = run.pipeline, run.copies[0].costs
    n, places = pipeline.n_stages, pipeline.stage_places()
    found = np.zeros(len(pipeline.devices))
    in_flight = [_count_in_flight(pipeline.orders[place], stage) for stage, place in enumerate(places)]
    for hop, nbytes in zip(costs.passed.hops, costs.passed.bytes.tolist(), strict=True):
        if NOWHERE not in (hop.source, hop.target):
            kind, stage = divmod(hop.target, n)
            spare = run.microbatches - (in_flight[stage] if kind == FORWARD else 1)
            found[places[stage]] += nbytes * max(spare, 0)
    return found


def _count_in_flight(order: Sequence[Task], stage: int) -> int:
    """The most micro-batches of a stage that have gone forward and not all the way back."""
    last = max(task.kind for task in order if task.stage == stage)
    change = [(task.kind == FORWARD) - (task.kind == last) for task in order if task.stage == stage]
    return int(np.cumsum(change).max())


def price_step(problem: Problem, graph: Graph, *, copies: int, microbatches: int) -> Problem:
    """The problem of a step on the training graph of a problem of forward ops, with its times. Raises InputError."""
    costs = cost_table(graph, problem.cluster, work=work_of(graph))
    costs = replace(costs, op_seconds=_scale_by_measured(problem, graph, costs.op_seconds))
    constraints = Constraints(contiguous=True, replicas=copies, microbatches=microbatches)
    return Problem(graph, problem.cluster, costs, Objective("step"), constraints)


def _take_times(step: Problem, priced: Problem) -> CostTable:
    """The costs of a step, with those of another problem of the same devices for ops and tensors of the same names."""
    seconds, transfers = step.costs.op_seconds.copy(), step.costs.transfer_seconds.copy()
    ops = {name: op for op, name in enumerate(priced.graph.ops.name)}
    tensors = {name: tensor for tensor, name in enumerate(priced.graph.tensors.name)}
    for op, name in enumerate(step.graph.ops.name):
        if name in ops:
            seconds[op] = priced.costs.op_seconds[ops[name]]
    for tensor, name in enumerate(step.graph.tensors.name):
        if name in tensors:
            transfers[tensor] = priced.costs.transfer_seconds[tensors[name]]
    return replace(step.costs, op_seconds=seconds, transfer_seconds=transfers)


def _count_microbatches(order: Order) -> int:
    return len({number for actions in order for _, _, number in actions})


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


def _scale_by_measured(problem: Problem, graph: Graph, estimated: Floats) -> Floats:
    """Seconds [n_ops, n_devices]: those of the problem for forward ops, and estimates scaled alike for their backward
    ops.
    """
    base = cost_table(problem.graph, problem.cluster).op_seconds
    place = {name: op for op, name in enumerate(problem.graph.ops.name)}
    seconds: Floats = estimated.copy()
    for op, name in enumerate(graph.ops.name):
        own = place.get(name)
        if own is not None:
            seconds[op] = problem.costs.op_seconds[own]
            continue
        source = place.get(name.rpartition("/grad:")[0])
        if source is not None:
            given, guess = problem.costs.op_seconds[source], base[source]
            known = (guess > 0) & np.isfinite(guess) & np.isfinite(given)
            seconds[op] = np.where(known, estimated[op] * given / np.where(known, guess, 1.0), estimated[op])
    return seconds
