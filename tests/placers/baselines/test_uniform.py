"""uniform: the best of all uniform plans, Megatron's rule of thumb, and never better than the optimum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from soak import enough, seeds
from split_problems import split_problem

from placewise.core.place import place
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Outcome
from placewise.model.verdict import BEST_UNIFORM, MEGATRON
from placewise.model.ways import list_replicas
from placewise.placers.base import run_placer
from placewise.placers.baselines.uniform import Shape, UniformOptions, UniformPlacer, build_uniform
from placewise.simulate import judge_placement


def all_shapes(problem: Problem) -> Iterator[Shape]:
    """Every uniform shape that could have devices."""
    ways, devices = problem.require_ways(), problem.n_devices
    for t, p in itertools.product(ways.degrees.tolist(), range(1, min(devices, ways.n_units) + 1)):
        replicas = list_replicas(ways, devices) if problem.objective.kind == "throughput" else [1]
        for d, late, evenly in itertools.product(replicas, (False, True), (False, True)):
            if t * p * d <= devices and d <= (problem.constraints.replicas or devices):
                yield Shape(t, p, d, late, evenly)


def judged(problem: Problem, placement: Placement | None) -> float:
    """Seconds of a placement that keeps the rules, else inf."""
    if placement is None:
        return math.inf
    judgement = judge_placement(problem, placement)
    return judgement.value if judgement.valid else math.inf


@pytest.mark.parametrize("kind", ["throughput", "latency"])
@pytest.mark.parametrize("even", [True, False])
def test_the_best_uniform_plan_is_found(kind: str, even: bool) -> None:
    """Nothing is missed by trying the most promising shapes first: one and two classes, nodes, any links, rules."""
    fits = 0
    for seed in seeds(50):
        transfers = "staged" if even or seed % 2 else "direct"
        problem = split_problem(seed, devices=6, kind=kind, even=even, classes=1 + seed % 2, transfers=transfers,
                                rules=not even)  # fmt: skip
        best = min((judged(problem, build_uniform(problem, shape)) for shape in all_shapes(problem)), default=math.inf)
        found = judged(problem, run_placer(UniformPlacer(), problem).placement)
        assert found == pytest.approx(best, rel=1e-12), seed
        fits += math.isfinite(best)
    assert fits > enough(16)


def test_shapes_are_what_they_say() -> None:
    """Equal groups of devices, one degree, even parts, and one way per unit, with recomputation where it is asked."""
    built = 0
    for seed in seeds(40):
        problem = split_problem(seed, units=5, devices=8)
        ways = problem.require_ways()
        for t in ways.degrees.tolist():
            shape = Shape(t, 2, 8 // t // 2, recompute=seed % 2 == 0, by_seconds=False)
            placement = build_uniform(problem, shape)
            listed = [ways.ways_of(unit, t) for unit in range(5)]
            assert (placement is None) == (not all(map(len, listed)))
            if placement is None or placement.stage is None or placement.way is None:
                continue
            built += 1
            groups = [(g.tensor_parallel, g.data_parallel, len(g.devices)) for g in placement.stages]
            assert groups == [(t, 8 // t // 2, 4)] * 2
            sizes = np.bincount([placement.stage[ways.unit == unit][0] for unit in range(5)])
            assert sorted(sizes.tolist()) == [2, 3]
            for way, known in zip(placement.way.tolist(), listed, strict=True):
                assert ways.recompute[way] == shape.recompute or not (ways.recompute[known] == shape.recompute).any()
    assert built > 10


def test_megatron_takes_the_fewest_devices_per_replica() -> None:
    """Its plan has no more devices per replica than the best uniform one needs, and keeps the rules."""
    compared = 0
    for seed in seeds(60):
        problem = split_problem(seed, devices=8)
        rule = run_placer(UniformPlacer(UniformOptions("megatron")), problem).placement
        best = run_placer(UniformPlacer(), problem).placement
        if rule is None:
            continue
        compared += 1
        assert judge_placement(problem, rule).valid and best is not None
        own, other = (sum(g.tensor_parallel for g in placement.stages) for placement in (rule, best))
        assert own <= other
        assert judged(problem, best) <= judged(problem, rule)
    assert compared > 5


def test_place_compares_with_both() -> None:
    """A result names the best uniform plan and Megatron's, is never worse, and says where none fits."""
    for seed in seeds(40):
        problem = split_problem(seed, devices=6)
        result = place(problem)
        values = {name: baseline.value for name, baseline in result.compared.items()}
        assert set(values) == {BEST_UNIFORM, MEGATRON} and values[BEST_UNIFORM] <= values[MEGATRON]
        if result.placement is None:
            assert result.status.outcome is Outcome.INFEASIBLE and set(values.values()) == {math.inf}
        else:
            assert result.value <= values[BEST_UNIFORM]
