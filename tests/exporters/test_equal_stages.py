"""Cuts of a line into equal stages, against every cut."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from locations import EXAMPLES
from parallel_plans import place_units
from soak import seeds

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.exporters.equal_stages import EntryCosts, balance_cut
from placewise.exporters.stack import find_stack
from placewise.exporters.writing import export_placement
from placewise.model.placement import Placement
from placewise.model.ways import StageGroup
from placewise.simulate import judge_placement


def every_cut(count: int, stages: int) -> list[tuple[int, ...]]:
    """All ways to cut so many entries into stages, none empty."""
    return [tuple(b - a for a, b in pairwise((0, *ends, count))) for ends in combinations(range(1, count), stages - 1)]


@pytest.mark.parametrize("seed", seeds(30))
def test_the_slowest_stage_takes_least(seed: int) -> None:
    """Of all cuts that fit, under each rule of micro-batches in flight; None where none fits."""
    rng = np.random.default_rng(seed)
    count, stages, replicas = int(rng.integers(2, 9)), int(rng.integers(1, 4)), int(rng.integers(1, 3))
    costs = EntryCosts(*(rng.integers(0, 9, count).astype(float) for _ in range(3)))
    room, rule = float(rng.integers(5, 120)), str(rng.choice(["one", "1f1b", "gpipe"]))

    def slowest(cut: tuple[int, ...]) -> float:
        ends, worst = np.cumsum((0, *cut)), 0.0
        for s, (a, b) in enumerate(pairwise(ends.tolist())):
            held = {"one": 1, "1f1b": stages - s, "gpipe": math.ceil(4 / replicas)}[rule]
            if held * costs.in_flight[a:b].sum() + costs.fixed[a:b].sum() > room:
                return math.inf
            worst = max(worst, float(costs.seconds[a:b].sum()))
        return worst

    best = min((slowest(cut) for cut in every_cut(count, stages)), default=math.inf)
    found = balance_cut(costs, stages, replicas, room, rule, 4)
    if found is None:
        assert math.isinf(best)
    else:
        assert sum(found) == count and min(found) >= 1 and slowest(found) == best


def test_an_exported_pipeline_has_the_best_cut() -> None:
    """Twelve layers and a head over three stages: no other cut of the same shape is faster under the judge."""
    options = ProblemOptions(
        objective="throughput", graph="training", dims={"batch": 4, "seq": 128}, tensor_parallel=1, microbatches=8
    )
    problem = build(str(EXAMPLES / "bert_base.onnx"), "3xA100-40GB", options)
    ways, stack = problem.require_ways(), find_stack(problem)
    assert stack is not None
    layer = np.zeros(ways.n_units, int)
    layer[ways.unit] = np.clip(stack.of, 0, stack.count - 1)

    def placed(cut: tuple[int, ...]) -> Placement:
        groups = [StageGroup((d,)) for d in range(len(cut))]
        return place_units(problem, groups, np.searchsorted(np.cumsum(cut), layer, side="right"))

    unequal = place_units(problem, [StageGroup((0, 1), 2, 1), StageGroup((2,))], (layer > 5).astype(int))
    made = export_placement(problem, unequal, "vllm")
    values = [judge_placement(problem, placed(cut)).value for cut in every_cut(stack.count, 3)]
    assert made.projected and made.said.value <= min(values) * (1 + 1e-3)
