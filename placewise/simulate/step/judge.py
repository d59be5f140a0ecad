"""The judge of the objective `step`: the seconds of one training step, its memory, and the rules that it breaks."""

from __future__ import annotations

import math

import numpy as np

from placewise._util.units import format_bytes
from placewise.model.columns import Floats
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse, Judgement, PipelineStageUse, PipelineUse, Violation
from placewise.simulate.check.check import check_op_rules
from placewise.simulate.judge.memory import resident_bytes
from placewise.simulate.step.memory import copy_peaks, count_in_flight
from placewise.simulate.step.orders import BACKWARD, FORWARD, WEIGHT
from placewise.simulate.step.pipelines import check_pipeline, pipeline_of, schedules_of
from placewise.simulate.step.simulate import StepRun, simulate_step
from placewise.simulate.step.stage_costs import KINDS, NOWHERE, Pipeline, sum_by


def judge_step(problem: Problem, placement: Placement) -> Judgement:
    """Price a complete placement as one training step, and list every rule that it breaks.

    Where the schedule is open, the best of those without chunks counts, first among those that keep the rules.
    """
    if not problem.n_ops:
        return Judgement(0.0, _idle_uses(problem, placement, 0.0), ())
    rules = tuple(check_op_rules(problem, placement))
    judged = [_judge_under(problem, placement, schedule, rules) for schedule in schedules_of(problem, placement)]
    return min(judged, key=lambda one: (not one.valid, one.value))


def find_schedule(problem: Problem, placement: Placement) -> str:
    """The schedule under which `judge_step` judges a placement."""
    schedules = schedules_of(problem, placement)
    if len(schedules) == 1:
        return schedules[0]
    judged = judge_step(problem, placement).pipeline
    return schedules[0] if judged is None else judged.schedule


def price_pipeline(problem: Problem, pipeline: Pipeline) -> tuple[float, StepRun]:
    """The bytes that a pipeline is short of over all devices, and its step; without looking at other rules."""
    run = simulate_step(problem, pipeline, problem.constraints.microbatches)
    if not math.isfinite(run.value):
        return 0.0, run
    short = 0.0
    for copy, devices in enumerate(pipeline.replicas):
        _, peak = copy_peaks(run, copy)
        short += float(np.maximum(peak - problem.capacity[list(devices)], 0.0).sum())
    return short, run


def _judge_under(problem: Problem, placement: Placement, schedule: str, rules: tuple[Violation, ...]) -> Judgement:
    pipeline = pipeline_of(problem, placement, schedule)
    if isinstance(pipeline, Violation):
        return Judgement(math.inf, _idle_uses(problem, placement, math.inf), (*rules, pipeline))
    broken = (*rules, *check_pipeline(problem, pipeline))
    if any(one.kind in ("contiguity", "schedule") or "divide" in one.message for one in broken):
        return Judgement(math.inf, _idle_uses(problem, placement, math.inf), broken)
    run = simulate_step(problem, pipeline, problem.constraints.microbatches)
    if not math.isfinite(run.value):
        return Judgement(math.inf, _idle_uses(problem, placement, math.inf), broken)
    uses = _use_devices(problem, placement, run)
    memory = tuple(_memory_violation(use) for use in uses if use.peak > use.capacity)
    busy = max(uses, key=lambda use: use.load)
    return Judgement(run.value, uses, (*broken, *memory), bottleneck=busy.device, pipeline=_use_pipeline(problem, run))


def _use_devices(problem: Problem, placement: Placement, run: StepRun) -> tuple[DeviceUse, ...]:
    """Seconds per step and bytes of every device."""
    pipeline, names = run.pipeline, problem.cluster.names
    places, ops = pipeline.stage_places(), np.bincount(pipeline.stage, minlength=pipeline.n_stages)
    uses = list(_idle_uses(problem, placement, run.value))
    count = len(pipeline.devices)
    ops_at = np.bincount(places, weights=ops, minlength=count).astype(int)
    for copy, devices in enumerate(pipeline.replicas):
        resident, peak = copy_peaks(run, copy)
        compute, send, receive = _busy_seconds(run, copy)
        compute = compute + run.update
        for place, d in enumerate(devices):
            load = float(compute[place] + run.sync[place])
            uses[d] = DeviceUse(
                names[d], int(ops_at[place]), float(compute[place]), float(send[place]), float(receive[place]),
                load, max(run.value - load, 0.0), float(resident[place]), float(peak[place]),
                float(problem.capacity[d]), sync=float(run.sync[place]), replicas=len(pipeline.replicas),
                repeats=names[pipeline.devices[place]] if copy else "",
            )  # fmt: skip
    return tuple(uses)


def _busy_seconds(run: StepRun, copy: int) -> tuple[Floats, Floats, Floats]:
    """Seconds [n_devices along the pipeline] of a copy that compute, send and receive, for all micro-batches."""
    own, places = run.copies[min(copy, len(run.copies) - 1)], np.array(run.pipeline.stage_places())
    count, n, costs = len(run.pipeline.devices), run.pipeline.n_stages, own.costs
    compute = sum_by(np.tile(places, KINDS), costs.seconds, count) * run.microbatches
    send, receive = np.zeros(count), np.zeros(count)
    for hop, seconds in zip(costs.passed.hops, costs.passed.seconds.tolist(), strict=True):
        if hop.source != NOWHERE and not hop.by_receiver:
            send[places[hop.source % n]] += seconds * run.microbatches
        if hop.target != NOWHERE:
            receive[places[hop.target % n]] += seconds * run.microbatches
    return compute, send, receive


def _use_pipeline(problem: Problem, run: StepRun) -> PipelineUse:
    pipeline, costs, names = run.pipeline, run.copies[0].costs, problem.cluster.names
    n, places = pipeline.n_stages, pipeline.stage_places()
    held, waiting = count_in_flight(pipeline.schedule, len(pipeline.devices), run.microbatches)
    stages = tuple(
        PipelineStageUse(
            tuple(names[line[places[s]]] for line in pipeline.replicas),
            float(costs.seconds[FORWARD * n + s]),
            float(costs.seconds[BACKWARD * n + s]),
            float(costs.seconds[WEIGHT * n + s]),
            float(costs.update[s]),
            held[s],
            waiting[s],
            float(costs.carried[FORWARD * n + s]),
        )
        for s in range(n)
    )
    busy = float(costs.seconds.sum()) * run.microbatches + float(run.update.sum())
    room = len(pipeline.devices) * run.value
    bubble = max(0.0, 1 - busy / room) if room > 0 else 0.0
    return PipelineUse(pipeline.schedule, problem.constraints.microbatches, bubble, stages)


def _idle_uses(problem: Problem, placement: Placement, value: float) -> tuple[DeviceUse, ...]:
    """Every device with its ops and what it holds throughout, and no seconds."""
    resident = resident_bytes(problem, placement.device)
    ops = np.bincount(placement.device, minlength=problem.n_devices)
    return tuple(
        DeviceUse(
            name, int(ops[d]), 0.0, 0.0, 0.0, 0.0, value, float(resident[d]), float(resident[d]),
            float(problem.capacity[d]),
        )
        for d, name in enumerate(problem.cluster.names)
    )  # fmt: skip


def _memory_violation(use: DeviceUse) -> Violation:
    short = use.peak - use.capacity
    message = f"{use.device} needs {format_bytes(use.peak)} and may use {format_bytes(use.capacity)}: "
    message += f"{format_bytes(short)} ({short:.0f} bytes) short"
    return Violation("memory", message, use.device, bytes_short=float(short))
