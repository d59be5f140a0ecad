"""Stages that are split, repeated and recomputed: the judge and the checker against definition and twin."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from piper_files import layers, problem_of, random_instance, random_plan
from soak import enough, seeds
from split_problems import random_pipeline, split_problem
from tiny_problems import Draw
from twins import piper
from twins.stages import PlainStages

from placewise.files.stage_records import StageRecord, parse_stages
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.model.ways import StageGroup
from placewise.simulate import judge_placement

RULES = {"contiguity": "order", "devices": "devices", "replicas": "replicas", "memory": "memory"}
"""What the checker calls the rules of the definition."""


def judged(instance: dict[str, object], plan: list[dict[str, object]], folder: Path) -> Judgement:
    """The judge's word on a plan as a file has it."""
    problem = problem_of(instance, folder)
    records = [StageRecord.model_validate(stage) for stage in plan]
    return judge_placement(problem, parse_stages(records, problem.graph, problem.cluster, problem.require_ways()))


@pytest.mark.parametrize("exact", [True, False])
def test_random_plans_cost_what_the_definition_says(tmp_path: Path, exact: bool) -> None:
    """Seconds and bytes of every stage, the value and the broken rules, on many plans, sound and not."""
    sound = 0
    for seed in seeds(300):
        draw = Draw(seed)
        instance = random_instance(draw, exact=exact)
        plan = random_plan(draw, instance)
        found, broken = judged(instance, plan, tmp_path), piper.broken_rules(instance, plan)
        assert {RULES[violation.kind] for violation in found.violations} == broken
        assert found.value == pytest.approx(piper.value_of(instance, plan), rel=1e-9)
        for number, (use, stage) in enumerate(zip(found.stages, plan, strict=True)):
            assert use.seconds == pytest.approx(piper.stage_seconds(instance, stage), rel=1e-9)
            assert use.peak == pytest.approx(piper.stage_bytes(instance, plan, number), rel=1e-9)
        sound += not broken
    assert sound > enough(32)


@pytest.mark.parametrize("kind", ["throughput", "latency"])
@pytest.mark.parametrize("transfers", ["staged", "direct"])
def test_any_links_and_devices(kind: str, transfers: str) -> None:
    """Unequal links with latency, hosts, two classes, shared tensors: seconds and bytes are the twin's."""
    compared = 0
    for seed in seeds(200):
        problem = split_problem(seed, classes=2, transfers=transfers, kind=kind, even=False, hosts=True)
        placement, plain = random_pipeline(Draw(seed + 1), problem), PlainStages(problem)
        found = judge_placement(problem, placement)
        if any(violation.kind in ("coverage", "degree", "devices") for violation in found.violations):
            continue
        compared += 1
        assert placement.way is not None
        way = dict(enumerate(placement.way.tolist()))
        stages = plain.stages_of(placement)
        seconds = [plain.seconds_of(stage, way) for stage in stages]
        assert [use.seconds for use in found.stages] == pytest.approx(seconds, rel=1e-12)
        assert [use.peak for use in found.stages] == pytest.approx([plain.bytes_of(s, way) for s in stages], rel=1e-12)
        assert found.value == pytest.approx(sum(seconds) if kind == "latency" else max(seconds), rel=1e-12)
        short = {violation.kind for violation in found.violations} & {"memory"}
        assert bool(short) == (not all(plain.fits(stage, way) for stage in stages))
    assert compared > 10


def line_of(problem: Problem, *groups: StageGroup, way: int = 0) -> Placement:
    """The units in as many even stages as there are groups, each in one of its ways for the degree."""
    ways = problem.require_ways()
    stage = np.arange(ways.n_units) * len(groups) // ways.n_units
    chosen = [int(ways.ways_of(unit, groups[s].tensor_parallel)[way]) for unit, s in enumerate(stage.tolist())]
    return Placement.of_stages(ways, groups, stage, np.array(chosen))


def test_a_worked_example(tmp_path: Path) -> None:
    """Two layers on four devices, by hand: one repeated by two of them, one split over two."""
    problem = problem_of(layers(2, 4), tmp_path)
    found = judge_placement(problem, line_of(problem, StageGroup((0, 1), 2, 1), StageGroup((2, 3), 1, 2)))
    first, second = found.stages
    assert (first.compute, first.send, first.receive) == (2.0 / 2, 2 * 16 / 64 / 2, 0.0)
    assert first.gradients == 4 * (1 / 2) * 8 / 64 / 8
    assert (second.compute, second.send, second.receive, second.gradients) == (1.25, 0.0, 2 * 16 / 64, 0.0)
    assert found.value == 1.75 and found.bottleneck == "acc2" and found.valid
    assert (first.in_flight, second.in_flight) == (2, 1)
    assert first.memory == {"fixed": 4.0, "activations in flight": 6.0}
    assert [use.load for use in found.devices] == [first.seconds] * 2 + [1.75] * 2
    assert [use.repeats for use in found.devices] == ["", "acc0", "", "acc2"]


BREAKS = {
    "coverage": lambda p: with_stage(p, 0, 7),
    "degree": lambda p: with_groups(p, StageGroup((0, 1), 2, 1), StageGroup((2, 3), 2, 1)),
    "size": lambda p: with_groups(p, StageGroup((0,), 2, 1), StageGroup((2, 3), 1, 2)),
    "devices": lambda p: with_groups(p, StageGroup((0, 1), 2, 1), StageGroup((1, 3), 1, 2)),
    "replicas": lambda p: with_groups(p, StageGroup((0, 1, 4), 3, 1), StageGroup((2, 3), 1, 2)),
    "no stages": lambda p: Placement(p.device),
    "other ops": lambda p: replace(p, stage=p.stage[:1]),
    "empty": lambda p: with_groups(p, *p.stages, StageGroup((4,))),
    "no way": lambda p: replace(p, way=np.array([p.way[1], p.way[1]])),
    "backwards": lambda p: replace(p, stages=p.stages[::-1], stage=1 - p.stage),
}


def with_groups(placement: Placement, *groups: StageGroup) -> Placement:
    """The same ops and ways on other devices."""
    return replace(placement, stages=groups)


def with_stage(placement: Placement, op: int, stage: int) -> Placement:
    """One op in another stage."""
    column = np.array(placement.stage)
    column[op] = stage
    return replace(placement, stage=column)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("coverage", "op '0' has no stage"),
        ("degree", "unit 1 runs on 2 devices, and stage 1 splits over 1"),
        ("size", "stage 0 has 1 devices, not 2 × 1"),
        ("devices", "acc1 is in 2 stages or replicas"),
        ("replicas", "3 replicas of stage 0 cannot share 8 micro-batches evenly"),
        ("no stages", "the placement has no stages: ops of this problem may be split"),
        ("other ops", "the stages are those of 1 ops, not of 2"),
        ("empty", "stage 2 has no ops"),
        ("no way", "unit 0 has no way {way}"),
        ("backwards", "unit 1 reads from unit 0, which is in a later stage"),
    ],
)
def test_broken_rules_are_said(tmp_path: Path, name: str, sentence: str) -> None:
    """Each rule has its sentence; nothing that cannot be priced gets a value."""
    problem = problem_of(layers(2, 5), tmp_path)
    sound = line_of(problem, StageGroup((0, 1), 2, 1), StageGroup((2, 3), 1, 2))
    assert judge_placement(problem, sound).valid
    found = judge_placement(problem, BREAKS[name](sound))
    assert sentence.format(way=np.asarray(sound.way)[1]) in [violation.message for violation in found.violations]
    assert math.isfinite(found.value) == (name in ("devices", "replicas", "backwards"))


def test_units_and_the_order_of_devices_stay_whole(tmp_path: Path) -> None:
    """Two ops of one unit in two stages are named; so is a stage whose devices come before those of the one ahead."""
    problem = problem_of(layers(2, 4), tmp_path)
    sound = line_of(problem, StageGroup((0,)), StageGroup((1,)))
    joined = problem.with_(ways=replace(problem.require_ways(), unit=np.array([0, 0]), **only_unit(problem)))
    torn = replace(sound, way=np.asarray(sound.way)[:1])
    assert [v.message for v in judge_placement(joined, torn).violations] == ["the unit of op '1' is in two stages"]
    ordered = problem.with_(constraints=replace(problem.constraints, ordered=True, replicas=1))
    assert judge_placement(ordered, sound).valid
    for first, second, last in (((1,), (0,), "acc1"), ((1, 3), (2, 0), "acc3"), ((0, 2), (1, 3), "acc2")):
        swapped = line_of(problem, StageGroup(first, 1, len(first)), StageGroup(second, 1, len(second)))
        assert judge_placement(problem, swapped).valid
        messages = [violation.message for violation in judge_placement(ordered, swapped).violations]
        assert messages == [f"stage 1 stands behind {last}, and its devices before it"]


def only_unit(problem: Problem) -> dict[str, object]:
    """The columns of the ways of the first unit alone, without boundaries."""
    ways = problem.require_ways()
    mine = ways.way_unit == 0
    rows = ("way_unit", "degree", "recompute", "seconds", "gradient_bytes", "bytes_in_flight", "held_bytes",
            "collective_seconds")  # fmt: skip
    kept = {name: getattr(ways, name)[mine] for name in rows}
    return kept | {
        "name": tuple(name for name, own in zip(ways.name, mine.tolist(), strict=True) if own),
        "tensor_unit": np.zeros(0), "tensor_bytes": np.zeros(0), "reader_offsets": np.zeros(1), "reader": np.zeros(0),
        "sync_bytes": np.zeros((int(mine.sum()), 0)), "unit_names": (),
    }  # fmt: skip


def test_rules_about_replicas_groups_and_ways(tmp_path: Path) -> None:
    """The most replicas, one for latency; sets of ops that stay together; a way that its devices cannot run."""
    problem = problem_of(layers(2, 4), tmp_path)
    sound = line_of(problem, StageGroup((0, 1), 2, 1), StageGroup((2, 3), 1, 2))
    few = problem.with_(constraints=replace(problem.constraints, replicas=1))
    assert [v.message for v in judge_placement(few, sound).violations] == ["stage 0 has 2 replicas, of 1 at most"]
    late = problem.with_(objective=replace(problem.objective, kind="latency"))
    assert [v.kind for v in judge_placement(late, sound).violations] == ["replicas"]
    joined = problem.with_(constraints=replace(problem.constraints, together=(("0", "1"),)))
    assert [v.kind for v in judge_placement(joined, sound).violations] == ["colocation"]
    ways = problem.require_ways()
    never = problem.with_(ways=replace(ways, seconds=np.where(ways.degree[:, None] == 2, np.inf, ways.seconds)))
    found = judge_placement(never, sound)
    assert [v.message for v in found.violations] == ["unit 1 cannot run on acc2 in its way"]


def test_memory_counts_what_is_in_flight(tmp_path: Path) -> None:
    """The first of three stages holds three micro-batches: 3 · 3 + 4 bytes, and lacks what it lacks."""
    problem = problem_of(layers(3, 3, maxMemoryPerDevice=12.0), tmp_path)
    found = judge_placement(problem, line_of(problem, *(StageGroup((d,)) for d in range(3))))
    (violation,) = found.violations
    assert (violation.kind, violation.device, violation.bytes_short) == ("memory", "acc0", 1.0)
    assert [use.in_flight for use in found.stages] == [3, 2, 1]


def test_splits_stay_inside_a_node() -> None:
    """Devices of one split are in one node; replicas need not be. Unlike devices share no stage."""
    problem = split_problem(3, units=2, devices=4, exact=True)
    ways = replace(problem.require_ways(), node=np.array([0, 0, 1, 1]))
    if not len(ways.ways_of(0, 2)) or not len(ways.ways_of(1, 2)):
        pytest.fail("the problem has no splits over two devices")
    apart = problem.with_(ways=ways)
    kinds = {d: [v.kind for v in judge_placement(apart, line_of(apart, StageGroup(d, 2, 2))).violations]
             for d in ((0, 1, 2, 3), (0, 2, 1, 3))}  # fmt: skip
    assert "devices" not in kinds[0, 1, 2, 3] and kinds[0, 2, 1, 3].count("devices") == 1
    unlike = problem.with_(ways=replace(ways, device_class=np.array([0, 0, 0, -1])))
    found = judge_placement(unlike, line_of(unlike, StageGroup((0, 3), 1, 2)))
    assert "the devices of stage 0 are not alike" in [v.message for v in found.violations]


def test_devices_without_a_stage_are_idle(tmp_path: Path) -> None:
    """The fifth device holds nothing and waits for as long as the slowest stage takes; in latency nothing is idle."""
    problem = problem_of(layers(2, 5), tmp_path)
    placement = line_of(problem, StageGroup((0, 1), 2, 1), StageGroup((2, 3), 1, 2))
    found = judge_placement(problem, placement)
    assert [use.device for use in found.devices] == list(problem.cluster.names)
    last = found.devices[4]
    assert (last.ops, last.load, last.idle, last.resident, last.peak) == (0, 0.0, 1.75, 0.0, 0.0)
    assert (last.compute, last.send, last.receive, last.sync) == (0.0, 0.0, 0.0, 0.0)
    assert [use.idle for use in found.devices[:4]] == [1.75 - found.stages[0].seconds] * 2 + [0.0] * 2
    late = judge_placement(problem.with_(objective=replace(problem.objective, kind="latency")), placement)
    assert [use.idle for use in late.devices] == [0.0] * 5
