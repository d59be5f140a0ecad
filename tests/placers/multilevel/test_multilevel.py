"""multilevel: valid on every kind of problem, never worse than its hints, optimal where the answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulate_problems import random_placement, random_problem, seeded

from placewise.errors import PlacerError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Reason
from placewise.placers.base import Budget, Hints, Progress, run_placer
from placewise.placers.multilevel.levels import level_shares, levels_of, tightened
from placewise.placers.multilevel.placer import MultilevelPlacer
from placewise.placers.registry import create
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import evaluate

SMALL = {"groups": 6}
KINDS = [
    (Objective("throughput", mode), Constraints(**rules))
    for mode, rules in (("blocking", {}), ("overlap", {"contiguous": True}), ("duplex", {"convex": True}))
] + [(Objective("latency", execution=execution), Constraints()) for execution in ("operator", "subgraph", "sequential")]


@pytest.mark.parametrize(("objective", "rules"), KINDS, ids=lambda kind: str(kind)[:24])
def test_placements_keep_the_rules_and_beat_their_hints(objective: Objective, rules: Constraints) -> None:
    """Forty ops down from six groups: nothing broken, nothing worse than a hint, the same answer twice."""
    for seed in range(3):
        problem = random_problem(
            seeded(seed), max_ops=40, objective=objective, constraints=rules, scarce=seed == 1, rules=seed == 2
        )
        hint = random_placement(problem, seeded(seed))
        budget = Budget(iterations=2, seed=seed)
        found = run_placer(create("multilevel", SMALL), problem, budget, hints=Hints((hint,)))
        if found.infeasible:
            continue
        assert found.placement is not None or seed == 1
        if found.placement is None:
            continue
        device = found.placement.device
        assert not find_broken_rule(problem, device)
        if not find_broken_rule(problem, hint.device):
            values = evaluate(problem, np.stack((device, hint.device)))
            assert values[0] <= values[1] * (1 + 1e-12)
        again = run_placer(create("multilevel", SMALL), problem, budget, hints=Hints((hint,)))
        assert again.placement == found.placement


def chain(n: int, memory: float = np.inf, state: int = 0) -> Problem:
    """n equal ops in a row on two equal devices; moving between them costs nothing."""
    builder = GraphBuilder()
    tensor = None
    for number in range(n):
        op = builder.add_op(f"op{number}", "Op", state_bytes=state)
        if tensor is not None:
            builder.add_edge(tensor, op)
        tensor = builder.add_tensor(op, nbytes=0)
    cluster = Cluster(tuple(Device(name, "cpu", memory=memory) for name in "ab"))
    costs = CostTable.given(np.ones((n, 2)), np.zeros((n, 1)))
    return Problem(builder.build(), cluster, costs, Objective("throughput"))


def test_a_known_optimum_is_found_through_groups() -> None:
    """Sixty-four equal ops on two devices: half each, whatever the groups were."""
    found = run_placer(create("multilevel", SMALL), chain(64), Budget(iterations=2))
    assert found.placement is not None
    assert evaluate(chain(64), found.placement.device[None]).tolist() == [32.0]


def test_memory_that_just_suffices_is_used() -> None:
    """Room for half of the ops on each device, to the byte."""
    problem = chain(48, memory=24.0, state=1)
    found = run_placer(create("multilevel", SMALL), problem, Budget(iterations=2))
    assert found.placement is not None
    assert np.bincount(found.placement.device).tolist() == [24, 24]


def test_seconds_are_used_and_kept_and_progress_is_told() -> None:
    """A time limit ends the ways down; what is told names the placer and its levels."""
    heard: list[Progress] = []
    problem = random_problem(seeded(5), max_ops=300, objective=Objective("throughput"))
    found = run_placer(create("multilevel", {"groups": 20}), problem, Budget(seconds=0.3), on_progress=heard.append)
    assert found.placement is not None and found.reason in (Reason.TIME_LIMIT, Reason.FINISHED)
    assert {progress.placer for progress in heard} <= {"multilevel"}


def test_interruption_keeps_the_best_so_far() -> None:
    """Ctrl-C at the first sign of life after a hint: the hint, or better, comes back."""
    problem = random_problem(seeded(8), max_ops=60, objective=Objective("latency"))
    hint = Placement(np.zeros(problem.n_ops, np.int32))
    calls = 0

    def price(rows: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise KeyboardInterrupt
        return evaluate(problem, rows)

    assert not find_broken_rule(problem, hint.device)
    found = run_placer(MultilevelPlacer(), problem, Budget(), hints=Hints((hint,)), evaluate=price)
    assert found.placement is not None and found.reason is Reason.INTERRUPTED


def test_levels_project_there_and_back() -> None:
    """What groups can say comes back as it was; what they cannot say is no start."""
    problem = chain(12)
    label = np.repeat(np.arange(4), 3)
    for exact in (False, True):
        fine, coarse = levels_of(problem, [label], exact=exact)
        device = np.repeat(np.array([0, 1, 1, 0], np.int32), 3)
        down = coarse.down(device)
        assert down is not None and (coarse.up(down) == device).all()
        assert coarse.down(np.arange(12, dtype=np.int32) % 2) is None
        assert coarse.problem.n_blocks == 4 and coarse.problem.n_ops == (12 if exact else 4)
        assert fine.problem is problem


def test_time_goes_to_levels_by_their_size_or_not_at_all() -> None:
    """Shares add up to one; a level whose share is too short for its size gets none; without a clock all are equal."""
    levels = levels_of(chain(4000), [np.arange(4000) // 10, np.arange(4000) // 100])
    whole = level_shares(levels, 10.0)
    assert sum(whole) == pytest.approx(1) and min(whole) > 0
    hurried = level_shares(levels, 0.02)
    assert hurried[0] == 0 and hurried[-1] > 0 and sum(hurried) == pytest.approx(1)
    assert level_shares(levels, np.inf) == [1.0] * 3


def test_tightened_devices_hold_less() -> None:
    """Bytes that are taken away are missing from the capacity."""
    problem = chain(4, memory=24.0)
    assert tightened(problem, np.array([4.0, 0.0])).capacity.tolist() == [20.0, 24.0]


def waves(layers: int, steps: int) -> Problem:
    """A recurrent network: each cell waits for the same layer one step before, and the layer below in the same step."""
    builder = GraphBuilder()
    tensors: dict[tuple[int, int], int] = {}
    for step in range(steps):
        for layer in range(layers):
            op = builder.add_op(f"cell{layer}.{step}", "Op", scope=f"layer.{layer}.step.{step}")
            for before in ((layer, step - 1), (layer - 1, step)):
                if before in tensors:
                    builder.add_edge(tensors[before], op)
            tensors[layer, step] = builder.add_tensor(op, nbytes=1)
    cluster = Cluster(tuple(Device(f"d{layer}", "cpu") for layer in range(layers)))
    n = layers * steps
    seconds = np.full((n, layers), 1.0)
    return Problem(builder.build(), cluster, CostTable.given(seconds, np.zeros((n, 1))), Objective("latency"))


def test_layers_of_a_recurrent_network_are_moved_as_a_whole() -> None:
    """A layer per device is found by moving layers alone: the last cell ends layers + steps − 1 cells later."""
    problem = waves(3, 40)
    found = run_placer(
        create("multilevel", {"repeated": "only"}), problem, Budget(iterations=50),
        hints=Hints((Placement(np.zeros(problem.n_ops, np.int32)),)),
    )  # fmt: skip
    assert found.placement is not None
    assert evaluate(problem, found.placement.device[None])[0] == 42


def test_repetitions_that_do_not_fit_stay_where_they_are() -> None:
    """Two layers do not fit on one device: what moves them there is no answer."""
    problem = waves(2, 8)
    devices = tuple(replace(device, memory=15.0) for device in problem.cluster)
    ops = replace(problem.graph.ops, state_bytes=np.full(problem.n_ops, 1, np.int64))
    tight = problem.with_(graph=replace(problem.graph, ops=ops), cluster=replace(problem.cluster, devices=devices))
    assert find_broken_rule(tight, np.zeros(tight.n_ops, np.int32))
    hint = Placement(np.repeat([0, 1], 8).astype(np.int32))
    found = run_placer(create("multilevel", {"repeated": "only"}), tight, Budget(iterations=9), hints=Hints((hint,)))
    assert found.placement is not None and not find_broken_rule(tight, found.placement.device)
    values = evaluate(tight, np.stack((found.placement.device, hint.device)))
    assert values[0] <= values[1]


def test_repetitions_are_for_latency_alone() -> None:
    """For throughput the option says nothing, and the groups are searched."""
    found = run_placer(create("multilevel", {"groups": 6, "repeated": "only"}), chain(20), Budget(iterations=2))
    assert found.placement is not None


def test_an_option_that_makes_no_sense_is_refused() -> None:
    """Groups are counted from zero."""
    with pytest.raises(PlacerError, match="-1 groups"):
        create("multilevel", {"groups": -1})
