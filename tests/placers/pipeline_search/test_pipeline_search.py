"""pipeline_search: small problems against every pipeline, bounds below every value, memory, and the whole way."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
from soak import seeds
from step_problems import random_step_pipeline, step_problem

import placewise as pw
from placewise.core.place import place
from placewise.errors import ExportError, InputError
from placewise.exporters.writing import export_placement
from placewise.files.plan_file import load_plan
from placewise.model.problem import Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.pipeline_search import placer as module
from placewise.placers.pipeline_search.placer import PipelineSearchPlacer
from placewise.simulate import judge_placement, lower_bound
from placewise.simulate.contiguity import contract
from placewise.simulate.step.judge import price_pipeline
from placewise.simulate.step.orders import SCHEDULES, count_stages, refuse_microbatches
from placewise.simulate.step.stage_costs import Pipeline


def best_of_all(problem: Problem, schedules: tuple[str, ...]) -> float:
    """The least step over all cuts of the chain, lines of devices and schedules, by brute force; inf if none fits."""
    graph, best = contract(problem), math.inf
    for schedule in schedules:
        for count in range(1, problem.n_devices + 1):
            stages = count_stages(schedule, count)
            if refuse_microbatches(schedule, count, problem.constraints.microbatches) or stages > graph.n:
                continue
            for devices in permutations(range(problem.n_devices), count):
                for cuts in combinations(range(1, graph.n), stages - 1):
                    stage = np.searchsorted(np.array(cuts), np.arange(graph.n), side="right")
                    line = Pipeline(schedule, (devices,), stage[graph.component].astype(np.int32), stages)
                    short, run = price_pipeline(problem, line)
                    best = min(best, run.value) if not short else best
    return best


@pytest.mark.parametrize("schedule", ["auto", *SCHEDULES])
def test_small_problems_are_solved_and_proved(schedule: str) -> None:
    """A chain of a few layers: the answer is the best of every cut, line of devices and schedule."""
    for seed in seeds(6):
        problem = step_problem(seed, layers=5, devices=3, microbatches=3, schedule=schedule, hosts=False)
        result = place(problem)
        assert result.value == pytest.approx(best_of_all(problem, SCHEDULES if schedule == "auto" else (schedule,)))
        assert result.status.outcome == "optimal"


def test_answers_on_shared_wires_are_proved() -> None:
    """The bound is below every pipeline of devices that differ in the wires of their links alone, and as high as the
    best where all links share one wire.
    """
    for seed in (5, 10, 11, *seeds(12)):  # of the first three, another order of the devices is the best
        problem = step_problem(
            seed, layers=4, devices=3, microbatches=2, schedule="1f1b", hosts=False, alike=True, wires=True
        )
        best, result = best_of_all(problem, ("1f1b",)), place(problem)
        assert result.lower_bound <= best * (1 + 1e-9) and result.value >= best * (1 - 1e-9)
        shared = replace(problem.cluster, links=tuple(replace(link, shared="bus") for link in problem.cluster.links))
        result = place(problem.with_(cluster=shared))
        assert result.status.outcome == "optimal"
        assert result.value == pytest.approx(best_of_all(problem.with_(cluster=shared), ("1f1b",)))


def test_the_search_comes_near_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without enumeration, the search is within a few percent of the best pipeline, and mostly there."""
    monkeypatch.setattr(module, "MOST_CHAINS", 0)
    ratios = []
    for seed in seeds(8):
        problem = step_problem(seed, layers=6, devices=3, microbatches=3, hosts=False)
        placement = run_placer(PipelineSearchPlacer(), problem).placement
        assert placement is not None
        ratios.append(judge_placement(problem, placement).value / best_of_all(problem, SCHEDULES))
    assert max(ratios) <= 1.1
    assert np.mean(np.array(ratios) < 1 + 1e-9) >= 0.5


@pytest.mark.parametrize("wires", [False, True])
def test_bounds_are_below_every_pipeline(wires: bool) -> None:
    """No random pipeline, of any schedule, is faster than the bound of its schedule or of auto."""
    positive = 0
    for seed in seeds(60):
        problem = step_problem(seed, wires=wires)
        pipeline = random_step_pipeline(seed, problem)
        if pipeline is None:
            continue
        value = price_pipeline(problem, pipeline)[1].value
        own = problem.with_(objective=replace(problem.objective, schedule=pipeline.schedule))
        bounds = lower_bound(problem).value, lower_bound(own).value
        assert 0 < bounds[0] <= bounds[1] * (1 + 1e-9)
        assert bounds[1] <= value * (1 + 1e-9)
        positive += bounds[1] > bounds[0] * 1.01
    assert positive > 1


def test_gpipe_bound_is_reached_by_equal_stages() -> None:
    """Equal layers on equal devices with free transfers: GPipe takes as long as its bound says."""
    problem = step_problem(1, alike=True, layers=4, devices=4, microbatches=6, schedule="gpipe", hosts=False)
    graph, links = problem.graph, problem.cluster.links
    weight = np.array([float(name.startswith(("f", "d"))) for name in graph.ops.name])
    fast = replace(problem.cluster, links=tuple(replace(link, bandwidth=1e12) for link in links))
    costs = replace(
        problem.costs,
        op_seconds=np.repeat(weight[:, None], 4, axis=1),
        transfer_seconds=np.zeros_like(problem.costs.transfer_seconds),
    )
    result = place(problem.with_(cluster=fast, costs=costs))
    assert result.value == pytest.approx((6 + 3) * 2.0)
    assert result.status.outcome == "optimal"


def test_memory_rules_out_gpipe() -> None:
    """Where all micro-batches do not fit at once, GPipe is refused or slower, and auto takes a schedule that fits."""
    roomy = step_problem(7, alike=True, layers=8, devices=2, microbatches=12)
    best = {}
    for schedule in ("gpipe", "1f1b"):
        asked = roomy.with_(objective=replace(roomy.objective, schedule=schedule))
        judged = place(asked).judgement
        assert judged is not None
        best[schedule] = judged
    limit = max(use.peak for use in best["1f1b"].devices)
    assert max(use.peak for use in best["gpipe"].devices) > limit
    units = tuple(replace(device, memory=limit) for device in roomy.cluster)
    tight = roomy.with_(cluster=replace(roomy.cluster, devices=units))
    gpipe = place(tight.with_(objective=replace(roomy.objective, schedule="gpipe")))
    assert gpipe.placement is None or gpipe.value > best["gpipe"].value
    auto = place(tight)
    assert auto.judgement is not None
    assert auto.judgement.valid
    assert auto.value <= best["1f1b"].value


def test_equal_budgets_give_equal_answers() -> None:
    """The same work gives the same placement."""
    problem = step_problem(3, layers=8, devices=4, microbatches=8)
    budget = Budget(evaluations=60)
    first, second = (run_placer(PipelineSearchPlacer(), problem, budget).placement for _ in range(2))
    assert first is not None
    assert first == second


def test_a_plan_keeps_schedule_and_micro_batches(tmp_path: Path) -> None:
    """From a model to a plan file and back: judged at the same seconds, with the same stages and schedule."""
    plan = pw.place(
        "zoo:bert-base", "4xV100-16GB", graph="training", objective="step", schedule="auto", microbatches=8,
        budget=Budget(evaluations=40),
    )  # fmt: skip
    path = tmp_path / "plan.json"
    plan.save(path)
    record = load_plan(path)
    assert record.pipeline is not None
    assert record.objective is not None
    assert (record.objective.kind, record.objective.schedule) == ("step", "auto")
    assert record.pipeline.microbatches == 8
    problem, placement = pw.core.build.build_for_plan("zoo:bert-base", path)
    judged = judge_placement(problem, placement)
    assert judged.valid
    assert judged.value == pytest.approx(plan.value, rel=1e-12)
    assert placement.schedule == record.pipeline.schedule
    assert "schedule" in plan.summary()
    assert "bubble" in plan.summary()


def test_exports_take_one_stage_per_device() -> None:
    """A pipeline with a stage per device is exported as its devices; one with two is refused with a remedy."""
    problem = step_problem(5, alike=True, layers=8, devices=2, microbatches=4)
    for schedule, fits in (("1f1b", True), ("zb-v", False)):
        placement = place(problem.with_(objective=replace(problem.objective, schedule=schedule))).placement
        assert placement is not None
        if fits:
            assert not export_placement(problem, placement, "dot").projected
        else:
            with pytest.raises(ExportError, match="one stage per device"):
                export_placement(problem, placement, "dot")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"graph": "inference", "objective": "step"}, "the objective step is one of training"),
        ({"objective": "latency", "schedule": "zb-v"}, "a schedule applies to throughput only, and to a training step"),
        ({"objective": "throughput", "schedule": "zb-v"}, "applies to the objective step only"),
        ({"objective": "step", "microbatches": 0}, "microbatches is 0"),
        ({"objective": "step", "microbatches": -4}, "microbatches is -4"),
        ({"objective": "step", "schedule": "interleaved", "microbatches": 7}, "in multiples of the 4 devices"),
        ({"objective": "step", "schedule": "zigzag"}, "objective schedule 'zigzag' is not known"),
        ({"objective": "step", "contiguous": False}, "form a chain"),
        ({"objective": "step", "tensor_parallel": 2}, "is not simulated"),
        ({"objective": "step", "communication": "overlap"}, "a communication mode applies to throughput only"),
        ({"objective": "step", "target": "megatron"}, "is no target of the objective step"),
    ],
)
def test_bad_input_is_one_sentence(options: dict[str, object], words: str) -> None:
    """What contradicts a training step is refused, with a remedy."""
    with pytest.raises(InputError, match=words) as caught:
        pw.place("zoo:random-layered", "4xV100-16GB", **{"graph": "training", **options})  # type: ignore[arg-type]
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
