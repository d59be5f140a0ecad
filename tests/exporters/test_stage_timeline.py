"""The timeline of stages whose ops are split: the judge's seconds, one thing at a time, nothing before its inputs."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from parallel_plans import problem_of, staged
from published import PIPER, needs_piper
from soak import seeds
from split_problems import random_pipeline, split_problem
from tiny_problems import Draw

from placewise.core.place import place
from placewise.exporters.stage_timeline import StageTimeline, schedule_stages
from placewise.exporters.stage_work import COLLECTIVES, COMPUTE, GRADIENTS, RECEIVE, RECOMPUTE, SEND
from placewise.exporters.writing import export_placement
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.sharding import KINDS
from placewise.model.ways import StageGroup
from placewise.placers.base import Budget
from placewise.readers.piper import read_piper
from placewise.simulate import judge_placement

PIPELINE = [StageGroup((0, 1, 2, 3), 2, 2), StageGroup((4, 5, 6, 7), 2, 2)]


def sums(made: StageTimeline, stage: int) -> dict[str, float]:
    """Seconds of a micro-batch by what a stage does with it; collectives of all kinds together."""
    found: dict[str, float] = defaultdict(float)
    for task, own in zip(made.tasks, made.stage, strict=True):
        if own == stage:
            found[COLLECTIVES if task.what in KINDS else task.what] += task.seconds
    return found


def require_judged(problem: Problem, placement: Placement) -> StageTimeline:
    """The timeline, whose seconds have to be the judge's."""
    judged = judge_placement(problem, placement)
    made = schedule_stages(problem, placement, judged)
    for s, (group, use) in enumerate(zip(placement.stages, judged.stages, strict=True)):
        found, d = sums(made, s), group.data_parallel
        close = {
            COLLECTIVES: use.collective * d,
            GRADIENTS: use.gradients * d,
            "crossing": (use.send + use.receive) * d,
            "ops": (use.compute - use.collective) * d,
        }
        found |= {"crossing": found[SEND] + found[RECEIVE], "ops": found[COMPUTE] + found[RECOMPUTE]}
        for what, wanted in close.items():
            assert found[what] == pytest.approx(wanted, rel=1e-6, abs=1e-9 * use.seconds * d), what
    assert sorted(task.op for task in made.tasks if task.what == COMPUTE) == list(range(problem.n_ops))
    return made


def require_one_at_a_time(placement: Placement, made: StageTimeline, samples: int) -> None:
    """No replica of a stage does two things at once, with so many micro-batches under way."""
    busy = defaultdict(list)
    for task, stage, start in zip(made.tasks, made.stage, made.start.tolist(), strict=True):
        for sample in range(samples if made.period else 1):
            replica = sample % placement.stages[stage].data_parallel
            begin = start + sample * (made.period or 0.0)
            busy[stage, replica].append((begin, begin + task.seconds))
    slack = 1e-6 * (made.period or made.end)
    for spans in busy.values():
        spans = sorted(span for span in spans if span[1] > span[0])
        assert all(one[1] <= other[0] + slack for one, other in pairwise(spans))


@pytest.mark.parametrize("name", ["llama", "bert", "resnet"])
def test_ops_and_collectives_are_those_of_the_judge(name: str) -> None:
    """Two stages, replicated and split, that recompute: every op once, recomputed before its backward pass."""
    problem = problem_of(name, "8xA100-80GB", microbatches=8)
    placement = staged(problem, PIPELINE, [2], again=True)
    made = require_judged(problem, placement)
    require_one_at_a_time(placement, made, 24)
    assert not made.joined
    assert {task.what for task in made.tasks} >= {"all-reduce", RECOMPUTE, SEND, RECEIVE, GRADIENTS}
    start = {task.op: moment for task, moment in zip(made.tasks, made.start, strict=True) if task.what == COMPUTE}
    again = {task.op: moment for task, moment in zip(made.tasks, made.start, strict=True) if task.what == RECOMPUTE}
    ways, late = problem.require_ways(), problem.graph.ops.backward
    for op, moment in again.items():
        same = np.flatnonzero((ways.unit == ways.unit[op]) & late)
        assert start[op] < moment and all(moment <= start[other] for other in same.tolist())


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_tokens_are_scattered_and_gathered(name: str) -> None:
    """With sequence parallelism, reduce-scatters and all-gathers take the judge's seconds; fewer sums are reduced."""
    problem = problem_of(name, "8xA100-80GB", microbatches=8, sequence_parallel=True)
    made = require_judged(problem, staged(problem, PIPELINE, [2], again=True))
    scattered = [task for task in made.tasks if task.what == "reduce-scatter"]
    assert scattered and any(task.what == "all-gather" for task in made.tasks)
    plain = require_judged(problem_of(name, "8xA100-80GB", microbatches=8), staged(problem, PIPELINE, [2], again=True))
    assert sum(task.what == "all-reduce" for task in plain.tasks) > sum(
        task.what == "all-reduce" for task in made.tasks
    )


def test_values_arrive_before_they_are_read() -> None:
    """An op starts after those that it reads from, also in other stages, and stages in order hand on values."""
    problem = problem_of("bert", "8xA100-80GB", microbatches=8)
    made = require_judged(problem, staged(problem, PIPELINE, [2]))
    span = {
        task.op: (moment, moment + task.seconds)
        for task, moment in zip(made.tasks, made.start.tolist(), strict=True)
        if task.what == COMPUTE
    }
    edges, producer = problem.graph.edges, problem.graph.tensors.producer
    for tensor, reader in zip(edges.value.tolist(), edges.consumer.tolist(), strict=True):
        if producer[tensor] >= 0:
            assert span[int(producer[tensor])][1] <= span[reader][0] + 1e-9 * made.end


def test_a_request_takes_the_latency() -> None:
    """Phases one after the other through all stages: the end is the judge's value, and nothing waits."""
    problem = problem_of("llama", "4xA100-80GB", graph="inference", objective="latency", microbatches=None)
    placement = staged(problem, [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)], [2])
    made, judged = require_judged(problem, placement), judge_placement(problem, placement)
    assert made.period is None and made.end == pytest.approx(judged.value)
    assert all(one.seconds >= 0 for one in made.tasks) and np.all(np.diff(made.start) >= -1e-12)


@pytest.mark.parametrize("seed", seeds(40))
def test_random_stages_take_the_judges_seconds(seed: int) -> None:
    """Ways from a file: one task per unit, what recomputation takes beyond the other way, and no overlap."""
    draw = Draw(seed)
    problem = split_problem(seed, kind="latency" if seed % 4 == 0 else "throughput", classes=1 + seed % 2)
    drawn = [random_pipeline(draw, problem) for _ in range(100)]
    ready = [one for one in drawn if judge_placement(problem, one).valid and judge_placement(problem, one).value > 0]
    if not ready:
        return  # nothing fits
    placement = max(ready, key=lambda one: len(one.stages))
    judged = judge_placement(problem, placement)
    made = require_judged(problem, placement)
    require_one_at_a_time(placement, made, 12)
    assert made.joined == problem.require_ways().trains
    if made.period is None:
        assert made.end == pytest.approx(judged.value)


def test_the_trace_shows_every_device_of_a_split() -> None:
    """Slices by micro-batch on all devices of its replica: ops, collectives by kind, transfers, gradients."""
    problem = problem_of("llama", "8xA100-80GB", microbatches=8)
    placement = staged(problem, PIPELINE, [2], again=True)
    made = export_placement(problem, placement, "trace", {"samples": 2})
    events = json.loads(str(made.exported.files["trace.json"]))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    slices = [event for event in events if event["ph"] == "X"]
    busy: dict[tuple[str, int, str], float] = defaultdict(float)
    for event in slices:
        busy[names[event["pid"]], event["args"]["sample"], event["cat"]] += event["dur"] / 1e6
    judged = judge_placement(problem, placement)
    for stage, use in zip(placement.stages, judged.stages, strict=True):
        for number, device in enumerate(stage.devices):
            name, sample = problem.cluster.names[device], number // 2
            assert busy[name, sample, "collective"] == pytest.approx(use.collective * 2)
            assert busy[name, sample, "copy"] == pytest.approx((use.send + use.receive) * 2)
            assert busy[name, sample, "gradients"] == pytest.approx(use.gradients * 2)
            ops = busy[name, sample, "op"] + busy[name, sample, "recomputation"]
            assert ops == pytest.approx((use.compute - use.collective) * 2)
            assert not busy[name, 1 - sample, "op"]
    assert {event["name"].split(" ")[0] for event in slices if event["cat"] == "collective"} >= {"all-reduce"}


@needs_piper
def test_a_published_instance_has_a_timeline() -> None:
    """Piper's BERT-32: the judge's seconds, both passes as one, and slices for every op."""
    problem = read_piper(PIPER / "bert32a100.json").problem
    found = place(problem, "auto", Budget(10.0))
    assert found.placement is not None and found.judgement is not None
    made = require_judged(problem, found.placement)
    assert made.joined and made.period == found.value
    require_one_at_a_time(found.placement, made, 40)
    export_placement(problem, found.placement, "trace", {"samples": 2})
