"""pack and auto where memory is tight: a placement that greedy fills miss, or the proof with its bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from plain_rules import keeps_the_rules, placements
from soak import examples, seeds
from strategies import problems

from placewise.core.place import place
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Outcome
from placewise.placers.base import Budget, run_placer
from placewise.placers.packing.placer import PackPlacer
from placewise.simulate import judge_placement


def boxes(sizes: list[int], capacities: list[int], *, contiguous: bool = False, kind: str = "throughput") -> Problem:
    """A chain of ops with the given resident bytes, and accelerators with the given memories."""
    builder = GraphBuilder()
    for i, size in enumerate(sizes):
        builder.add_op(f"x{i}", "Op", state_bytes=size)
        builder.add_tensor(i, nbytes=0)
        if i:
            builder.add_edge(i - 1, i)
    graph = builder.build()
    devices = tuple(Device(f"d{i}", memory=capacity) for i, capacity in enumerate(capacities))
    links = tuple(Link(*ends, 1.0) for d in devices for ends in ((d.name, HOST), (HOST, d.name)))
    cluster = Cluster(devices, links)
    costs = CostTable.given(np.ones((len(sizes), len(devices))), np.zeros((graph.n_tensors, 2)))
    objective = Objective(kind, memory="sum")  # type: ignore[arg-type]
    return Problem(graph, cluster, costs, objective, Constraints(contiguous=contiguous))


def test_a_packing_that_greedy_fills_miss() -> None:
    """5 4 3 3 3 into 9 and 9: only {5, 4} and {3, 3, 3} fit, and the order of the ops forbids it to any chain fill."""
    problem = boxes([3, 5, 3, 4, 3], [9, 9])
    placement = run_placer(PackPlacer(), problem, Budget()).placement
    assert placement is not None and judge_placement(problem, placement).valid
    result = place(problem)
    assert result.placement is not None and result.status.outcome is not Outcome.UNKNOWN


@pytest.mark.parametrize(("kind", "contiguous"), [("throughput", False), ("throughput", True), ("latency", False)])
def test_the_proof_names_the_bytes(kind: str, contiguous: bool) -> None:
    """Three boxes of 60 do not fit into two of 100: at least 20 bytes are missing, and the largest group is named."""
    result = place(boxes([60, 60, 60], [100, 100], contiguous=contiguous, kind=kind))
    assert result.status.outcome is Outcome.INFEASIBLE
    assert "20 bytes" in result.unmet and "largest group" in result.unmet and "'x0' with 60 B" in result.unmet


def test_a_chain_that_does_not_fit_where_a_free_split_would() -> None:
    """The proof for contiguous stages says that looser stages would fit."""
    result = place(boxes([60, 130, 60], [130, 130], contiguous=True))
    assert result.status.outcome is Outcome.INFEASIBLE and "form no chain would fit" in result.unmet
    assert place(boxes([60, 130, 60], [130, 130])).placement is not None


@examples(30)
@given(problems(max_ops=5, contiguous=False, memory_model="sum"))
def test_pack_agrees_with_brute_force(problem: Problem) -> None:
    """It finds a placement exactly if brute force finds one, and proves the rest; circles of calls apart."""
    assume(problem.objective.execution != "subgraph" or problem.objective.kind == "throughput")
    exists = any(True for _ in placements(problem))
    found = run_placer(PackPlacer(), problem, Budget())
    assert (found.placement is not None) == exists
    assert bool(found.infeasible) == (not exists)


def planted(seed: int, rooms: list[int], per: int, *, shared: int = 0) -> Problem:
    """Boxes in random order that fill these rooms to the last byte, about `per` in each, some with a common weight."""
    rng = np.random.default_rng(seed)
    sizes: list[int] = []
    for room in rooms:
        cuts = np.sort(rng.choice(np.arange(1, room - shared), per - 1, replace=False))
        sizes += np.diff([0, *cuts.tolist(), room - shared]).tolist()
    order = rng.permutation(len(sizes)).tolist()
    builder = GraphBuilder()
    weight = builder.add_weight("common", shape=(shared,), dtype="int8") if shared else -1
    for op, place_ in enumerate(order):
        builder.add_op(f"x{op}", "Op", state_bytes=int(sizes[place_]))
        builder.add_tensor(op, nbytes=0)
        if op:
            builder.add_edge(op - 1, op)
        if shared and place_ % per == 0:
            builder.use_weight(weight, op)
    plain = boxes([1] * len(sizes), rooms)
    return plain.with_(graph=builder.build())


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize(("rooms", "per", "slack"), [([9_000] * 6, 5, 1.01), ([20_000, 9_000, 7_000, 5_000], 6, 1.02)])
def test_tight_packings_are_found(seed: int, rooms: list[int], per: int, slack: float) -> None:
    """One or two percent more room than bytes, on equal and unequal devices: `auto` answers with a placement."""
    exact = planted(seed, rooms, per)
    roomier = boxes([1] * exact.n_ops, [int(room * slack) for room in rooms])
    problem = exact.with_(cluster=roomier.cluster)
    assert run_placer(PackPlacer(), problem, Budget()).placement is not None
    result = place(problem, budget=Budget(iterations=1, evaluations=1))
    assert result.placement is not None and judge_placement(problem, result.placement).valid


def test_packings_to_the_last_byte_are_found_or_not_called_impossible() -> None:
    """Not a byte to spare, and a weight that one block in five shares: found, or unknown with what was tried."""
    for seed in seeds(8):
        for shared in (0, 40):
            proposal = run_placer(PackPlacer(), planted(seed, [300, 400, 500], 4, shared=shared), Budget(seconds=0.3))
            assert not proposal.infeasible
            assert proposal.placement is not None or "tried" in proposal.notes[0]


def test_thirty_thousand_blocks_to_the_last_percent() -> None:
    """Many blocks of all sizes on sixteen devices with one percent to spare: found without a program."""
    exact = planted(5, [10_000_000] * 16, 1_900)
    problem = exact.with_(cluster=boxes([1], [10_100_000] * 16).cluster)
    placement = run_placer(PackPlacer(), problem, Budget()).placement
    assert placement is not None and judge_placement(problem, placement).valid


def test_equal_blocks_are_counted() -> None:
    """2,001 blocks of 7 bytes on two devices of 7,005: each holds a thousand, and the last one lacks 2 bytes there.

    Together the devices have 3 bytes more than are needed, so that only counting proves it.
    """
    proposal = run_placer(PackPlacer(), boxes([7] * 2001, [7005, 7005]), Budget())
    assert proposal.placement is None and "(2 bytes)" in proposal.infeasible


@examples(40)
@given(problems(max_ops=5))
def test_pack_is_never_wrong(problem: Problem) -> None:
    """Live activations, shared weights, shapes and all: what it proposes keeps the rules, what it refutes is not."""
    found = run_placer(PackPlacer(), problem, Budget())
    if found.placement is not None:
        assert {violation.kind for violation in judge_placement(problem, found.placement).violations} <= {"calls"}
    elif found.infeasible:
        assert not any(keeps_the_rules(problem, device) for device, _ in placements(problem))
    else:
        assert "tried" in found.notes[0]


@pytest.mark.parametrize("contiguous", [False, True])
def test_live_memory_is_repaired(contiguous: bool) -> None:
    """Weights fit in many ways, tensors of 40 bytes only where both their ends are: the packing respects them."""
    builder = GraphBuilder()
    for op in range(8):
        builder.add_op(f"x{op}", "Op", state_bytes=30)
        builder.add_tensor(op, nbytes=40 if op % 2 == 0 else 1)
        if op:
            builder.add_edge(op - 1, op)
    plain = boxes([1] * 8, [165, 165])
    problem = plain.with_(
        graph=builder.build(), objective=Objective("throughput"), constraints=Constraints(contiguous=contiguous)
    )
    placement = run_placer(PackPlacer(), problem, Budget()).placement
    assert placement is not None and judge_placement(problem, placement).valid
