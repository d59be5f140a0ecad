"""The judge of a training step against its definition: seconds, bytes, rules."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from soak import seeds
from step_problems import random_step_pipeline, step_problem
from twins.step import PlainStep

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Violation
from placewise.model.ways import StageGroup
from placewise.simulate import evaluate, judge_placement
from placewise.simulate.step.judge import find_schedule, price_pipeline
from placewise.simulate.step.memory import copy_peaks
from placewise.simulate.step.orders import FLAT, device_orders
from placewise.simulate.step.pipelines import pipeline_of, placement_of_pipeline
from placewise.simulate.step.roles import UPDATE, op_roles
from placewise.simulate.step.simulate import StepRun, simulate_step
from placewise.simulate.step.stage_costs import Pipeline


def plain_step(problem: Problem, pipeline: Pipeline) -> PlainStep:
    m = problem.constraints.microbatches
    orders = device_orders(pipeline.schedule, len(pipeline.devices), m)
    return PlainStep(
        problem, orders, pipeline.stage.tolist(), pipeline.stage_devices().tolist(), op_roles(problem).tolist(), m
    )


@pytest.mark.parametrize("wires", [False, True])
def test_seconds_and_bytes_are_those_of_the_definition(wires: bool) -> None:
    """Random stages, links, hosts, skips and tied weights under every schedule: value and peaks are the twin's, also
    where links share a wire that many want at the same moment.
    """
    seen = Counter[str]()
    for seed in seeds(240):
        problem = step_problem(seed, wires=wires)
        pipeline = random_step_pipeline(seed, problem)
        if pipeline is None:
            continue
        _, run = price_pipeline(problem, pipeline)
        plain = plain_step(problem, pipeline)
        assert run.value == pytest.approx(plain.value, rel=1e-12), seed
        resident, peak = copy_peaks(run, 0)
        assert dict(zip(pipeline.devices, (peak - resident).tolist(), strict=True)) == pytest.approx(plain.peaks()), (
            seed
        )
        seen[pipeline.schedule] += 1
        seen["tied"] += bool(run.copies[0].costs.gradients.hops)
    assert all(seen[what] for what in ("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "tied"))


def test_shared_wires_carry_one_transfer_at_a_time() -> None:
    """Transfers on one wire never overlap, and nothing starts before what it waits for."""
    slower = 0
    for seed in seeds(120):
        problem = step_problem(seed, wires=True, hosts=False)
        pipeline = random_step_pipeline(seed, problem)
        if pipeline is None:
            continue
        links = tuple(replace(link, shared="") for link in problem.cluster.links)
        private = simulate_step(
            problem.with_(cluster=replace(problem.cluster, links=links)), pipeline, problem.constraints.microbatches
        )
        run = simulate_step(problem, pipeline, problem.constraints.microbatches)
        own, n = run.copies[0], run.pipeline.n_stages
        queue = problem.cluster.queue
        spans: dict[int, list[tuple[float, float]]] = {}
        for item, type_ in enumerate(own.program.type.tolist()):
            assert all(own.ends[other] <= own.starts[item] for other in own.program.before[item])
            if type_ >= 3 * n:
                link = own.costs.passed.hops[type_ - 3 * n].link
                spans.setdefault(int(queue[link]), []).append((own.starts[item], own.ends[item]))
        for own_spans in spans.values():
            ordered = sorted(own_spans)
            assert all(a[1] <= b[0] for a, b in pairwise(ordered))
        slower += run.value > private.value
    assert slower > 5


def copies_of(problem: Problem, copies: int, schedule: str = "1f1b") -> Placement:
    """Equal halves of the model, each on so many devices."""
    half = problem.n_ops and np.array([group >= 4 for group in problem.graph.ops.group], np.int32)
    groups = tuple(StageGroup(tuple(s * copies + c for c in range(copies)), copies) for s in range(2))
    device = np.array([group.devices[0] for group in groups], np.int32)[half]
    return Placement(device, stages=groups, stage=half, schedule=schedule)


def test_replicas_share_the_micro_batches_and_sum_gradients_once() -> None:
    """Two copies of a pipeline: half the micro-batches each, then the ring's seconds once, then the update."""
    problem = step_problem(5, alike=True, layers=8, devices=4, microbatches=8, replicas=2)
    alone = step_problem(5, alike=True, layers=8, devices=4, microbatches=4)
    both, half = judge_placement(problem, copies_of(problem, 2)), copies_of(alone, 1)
    single = judge_placement(alone, half)
    assert both.valid
    assert single.valid
    sync = [use.sync for use in both.devices]
    assert min(sync) > 0
    latest = max(sync)
    assert single.value < both.value <= single.value + latest + 1e-12
    weights = sum(int(w) for w in problem.graph.weights.bytes)
    assert latest <= 2 * (2 - 1) / 2 * weights / 4.0
    assert [use.peak for use in both.devices[:2]] == [both.devices[0].peak] * 2
    assert {v.kind for v in judge_placement(alone, copies_of(alone, 2)).violations} == {"replicas"}


def test_a_plan_that_does_not_fit_says_how_many_bytes_are_missing() -> None:
    """GPipe holds all micro-batches and breaks a memory limit that 1F1B keeps, on the same cut."""
    roomy = step_problem(7, alike=True, layers=8, devices=2, microbatches=12)
    peaks = {
        schedule: [use.peak for use in judge_placement(roomy, copies_of(roomy, 1, schedule)).devices]
        for schedule in ("gpipe", "1f1b")
    }
    limit = max(peaks["1f1b"])
    assert max(peaks["gpipe"]) > limit
    tight = step_problem(7, alike=True, layers=8, devices=2, microbatches=12, memory=limit)
    assert judge_placement(tight, copies_of(tight, 1, "1f1b")).valid
    broken = judge_placement(tight, copies_of(tight, 1, "gpipe")).violations
    assert {violation.kind for violation in broken} == {"memory"}
    assert max(violation.bytes_short for violation in broken) == max(peaks["gpipe"]) - limit
    line = Pipeline("gpipe", ((0, 1),), np.asarray(copies_of(tight, 1).stage), 2)
    assert price_pipeline(tight, line)[0] == sum(violation.bytes_short for violation in broken) > 0


def two_layers(cluster: Cluster, microbatches: int, back: int = 0) -> Problem:
    """Two layers whose ops take a second each; the first hands 100 bytes on and gets so many back."""
    builder = GraphBuilder()
    tensor = builder.add_tensor(-1, nbytes=0)
    ops = [("f0", False, 100), ("f1", False, 0), ("d1", True, back), ("d0", True, 0)]
    for name, backward, nbytes in ops:
        op = builder.add_op(name, "Op", backward=backward, group=int(name[1]))
        builder.add_edge(tensor, op)
        tensor = builder.add_tensor(op, nbytes=nbytes)
    graph = builder.build()
    costs = CostTable.given(np.ones((4, 2)), transfer_seconds_of(graph, cluster))
    rules = Constraints(contiguous=True, microbatches=microbatches)
    return Problem(graph, cluster, costs, Objective("step", schedule="1f1b"), rules)


@pytest.mark.parametrize("transfers", ["direct", "staged"])
def test_a_cpu_waits_for_what_it_reads(transfers: str) -> None:
    """A GPU and the CPU behind it, one second per task, ten for the transfer: 1 + 10 + 1 + 1 + 0 + 1."""
    links = (Link("gpu", HOST, 10.0), Link(HOST, "gpu", 10.0))
    cluster = Cluster((Device("gpu", "accelerator"), Device("cpu", "cpu")), links, transfers)  # type: ignore[arg-type]
    assert judge_placement(two_layers(cluster, 1), Placement(np.array([0, 1, 1, 0], np.int32))).value == 14


@pytest.mark.parametrize(("shared", "step"), [("", 16), ("bus", 18)])
def test_a_shared_wire_takes_what_is_ready_first(shared: str, step: float) -> None:
    """Two GPUs, two micro-batches under 1F1B, 1 s per task and 4 s per transfer, worked by hand: there from 1 and from
    5; back from 7 and from 11 on a link of its own, from 9 and from 13 on a wire of both ways; one more task.
    """
    links = (Link("a", "b", 25.0, shared=shared), Link("b", "a", 25.0, shared=shared))
    links += tuple(link for d in "ab" for link in (Link(d, HOST, 25.0), Link(HOST, d, 25.0)))
    cluster = Cluster((Device("a"), Device("b")), links, "direct")
    assert judge_placement(two_layers(cluster, 2, back=100), Placement(np.array([0, 1, 1, 0], np.int32))).value == step


def test_rules_of_a_pipeline() -> None:
    """Stages that are no chain, schedules that need two stages, and micro-batches that do not divide are named."""
    problem = step_problem(5, alike=True, layers=8, devices=4, microbatches=6)
    plan = copies_of(problem, 1)
    mirrored = Placement(1 - plan.device, stages=plan.stages, stage=1 - np.asarray(plan.stage), schedule="1f1b")

    def kinds(placement: Placement, schedule: str = "auto") -> set[str]:
        asked = problem.with_(objective=replace(problem.objective, schedule=schedule))
        judged = judge_placement(asked, placement)
        assert math.isfinite(judged.value) == judged.valid
        return {violation.kind for violation in judged.violations}

    assert kinds(plan) == set()
    assert kinds(Placement(plan.device)) == set()
    assert kinds(mirrored) == {"contiguity"}
    assert kinds(Placement(mirrored.device)) == set()
    assert kinds(plan, "zb-v") == {"schedule"}
    for schedule in FLAT:
        assert kinds(plan, schedule) == set()


CUTS: dict[str, tuple[str, list[tuple[tuple[int, ...], int, int]], str, str]] = {
    "a line": ("1f1b", [((0,), 1, 1), ((1,), 1, 1)], "", ""),
    "there and back": ("zb-v", [((0,), 1, 1), ((1,), 1, 1), ((1,), 1, 1), ((0,), 1, 1)], "", ""),
    "in a loop": ("interleaved", [((0,), 1, 1), ((1,), 1, 1), ((0,), 1, 1), ((1,), 1, 1)], "", ""),
    "split": ("1f1b", [((0, 1), 1, 2), ((2, 3), 1, 2)], "schedule", "its stages split ops over devices, and the step"),
    "uneven": ("1f1b", [((0, 1), 2, 1), ((2,), 1, 1)], "replicas", "its stages have different numbers of replicas"),
    "odd": ("zb-v", [((d,), 1, 1) for d in range(3)], "schedule", "zb-v gives every device two stages, and the plan"),
    "misplaced": (
        "zb-v", [((d,), 1, 1) for d in (0, 1, 0, 1)], "schedule",
        "under zb-v, stage 2 runs on d1, and the plan has it on d0",
    ),
    "one device twice": (
        "1f1b", [((0,), 1, 1), ((0,), 1, 1)], "schedule", "under 1f1b, two places of the pipeline are on one device",
    ),
    "copies that share": (
        "1f1b", [((0, 1), 2, 1), ((1, 2), 2, 1)], "schedule", "under 1f1b, two places of the pipeline",
    ),
    "too many copies": ("1f1b", [((0, 1, 2), 3, 1)], "replicas", "3 devices share a stage, and 2 may"),
    "copies that do not divide": ("1f1b", [((0, 1), 2, 1)], "replicas", "2 replicas do not divide 5 micro-batches"),
    "a round too short": (
        "interleaved", [((d,), 1, 1) for d in (0, 1, 0, 1)], "schedule",
        "interleaved needs micro-batches in multiples of the 2 devices, not 5",
    ),
    "out of order": ("1f1b", [((1,), 1, 1), ((0,), 1, 1)], "order", "the stages do not follow the order"),
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_each_rule_of_a_pipeline_has_its_sentence(name: str) -> None:
    """Stages of equal length on devices, as a plan says them: what a schedule cannot run is named, and nothing else."""
    schedule, stages, kind, sentence = CUTS[name]
    m, copies = 5 if sentence.endswith("5") or "5 micro" in sentence else 6, 1 if kind == "order" else 2
    problem = step_problem(5, alike=True, layers=8, devices=4, microbatches=m, replicas=copies)
    rules = replace(problem.constraints, ordered=kind == "order")
    problem = problem.with_(constraints=rules, objective=replace(problem.objective, schedule=schedule))
    stage = np.array([group * len(stages) // 8 for group in problem.graph.ops.group], np.int32)
    groups = tuple(StageGroup(*group) for group in stages)
    device = np.array([group.devices[0] for group in groups], np.int32)[stage]
    found = judge_placement(problem, Placement(device, stages=groups, stage=stage, schedule=schedule))
    assert [violation.kind for violation in found.violations] == [kind] * bool(kind)
    assert all(violation.message.startswith(sentence) for violation in found.violations)


def test_copies_are_on_equal_devices() -> None:
    """A device with less memory holds no copy of a stage on another; which two of them differ is said."""
    problem = step_problem(5, alike=True, layers=8, devices=4, microbatches=6, replicas=2)
    units = (*problem.cluster.devices[:3], replace(problem.cluster.devices[3], memory=1e6))
    unlike = problem.with_(cluster=replace(problem.cluster, devices=units))
    assert judge_placement(problem, copies_of(problem, 2)).valid
    messages = [violation.message for violation in judge_placement(unlike, copies_of(unlike, 2)).violations]
    assert messages == ["d2, d3 share a stage and are not equal"]


def test_ops_that_moved_join_the_nearest_stage_of_their_device() -> None:
    """The devices decide where they and the stages differ: of the two stages of a device the nearer one has the op."""
    problem = step_problem(5, alike=True, layers=8, devices=4, microbatches=6)
    groups = tuple(StageGroup((d,)) for d in (0, 1, 1, 0))
    stage = np.array([group // 2 for group in problem.graph.ops.group], np.int32)
    device = np.array([0, 1, 1, 0], np.int32)[stage]
    for layer, where, joined in ((2, 0, 0), (5, 0, 3), (1, 1, 1), (6, 1, 2)):
        moved = np.where(np.array(problem.graph.ops.group) == layer, where, device)
        pipeline = pipeline_of(problem, Placement(moved, stages=groups, stage=stage), "zb-v")
        assert isinstance(pipeline, Pipeline)
        expected = np.where(np.array(problem.graph.ops.group) == layer, joined, stage)
        assert pipeline.stage.tolist() == expected.tolist()
        assert pipeline.replicas == ((0, 1),) and pipeline.n_stages == 4
    lost = pipeline_of(problem, Placement(np.where(device == 1, 3, device), stages=groups, stage=stage), "zb-v")
    assert (
        isinstance(lost, Violation) and lost.message == "an op is on a device that runs no stage of the plan's pipeline"
    )


def test_stages_that_are_no_chain() -> None:
    """A device that is left and entered again; a layer that reads from a later stage, or is in two."""
    problem = step_problem(5, alike=True, layers=8, devices=4, microbatches=6)
    layer = np.array(problem.graph.ops.group)
    back = judge_placement(problem, Placement(np.where((layer > 2) & (layer < 5), 1, 0)))
    assert [v.message for v in back.violations] == ["the stages are no chain: d0 → d1 → d0"]
    assert back.value == math.inf and not any(use.load for use in back.devices)
    groups = (StageGroup((0,)), StageGroup((1,)))
    torn = np.where(layer > 3, 1, 0)
    torn[np.flatnonzero(layer == 5)[0]] = 0
    for stage in (np.where(layer > 3, 0, 1), torn):
        found = judge_placement(problem, Placement(stage.copy(), stages=groups, stage=stage, schedule="1f1b"))
        assert "the stages are no chain: one reads what a later one makes" in [v.message for v in found.violations]
        assert found.value == math.inf


def test_an_empty_step_takes_no_time() -> None:
    """Without ops nothing is done, and every device is idle for no time."""
    problem = step_problem(5, alike=True, layers=8, devices=2)
    graph = GraphBuilder().build()
    costs = CostTable.given(np.zeros((0, 2)), transfer_seconds_of(graph, problem.cluster))
    judged = judge_placement(problem.with_(graph=graph, costs=costs), Placement(np.zeros(0, np.int32)))
    assert judged.value == 0 and judged.valid and [use.idle for use in judged.devices] == [0.0, 0.0]


def test_open_schedules_take_the_best() -> None:
    """A placement that names no schedule gets the best of those with one stage per device."""
    problem = step_problem(5, alike=True, layers=8, devices=4, microbatches=6)
    device = copies_of(problem, 1).device
    values = {}
    for schedule in FLAT:
        asked = problem.with_(objective=replace(problem.objective, schedule=schedule))
        values[schedule] = judge_placement(asked, Placement(device)).value
    assert judge_placement(problem, Placement(device)).value == min(values.values())


def test_pipelines_survive_as_placements() -> None:
    """A pipeline as a placement is judged as that pipeline."""
    for seed in seeds(80):
        problem = step_problem(seed)
        pipeline = random_step_pipeline(seed, problem)
        if pipeline is None:
            continue
        run: StepRun = price_pipeline(problem, pipeline)[1]
        judged = judge_placement(problem, placement_of_pipeline(pipeline))
        assert judged.value == run.value
        assert judged.pipeline is not None
        assert judged.pipeline.schedule == pipeline.schedule
        busy = sum(use.compute for use in judged.devices)
        assert judged.pipeline.bubble == pytest.approx(1 - busy / len(pipeline.devices) / run.value)


def test_what_no_device_can_run_takes_for_ever() -> None:
    """An op without a time on its device, forward or of the optimizer: no value, and the rule that it breaks."""
    problem = step_problem(5, alike=True, layers=8, devices=2, microbatches=4)
    for op in (0, problem.n_ops - 1):
        seconds = problem.costs.op_seconds.copy()
        seconds[op, 0] = np.inf
        never = problem.with_(costs=replace(problem.costs, op_seconds=seconds))
        judged = judge_placement(never, copies_of(never, 1))
        assert judged.value == math.inf and {violation.kind for violation in judged.violations} == {"support"}
        assert price_pipeline(never, Pipeline("1f1b", ((0, 1),), np.asarray(copies_of(never, 1).stage), 2))[0] == 0


def test_devices_account_for_the_step() -> None:
    """Random pipelines: seconds of the ops on each device, once for updates, and what is left idle; ops and bytes."""
    for seed in seeds(60):
        problem = step_problem(seed)
        pipeline = random_step_pipeline(seed, problem)
        if pipeline is None:
            continue
        judged, run = judge_placement(problem, placement_of_pipeline(pipeline)), price_pipeline(problem, pipeline)[1]
        resident, peak = copy_peaks(run, 0)
        home, roles = pipeline.stage_devices()[pipeline.stage], op_roles(problem)
        times = np.where(roles == UPDATE, 1, problem.constraints.microbatches)
        for d, use in enumerate(judged.devices):
            ops = np.flatnonzero(home == d)
            own = float((problem.costs.op_seconds[ops, d] * times[ops]).sum())
            assert (use.ops, use.compute, use.load) == (len(ops), pytest.approx(own), pytest.approx(own))
            assert use.idle == pytest.approx(judged.value - own) and use.sync == 0 and use.repeats == ""
            if d in pipeline.devices:
                place = pipeline.devices.index(d)
                assert (use.resident, use.peak) == (resident[place], peak[place])
        busiest = max(judged.devices, key=lambda use: use.load)
        assert judged.bottleneck == busiest.device


@pytest.mark.parametrize("transfers", ["direct", "staged"])
def test_devices_say_what_they_send_and_receive(transfers: str) -> None:
    """Three micro-batches of 100 bytes there and 40 back at 10 bytes/s: what one sends the other receives."""
    ends = [
        (a, b)
        for a in ("a", "b", HOST)
        for b in ("a", "b", HOST)
        if a != b and (transfers == "direct" or HOST in (a, b))
    ]
    cluster = Cluster((Device("a"), Device("b")), tuple(Link(*pair, 10.0) for pair in ends), transfers)  # type: ignore[arg-type]
    judged = judge_placement(two_layers(cluster, 3, back=40), Placement(np.array([0, 1, 1, 0], np.int32)))
    assert [use.send for use in judged.devices] == pytest.approx([30.0, 12.0])
    assert [use.receive for use in judged.devices] == pytest.approx([12.0, 30.0])
    assert [use.compute for use in judged.devices] == [6.0, 6.0]


@pytest.mark.parametrize("schedule", ["auto", "gpipe", "zb-h1"])
def test_batches_of_placements_are_judged_one_by_one(schedule: str) -> None:
    """Every cut of a chain on two devices has the judge's value; the schedule found is the one judged."""
    problem = step_problem(5, alike=True, layers=6, devices=2, microbatches=4, schedule=schedule)
    layer = np.array(problem.graph.ops.group)
    rows = np.stack([np.where(layer < cut, 0, 1) for cut in range(1, 6)])
    judged = [judge_placement(problem, Placement(row)) for row in rows]
    assert evaluate(problem, rows).tolist() == [judgement.value for judgement in judged]
    for row, judgement in zip(rows, judged, strict=True):
        assert judgement.pipeline is not None
        assert find_schedule(problem, Placement(row)) == judgement.pipeline.schedule
