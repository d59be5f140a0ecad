"""What dp does where ideals are too many: bounds from one path, and pipelines from many lines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hierarchies import cluster_of, optimum, random_pipeline
from hypothesis import given
from plain_rules import placements
from soak import enough, examples, seeds
from strategies import problems

from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.problem import Problem
from placewise.placers.base import Budget, Hints, Stopwatch, run_placer
from placewise.placers.pipeline_dp.path_bound import bound_by_path
from placewise.placers.pipeline_dp.placer import DpOptions, DpPlacer
from placewise.placers.pipeline_dp.random_orders import _draw_order, search_orders
from placewise.placers.shared.stages.stage_costs import price_stages
from placewise.simulate import evaluate, judge_placement, lower_bound, why_infeasible
from placewise.simulate.contiguity import contract, depth_first

CONTIGUOUS = {"kind": "throughput", "contiguous": True, "memory_model": "sum"}


@examples(30)
@given(problems(max_ops=8, max_devices=3, **CONTIGUOUS))
def test_the_bound_from_one_path_holds(problem: Problem) -> None:
    """Inference and training, all modes, any links: no contiguous placement is below the bound, cut off or not."""
    if why_infeasible(problem):
        return
    best = min((value for _, value in placements(problem)), default=math.inf)
    graph = contract(problem)
    priced = price_stages(problem, graph.component, graph.n, problem.capacity)
    for rounds in (1, 3, 6, 1000):
        left = iter(range(rounds))
        bound = bound_by_path(graph, priced.costs, lambda left=left: float(next(left, None) is not None))
        assert 0 <= bound / priced.scale <= best * (1 + 1e-12)


def pipeline_with_host(seed: int, mode: str) -> Problem:
    """Two accelerators, on slow or on quick links, and a host that does some ops quicker than they do."""
    pair = cluster_of((2,), (float(2 ** (seed % 6)),))
    cluster = Cluster((*pair.devices, Device("cpu", kind="cpu")), pair.links, "direct")
    problem = random_pipeline(seed, cluster, 5, mode=mode, training=seed % 3 == 0)
    seconds = problem.costs.op_seconds.copy()
    seconds[:, 2] *= np.random.default_rng(seed).integers(1, 9, len(seconds)) / 2
    return problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds))


@pytest.mark.parametrize("mode", ["blocking", "overlap", "duplex"])
def test_the_bound_counts_transfers_beside_a_host(mode: str) -> None:
    """A host pays for no transfers, accelerators do: the bound holds, often far above the work over all devices."""
    larger = 0
    for seed in seeds(16):
        problem = pipeline_with_host(seed, mode)
        best, graph = min(value for _, value in placements(problem)), contract(problem)
        priced = price_stages(problem, graph.component, graph.n, problem.capacity)
        bound = bound_by_path(graph, priced.costs, lambda: math.inf) / priced.scale
        assert bound <= best * (1 + 1e-12)
        larger += bound > 1.1 * lower_bound(problem, work=0.0).value
    assert larger >= enough(2)


def test_a_stage_sends_receives_and_works_at_once() -> None:
    """In duplex mode a chain of three ops with transfers as long as they are takes as long as one of them."""
    problem = random_pipeline(0, cluster_of((3,), (1.0,)), 3, mode="duplex", chain=True)
    transfers = np.where(problem.costs.transfer_seconds > 0, 1.0, 0.0)
    problem = problem.with_(costs=CostTable.given(np.ones_like(problem.costs.op_seconds), transfers))
    graph = contract(problem)
    priced = price_stages(problem, graph.component, graph.n, problem.capacity)
    assert min(value for _, value in placements(problem)) == 1.0
    assert bound_by_path(graph, priced.costs, lambda: math.inf) / priced.scale <= 1.0


@pytest.mark.parametrize("mode", ["blocking", "overlap", "duplex"])
def test_an_op_that_only_a_host_runs_may_take_far_longer_than_the_rest(mode: str) -> None:
    """Then the host sets the pace, and no more is proved."""
    for slow in range(5):
        problem = pipeline_with_host(slow, mode)
        seconds = problem.costs.op_seconds.copy()
        seconds[slow] = np.inf, np.inf, 1e9
        problem = problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds))
        graph = contract(problem)
        priced = price_stages(problem, graph.component, graph.n, problem.capacity)
        assert 0 < bound_by_path(graph, priced.costs, lambda: math.inf) / priced.scale <= optimum(problem)


@pytest.mark.parametrize("mode", ["blocking", "overlap", "duplex"])
def test_the_bound_ends_where_stages_may_be_shared(mode: str) -> None:
    """Every segment of the best cut is bounded sooner or later, also one that several devices share."""
    most = 20_000
    for seed in seeds(4):
        problem = random_pipeline(seed, cluster_of((4,), (8.0,)), 9, mode=mode)
        problem = problem.with_(constraints=replace(problem.constraints, replicas=0))
        graph, asked = contract(problem), iter(range(most))
        priced = price_stages(problem, graph.component, graph.n, problem.capacity)
        bound_by_path(graph, priced.costs, lambda asked=asked: float(next(asked, None) is not None))
        assert next(asked, None) is not None


def test_the_bound_alone() -> None:
    """Without ideals, dp proposes nothing and proves as much; a hint that it cannot improve ends it."""
    problem = pipeline_with_host(5, "blocking")
    whole = run_placer(DpPlacer(DpOptions(max_ideals=2)), problem, Budget())
    alone = run_placer(DpPlacer(DpOptions(max_ideals=0)), problem, Budget())
    assert alone.placement is None and alone.bound is not None
    assert whole.placement is not None and whole.bound is not None
    assert alone.bound.value == pytest.approx(whole.bound.value, rel=1e-3)
    hinted = run_placer(DpPlacer(DpOptions(max_ideals=0)), problem, Budget(gap=0.5), hints=Hints((whole.placement,)))
    value = judge_placement(problem, whole.placement).value
    assert hinted.bound is not None and value / 2 <= hinted.bound.value <= value


@examples(8)
@given(problems(training=True, max_ops=6, **CONTIGUOUS))
def test_the_bound_holds_where_pipelines_flush_and_for_dp_itself(problem: Problem) -> None:
    """With hardly any ideals allowed, dp still proves nothing false, and what it proposes keeps the rules."""
    for schedule in ("1f1b", "gpipe"):
        asked = problem.with_(objective=replace(problem.objective, schedule=schedule))  # type: ignore[arg-type]
        best = min((value for _, value in placements(asked)), default=math.inf)
        proposal = run_placer(DpPlacer(DpOptions(max_ideals=2)), asked, Budget())
        assert proposal.bound is None or proposal.bound.value <= best * (1 + 1e-12)
        if proposal.placement is not None:
            judged = judge_placement(asked, proposal.placement)
            assert judged.valid and judged.value >= best * (1 - 1e-12)


@examples(25)
@given(problems(transfers="staged", wires=False, max_ops=8, max_devices=3, **CONTIGUOUS))
def test_the_bound_is_no_worse_than_an_even_share(problem: Problem) -> None:
    """It is never below an even share of the work."""
    if why_infeasible(problem):
        return
    graph = contract(problem)
    priced = price_stages(problem, graph.component, graph.n, problem.capacity)
    work = np.where(priced.costs.seconds < 1 << 61, priced.costs.seconds, 1 << 61).min(axis=1).sum()
    bound = bound_by_path(graph, priced.costs, lambda: math.inf)
    assert bound == 0.0 or bound >= float(work) / int(priced.costs.n_devices.sum()) * (1 - 1e-8)


@examples(8)
@given(problems(memory=None, rules=False, max_ops=8, **CONTIGUOUS))
def test_many_lines_never_lose(problem: Problem) -> None:
    """The search keeps the rules, is no worse than where it began, and is the same for the same seed."""
    graph = contract(problem)
    start = np.zeros(problem.n_ops, np.int32)
    runs = [search_orders(problem, graph, [start], Stopwatch(Budget(seed=3)), lambda *_: True)[0] for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    values = evaluate(problem, np.stack([start, runs[0][0].device]))
    assert values[1] <= values[0]
    assert not [v for v in judge_placement(problem, runs[0][0]).violations if v.kind != "memory"]


def test_with_replicas_many_lines_are_no_worse() -> None:
    """Where stages may be shared, dp without ideals is at least as good as where they may not, and keeps the rules."""
    for seed in range(4):
        alone = random_pipeline(seed, cluster_of((4,), (50.0,)), 9, mode="blocking", training=seed % 2 == 1)
        shared = alone.with_(constraints=replace(alone.constraints, replicas=0))
        values = []
        for problem in (alone, shared):
            placement = run_placer(DpPlacer(DpOptions(max_ideals=2)), problem, Budget()).placement
            assert placement is not None and judge_placement(problem, placement).valid
            values.append(judge_placement(problem, placement).value)
        assert values[1] <= values[0] * (1 + 1e-12)


@pytest.mark.parametrize("mode", ["blocking", "overlap", "duplex"])
def test_dear_transfers_are_seen(mode: str) -> None:
    """A row of ops whose tensors cost more than all the work: one device has them all, and that is proved."""
    problem = random_pipeline(0, cluster_of((4,), (0.01,)), 9, mode=mode, chain=True)
    proposal = run_placer(DpPlacer(DpOptions(max_ideals=2)), problem, Budget())
    assert proposal.placement is not None and proposal.bound is not None
    assert len(set(proposal.placement.device.tolist())) == 1
    assert proposal.bound.value >= judge_placement(problem, proposal.placement).value * (1 - 1e-6)
    assert "path of minimum cuts" in proposal.bound.method


def test_a_line_follows_the_guide() -> None:
    """A random line along a pipeline is a topological order in which the stages stand one after the other."""
    problem = random_pipeline(3, cluster_of((2, 2), (1.0, 5.0)), 20, mode="blocking")
    graph = contract(problem)
    stage = np.minimum(depth_first(graph) // 6, 3)
    line = _draw_order(graph, stage, np.random.default_rng(0))
    tail, head = graph.edges()
    assert sorted(line.tolist()) == list(range(graph.n)) and (line[tail] < line[head]).all()
    assert (np.diff(stage[np.argsort(line)]) >= 0).all()


@pytest.mark.parametrize("mode", ["blocking", "overlap", "duplex"])
def test_no_work_at_all_is_no_endless_search(mode: str) -> None:
    """Ops that take no time, joined by tensors that do: the bound ends, and is no more than one device's load."""
    problem = random_pipeline(1, cluster_of((3,), (2.0,)), 6, mode=mode)
    problem = problem.with_(costs=CostTable.given(0 * problem.costs.op_seconds, problem.costs.transfer_seconds))
    graph = contract(problem)
    priced = price_stages(problem, graph.component, graph.n, problem.capacity)
    best = min(value for _, value in placements(problem))
    assert bound_by_path(graph, priced.costs, lambda: math.inf) / priced.scale <= best * (1 + 1e-12)
