"""Orders through the minimum cuts along a path: the cuts are cheapest, and one order finds what random ones miss."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from locations import ROOT
from published import PROFILES, needs_profiles
from soak import examples
from strategies import problems

from placewise.model.columns import Bools
from placewise.model.problem import Problem
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.pipeline_dp import random_orders
from placewise.placers.pipeline_dp.cut_orders import CutOrders
from placewise.placers.pipeline_dp.path_bound import LeastCosts, find_heaviest_path, price_transfers, weigh_components
from placewise.placers.pipeline_dp.random_orders import search_orders
from placewise.placers.shared.stages.stage_costs import ComponentCosts, price_stages
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract

sys.path.append(str(ROOT / "benchmarks"))
from pipedream import problem_of  # a folder of programs is no package


def price_cut(costs: ComponentCosts, before: Bools) -> float:
    """What the tensors cost that leave the components `before` [n]."""
    offsets = costs.consumer_offsets
    return sum(
        price
        for tensor, price in enumerate(np.add(*price_transfers(costs)).tolist())
        if costs.producer[tensor] >= 0
        and before[costs.producer[tensor]]
        and not before[costs.consumers[offsets[tensor] : offsets[tensor + 1]]].all()
    )


@examples(40)
@given(problems(max_ops=8, max_devices=3, kind="throughput", contiguous=True))
def test_every_cut_of_the_path_is_a_cheapest_one(problem: Problem) -> None:
    """Inference and training: between neighbours of the path, no set that is closed under predecessors costs less."""
    graph = contract(problem)
    costs = price_stages(problem, graph.component, graph.n, problem.capacity).costs
    path = find_heaviest_path(graph, weigh_components(costs, LeastCosts(costs)))
    tail, head = graph.edges()
    closed = [
        before
        for bits in product((False, True), repeat=graph.n)
        if not (before := np.array(bits))[head][~before[tail]].any()
    ]
    cuts = CutOrders(graph, costs)
    for largest in (False, True):
        rank = cuts.rank(None, lambda: True, largest=largest)
        assert (rank[tail] <= rank[head]).all()
        for place in range(1, len(path)):
            able = [before for before in closed if before[path[:place]].all() and not before[path[place:]].any()]
            cheapest = min(price_cut(costs, before) for before in able)
            assert price_cut(costs, rank < place) <= cheapest * (1 + 1e-9) + 1e-6


@needs_profiles
def test_orders_end_with_the_time() -> None:
    """Without time for a cut, all components have one place, and any order of them is possible."""
    problem = problem_of(PROFILES / "resnet50.txt", 2, 10, "blocking")
    graph = contract(problem)
    costs = price_stages(problem, graph.component, graph.n, problem.capacity).costs
    assert len(set(CutOrders(graph, costs).rank(None, lambda: False).tolist())) == 1


@needs_profiles
@pytest.mark.parametrize(("devices", "gigabits", "optimum"), [(2, 10, 0.3787586848), (8, 10, 0.2308403696)])
def test_the_first_order_of_nasnet_is_enough(
    devices: int, gigabits: int, optimum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PipeDream's profile of NASNet has over a million ideals; the split of one order is the proved optimum."""
    monkeypatch.setattr(random_orders, "ROUNDS", 1)
    problem = problem_of(PROFILES / "nasnetamobile.txt", devices, gigabits, "blocking")
    found, _ = search_orders(problem, contract(problem), [], Stopwatch(Budget()), lambda *_: True)
    assert judge_placement(problem, found[0]).value == pytest.approx(optimum, rel=1e-9)
