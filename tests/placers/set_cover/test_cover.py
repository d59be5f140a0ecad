"""cover: annealing and set-cover bounds against brute force over all placements."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plain_rules import optimum, placements, with_replicas
from soak import examples
from strategies import problems

from placewise import _native
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.base import Budget, Progress, run_placer
from placewise.placers.set_cover.column_generation import DeviceSets, LoadStatus, refute
from placewise.placers.set_cover.decision_diagram import SetSearch, diagram, order_blocks
from placewise.placers.set_cover.machine_costs import machines
from placewise.placers.set_cover.placer import CoverOptions, CoverPlacer
from placewise.placers.shared.stages.stage_costs import NEVER, price_stages
from placewise.placers.shared.throughput_search.pipeline_costs import native_costs
from placewise.simulate import evaluate, judge_placement

STAGED = {"kind": "throughput", "contiguous": False, "transfers": "staged", "wires": False}


@st.composite
def replicated(draw: st.DrawFn) -> Problem:
    """A free pipeline on up to four devices, several of which may share a stage."""
    problem = draw(problems(kind="throughput", contiguous=False, convex=False, max_ops=4, max_devices=4))
    objective = replace(
        problem.objective,
        step_samples=draw(st.sampled_from([0, 0, 3, 8])),
        schedule=draw(st.sampled_from(["1f1b", "1f1b", "gpipe"])),
    )
    constraints = replace(problem.constraints, replicas=draw(st.sampled_from([0, 0, 0, 2])))
    return problem.with_(objective=objective, constraints=constraints)


@examples(10)
@given(problems(memory_model="sum", max_ops=5, **STAGED))
def test_free_placements_are_optimal(problem: Problem) -> None:
    """On small problems the annealer finds the brute-force optimum, keeps memory, and the bound is below it."""
    best, proposal = optimum(problem), run_placer(CoverPlacer(), problem, Budget())
    if math.isinf(best):
        assert proposal.placement is None
        return
    assert proposal.placement is not None
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid
    assert judged.value == pytest.approx(best, rel=1e-12)
    if proposal.bound is not None:
        assert proposal.bound.value <= best


@examples(12)
@given(problems(kind="throughput", contiguous=False, max_ops=5))
def test_bounds_hold_whatever_the_links_and_the_memory_model(problem: Problem) -> None:
    """Direct links, shared wires and live activations: bound ≤ optimum, and what is proposed keeps the rules."""
    best, told = optimum(problem), list[Progress]()
    proposal = run_placer(CoverPlacer(), problem, Budget(), on_progress=told.append)
    if proposal.bound is not None:
        assert proposal.bound.value <= best
    if proposal.placement is not None:
        judged = judge_placement(problem, proposal.placement)
        assert judged.valid and judged.value >= best * (1 - 1e-12)
    assert all(state.value is None or state.value >= best * (1 - 1e-12) for state in told)


@examples(12)
@given(replicated())
def test_bounds_hold_where_stages_are_replicated(problem: Problem) -> None:
    """Bounds, those told on the way as well, are no greater than the best placement with replicas."""
    ways, told = sorted(with_replicas(problem, placements(problem)), key=lambda way: way[1]), list[Progress]()
    best = next((value for placement, value in ways if judge_placement(problem, placement).valid), math.inf)
    result = place(problem, "cover", on_progress=told.append)
    assert result.lower_bound <= best
    assert all(state.bound is None or state.bound <= best for state in told)
    if result.placement is not None:
        judged = judge_placement(problem, result.placement)
        assert judged.valid and judged.value >= best * (1 - 1e-12)


@pytest.mark.parametrize("message", ["round 0", "proving"])
def test_another_thread_ends_the_search(message: str) -> None:
    """Nothing more is annealed or proved after the stop, and what was proved stays."""
    stop, told = _native.StopFlag(), list[str]()

    def listen(state: Progress) -> None:
        told.append(state.message)
        if state.message == message:
            stop.set()

    wish = ProblemOptions(objective="throughput", dims={"n_ops": 12}, contiguous=False)
    problem = build("zoo:random-branchy", "2xV100-16GB", wish)
    proposal = run_placer(CoverPlacer(), problem, Budget(stop=stop), on_progress=listen)
    assert told[-1] == message and told.count(message) == 1
    assert proposal.reason is Reason.TIME_LIMIT
    assert proposal.placement is not None and (proposal.bound is not None) == (message == "proving")


@examples(25)
@given(problems(memory_model="sum", max_ops=7, **STAGED))
def test_loads_of_machines_are_those_of_the_judge(problem: Problem) -> None:
    """With staged transfers, the machines of a whole placement have the judge's loads."""
    priced = price_stages(problem, problem.block, problem.n_blocks, problem.capacity)
    kinds = [kind for kind, devices in enumerate(priced.devices) for _ in devices]
    device = np.array([d for devices in priced.devices for d in devices])
    m, rng = native_costs(machines(priced.costs, kinds)), np.random.default_rng(problem.n_ops)
    assume(len(kinds) == problem.n_devices and (priced.costs.seconds < NEVER).all())
    home = rng.integers(0, len(kinds), problem.n_blocks).astype(np.int32)
    value = evaluate(problem, device[home][problem.block][None])[0]
    assert _native.PipelineState(m, home).max_load / priced.scale == pytest.approx(value, rel=1e-9)


@examples(25)
@given(problems(memory_model="sum", max_ops=7, **STAGED))
def test_labels_find_the_best_set(problem: Problem) -> None:
    """The ceiling is the highest price of any set within T and memory, by trying all sets; also in haste."""
    costs = price_stages(problem, problem.block, problem.n_blocks, problem.capacity).costs
    n, rng = problem.n_blocks, np.random.default_rng(problem.n_ops)
    worth = rng.integers(-(1 << 20), 1 << 21, n)
    most = int(costs.seconds[costs.seconds < 1 << 60].max(initial=1) * 1.5)
    order = order_blocks(costs)
    for kind in range(len(costs.rate)):
        m, best = native_costs(machines(costs, [kind, -1])), 0
        for bits in range(1 << n):
            inside = np.array([bits >> b & 1 for b in range(n)], np.bool_)
            if (costs.seconds[inside, kind] < 1 << 60).all():
                state = _native.PipelineState(m, np.where(inside, 0, 1).astype(np.int32))
                if state.loads()[0] <= most and not state.missing_bytes:
                    best = max(best, int(worth[inside].sum()))
        shared = len(costs.storages) > 0
        for most_nodes, width in ((1 << 20, 1 << 20), (1 << 20, 1), (2, 1 << 20)):
            d = diagram(costs, kind, order, most=most_nodes)
            assert d is not None
            limits = np.full(d.cost.shape[2], most)
            limits[-1] = costs.capacity[kind]
            found = SetSearch(d, worth, limits).find(0, width=width)
            assert found.complete and found.ceiling >= best
            if width > 1 and not d.relaxed and not shared:
                assert found.ceiling == best
                assert best == 0 or int(worth[found.sets[0]].sum()) == best
            hasty = SetSearch(d, worth, limits).find(0, width=width, seconds=0.0)
            assert hasty.ceiling >= best


@examples(15)
@given(problems(memory_model="sum", max_ops=5, **STAGED))
def test_what_is_refuted_cannot_be_reached(problem: Problem) -> None:
    """Around the optimum: a max-load that a placement reaches is never refuted."""
    best = optimum(problem)
    assume(math.isfinite(best) and best > 0)
    priced = price_stages(problem, problem.block, problem.n_blocks, problem.capacity)
    for factor in (0.3, 0.7, 0.999, 1.0, 1.3):
        sets = DeviceSets.of(priced.costs)
        assert sets is not None
        status = refute(sets, int(best * factor * priced.scale * (1 + 1e-12)), lambda: math.inf)
        assert factor < 1 or status is not LoadStatus.REFUTED


@examples(10)
@given(problems(memory_model="sum", max_ops=5, **STAGED))
def test_more_of_anything_never_hurts(problem: Problem) -> None:
    """More memory and links twice as fast: the optimum and hence the value do not get worse."""
    assume(math.isfinite(optimum(problem)))
    value = _value(problem)
    seconds = problem.costs.transfer_seconds / 2
    assert _value(problem.with_(costs=replace(problem.costs, transfer_seconds=seconds))) <= value * (1 + 1e-12)
    roomier = tuple(replace(device, memory=device.memory * 2) for device in problem.cluster)
    assert _value(problem.with_(cluster=replace(problem.cluster, devices=roomier))) <= value * (1 + 1e-12)


def _value(problem: Problem) -> float:
    placement = run_placer(CoverPlacer(CoverOptions(bound=False)), problem, Budget()).placement
    assert placement is not None
    return float(evaluate(problem, placement.device[None])[0])
