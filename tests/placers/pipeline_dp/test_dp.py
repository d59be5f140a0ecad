"""dp against brute force, against the published values, and where it cannot finish."""

from __future__ import annotations

import math
import re
import time

import numpy as np
import pytest
from hypothesis import given
from plain_rules import optimum, placements
from published import RECORDED, WORKLOADS, needs_workloads
from soak import examples
from strategies import problems

from placewise import _native
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Reason
from placewise.placers.base import Budget, Progress, Stopwatch, run_placer
from placewise.placers.pipeline_dp import ideals_dp
from placewise.placers.pipeline_dp.hill_climb import climb_hill
from placewise.placers.pipeline_dp.leaf_merging import merge_leaves
from placewise.placers.pipeline_dp.placer import DpOptions, DpPlacer
from placewise.placers.pipeline_dp.unequal_links import list_relaxations
from placewise.placers.shared.stages.dp_driver import search_chains
from placewise.placers.shared.stages.ideals import Ideals, enumerate_ideals, list_prefixes
from placewise.placers.shared.stages.stage_costs import price_stages, to_native
from placewise.readers.workload import read_workload
from placewise.simulate import Evaluator, evaluate, judge_placement
from placewise.simulate.contiguity import contract, join

QUICK = (
    "LayerGraphs/bert24_inference", "LayerGraphs/bert24_training", "LayerGraphs/gnmt_inference",
    "LayerGraphs/resnet50_inference", "LayerGraphs/resnet50_training", "OperatorGraphs/bert_l-3_training",
    "OperatorGraphs/bert_l-6_inference", "OperatorGraphs/bert_l-12_inference", "OperatorGraphs/resnet50_training",
)  # fmt: skip


@examples(30)
@given(problems(kind="throughput", contiguous=True, memory_model="sum", transfers="staged", wires=False, max_ops=5))
def test_staged_pipelines_are_optimal(problem: Problem) -> None:
    """The proposal reaches the brute-force optimum in every communication mode, and the bound is the optimum."""
    best, proposal = optimum(problem), run_placer(DpPlacer(), problem, Budget())
    if math.isinf(best):
        assert proposal.placement is None and proposal.infeasible and proposal.reason is Reason.PROVED
        return
    assert proposal.placement is not None and proposal.bound is not None
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid
    assert judged.value == pytest.approx(best, rel=1e-12)
    assert best * (1 - 1e-9) <= proposal.bound.value <= best


@examples(30)
@given(problems(kind="throughput", contiguous=True, max_ops=5))
def test_bounds_hold_whatever_the_links_and_the_memory_model(problem: Problem) -> None:
    """Direct links, shared wires and live activations: bound ≤ optimum, and what is proposed keeps the rules."""
    best, proposal = optimum(problem), run_placer(DpPlacer(), problem, Budget())
    if proposal.bound is not None:
        assert proposal.bound.value <= best
    if proposal.infeasible:
        assert not any(judge_placement(problem, Placement(np.array(device))).valid for device, _ in placements(problem))
    if proposal.placement is not None:
        judged = judge_placement(problem, proposal.placement)
        assert judged.valid and judged.value >= best * (1 - 1e-12)


@examples(30)
@given(problems(kind="throughput", contiguous=False, memory_model="sum", max_ops=5))
def test_without_contiguity_there_is_no_bound(problem: Problem) -> None:
    """A pipeline is still a valid answer, and proves nothing about other placements."""
    proposal = run_placer(DpPlacer(), problem, Budget())
    assert proposal.bound is None
    if proposal.placement is not None:
        assert judge_placement(problem, proposal.placement).valid
    if proposal.infeasible:
        assert math.isinf(optimum(problem))


@examples(25)
@given(problems(kind="throughput", contiguous=True, memory_model="sum", transfers="staged", wires=False, max_ops=5))
def test_leaves_do_not_change_the_optimum(problem: Problem) -> None:
    """With every op that costs nothing in play, merged leaves keep the brute-force optimum."""
    seconds = np.where(np.arange(problem.n_ops)[:, None] % 2 == 0, 0.0, problem.costs.op_seconds)
    problem = problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds))
    best, proposal = optimum(problem), run_placer(DpPlacer(), problem, Budget())
    value = math.inf if proposal.placement is None else evaluate(problem, proposal.placement.device[None])[0]
    assert value == pytest.approx(best, rel=1e-12)


@examples(30)
@given(problems(kind="throughput", transfers="staged", max_ops=6, memory=None))
def test_what_an_ideal_leaves_to_pay(problem: Problem) -> None:
    """Each tensor that the rest reads from an ideal is received there, each that it makes for it or the host sent."""
    graph = contract(problem)
    costs, ideals = (
        price_stages(problem, graph.component, graph.n, problem.capacity).costs,
        enumerate_ideals(graph, 1000),
    )
    assert isinstance(ideals, Ideals)
    enter, leave = np.arange(1, len(costs.producer) + 1), np.arange(100, len(costs.producer) + 100)
    found = _native.cut_left(to_native(costs), ideals, enter, leave)
    for i in range(len(ideals)):
        inside, total = ideals.members(i), 0
        for t, producer in enumerate(costs.producer.tolist()):
            readers = inside[costs.consumers[costs.consumer_offsets[t] : costs.consumer_offsets[t + 1]]]
            if producer < 0 or inside[producer]:
                total += enter[t] * bool((~readers).any())
            else:
                total += leave[t] * bool(readers.any() or costs.output[t])
        assert found[i] == total


def star(leaves: int, *, size: int = 0) -> Problem:
    """A hub that feeds many ops which cost nothing, on two accelerators of 10 bytes."""
    builder = GraphBuilder()
    hub = builder.add_op("hub", "Op")
    tensor = builder.add_tensor(hub, nbytes=1)
    for leaf in range(leaves):
        builder.add_edge(tensor, builder.add_op(f"leaf{leaf}", "Op", state_bytes=size))
    graph = builder.build()
    devices = tuple(Device(f"acc{d}", memory=10) for d in range(2))
    links = [Link(*ends, 1.0) for d in devices for ends in ((d.name, HOST), (HOST, d.name))]
    seconds = np.zeros((graph.n_ops, 2))
    seconds[0] = 1.0
    costs = CostTable.given(seconds, np.array([[0.0, 1.0]]))
    return Problem(
        graph,
        Cluster(devices, tuple(links)),
        costs,
        Objective("throughput", memory="sum"),
        Constraints(contiguous=True),
    )


def test_free_leaves_are_merged() -> None:
    """Forty free leaves, 2^40 ideals, collapse into their hub; with memory that may bind they do not."""
    problem = star(40)
    graph = contract(problem)
    assert merge_leaves(graph, price_stages(problem, graph.component, graph.n, problem.capacity).costs).max() == 0
    assert run_placer(DpPlacer(), problem, Budget()).bound is not None
    heavy = star(12, size=1)
    graph = contract(heavy)
    assert merge_leaves(graph, price_stages(heavy, graph.component, graph.n, heavy.capacity).costs).max() == 12
    proposal = run_placer(DpPlacer(), heavy, Budget())
    assert proposal.placement is not None
    assert judge_placement(heavy, proposal.placement).valid


def test_ideals_of_a_small_graph() -> None:
    """A diamond has six ideals, a path of n has n + 1, and the sizes grow with the numbers."""
    builder = GraphBuilder()
    for op in range(4):
        builder.add_op(f"op{op}", "Op")
    for tail, head in ((0, 1), (0, 2), (1, 3), (2, 3)):
        builder.add_edge(builder.add_tensor(tail, nbytes=1), head)
    graph = builder.build()
    cluster = Cluster((Device("cpu", kind="cpu"),))
    problem = Problem(graph, cluster, CostTable.given(np.ones((4, 1)), np.zeros((4, 1))))
    ideals = enumerate_ideals(contract(problem), 100)
    assert isinstance(ideals, Ideals)
    sets = [frozenset(np.flatnonzero(ideals.members(i)).tolist()) for i in range(len(ideals))]
    assert set(sets) == {frozenset(s) for s in ((), (0,), (0, 1), (0, 2), (0, 1, 2), (0, 1, 2, 3))}
    assert [len(s) for s in sets] == sorted(len(s) for s in sets)
    assert enumerate_ideals(contract(problem), 5) == 6 and enumerate_ideals(contract(problem), 0) == 6
    assert enumerate_ideals(contract(problem), 6) != 6
    path = list_prefixes(70)
    assert [int(path.members(i).sum()) for i in range(71)] == list(range(71))


def test_too_many_ideals_fall_back_to_one_line() -> None:
    """Beyond `max_ideals` the answer is valid, says so, and its bound comes from a path."""
    problem = star(12, size=1)
    proposal = run_placer(DpPlacer(DpOptions(max_ideals=100)), problem, Budget())
    assert proposal.placement is not None
    assert proposal.bound is None or "path" in proposal.bound.method
    said = re.match(r"([0-9,]+) ideals of \d+ components or more, too many .* instead the best", proposal.notes[0])
    assert said is not None and 100 < int(said[1].replace(",", "")) <= 1 + (1 << 12)
    assert judge_placement(problem, proposal.placement).valid


def test_no_time_is_no_proof() -> None:
    """A budget of nothing ends at the time limit without a bound, and before ideals are counted."""
    for problem in (star(3), star(12, size=1)):
        proposal = run_placer(DpPlacer(), problem, Budget(seconds=0.0))
        assert proposal.reason is Reason.TIME_LIMIT and proposal.bound is None
        assert not any("ideals" in note for note in proposal.notes)


def test_interrupted_with_the_best_so_far() -> None:
    """Ctrl-C while the ideals are tried ends the search with a valid placement of the line."""
    problem = star(12, size=1)

    def interrupt(progress: Progress) -> None:
        if progress.message.endswith("of 4096"):
            raise KeyboardInterrupt

    proposal = run_placer(DpPlacer(), problem, Budget(), on_progress=interrupt)
    assert proposal.reason is Reason.INTERRUPTED and proposal.bound is None
    assert proposal.placement is not None and judge_placement(problem, proposal.placement).valid


@pytest.mark.parametrize(
    ("latest", "few", "share", "proved"),
    [
        (2000.0, 20_000, 0.6, True),
        (1500.0, 20_000, 0.6, False),
        (2000.0, 100, 0.6, False),
        (2000.0, 20_000, 0.0, False),
    ],
)
def test_a_proof_within_reach_may_take_longer_than_its_part(
    latest: float, few: int, share: float, proved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of 60 s is over once ideals are tried, after 1,000 s: few of them may take a share of all that is left."""
    problem, late = star(12, size=1), [0.0]
    monkeypatch.setattr(ideals_dp, "FEW_IDEALS", few)
    true_time = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: true_time() + late[0])

    def delay(progress: Progress) -> None:
        late[0] = 1000.0 if progress.message.endswith("of 4096") else late[0]

    proposal = run_placer(
        DpPlacer(DpOptions(proof_share=share)), problem, Budget(seconds=60.0, latest=latest), on_progress=delay
    )
    assert (proposal.reason is Reason.FINISHED) == proved
    assert proposal.placement is not None and judge_placement(problem, proposal.placement).valid
    assert any("not all of them were tried" in note for note in proposal.notes) != proved


def line(n: int, devices: int) -> Problem:
    """Ops of 1 s in a row on accelerators; the tensors between them take no time."""
    builder = GraphBuilder()
    for op in range(n):
        builder.add_op(f"op{op}", "Op")
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    machines = tuple(Device(f"acc{d}") for d in range(devices))
    links = [Link(*ends, 1.0) for d in machines for ends in ((d.name, HOST), (HOST, d.name))]
    costs = CostTable.given(np.ones((n, devices)), np.zeros((n, 2)))
    objective = Objective("throughput", memory="sum")
    return Problem(builder.build(), Cluster(machines, tuple(links)), costs, objective, Constraints(contiguous=True))


@pytest.mark.parametrize("patience", range(6))
def test_what_was_refuted_before_the_end_is_a_bound(patience: int) -> None:
    """Seven ops of 1 s on three devices take 3 s; a search that is cut off proves no more than that."""
    problem = line(7, 3)
    graph = contract(problem)
    priced = price_stages(problem, graph.component, graph.n, problem.capacity)
    left = iter([True] * patience)
    found = search_chains(priced, list_prefixes(7), lambda *_: next(left, False), int(5 * priced.scale))
    assert found.floor <= 3 * priced.scale
    assert (found.reason is Reason.FINISHED) == (found.chain is not None)
    if found.chain is not None:
        assert found.floor == found.chain.value == pytest.approx(3 * priced.scale)
    else:
        assert patience < 5


def test_a_gap_ends_the_search_early() -> None:
    """Seven ops of 1 s on three devices: with a gap of 50 % the line's 3 s stand once 2.4 s are refuted."""
    proposal = run_placer(DpPlacer(), line(7, 3), Budget(gap=0.5))
    assert proposal.placement is not None and proposal.bound is not None
    assert evaluate(line(7, 3), proposal.placement.device[None]).tolist() == [3.0]
    assert 2.3 < proposal.bound.value < 2.5
    assert "until the gap was reached" in proposal.notes[0]


def test_what_does_not_fit_is_said_in_words() -> None:
    """A cycle of groups that fits on no device: which ops, how many bytes short."""
    builder = GraphBuilder()
    for name, group in (("a", 0), ("b", -1), ("c", 0)):
        builder.add_op(name, "Op", group=group, state_bytes=5)
    for tail in range(2):
        builder.add_edge(builder.add_tensor(tail, nbytes=1), tail + 1)
    graph = builder.build()
    devices = (Device("x", memory=12), Device("y", memory=12))
    links = [Link(*ends, 1.0) for d in devices for ends in ((d.name, HOST), (HOST, d.name))]
    problem = Problem(
        graph, Cluster(devices, tuple(links)), CostTable.given(np.ones((3, 2)), np.zeros((2, 2))),
        Objective("throughput"), Constraints(contiguous=True),
    )  # fmt: skip
    proposal = run_placer(DpPlacer(), problem, Budget())
    assert proposal.placement is None
    assert "'a'" in proposal.infeasible and "3 bytes" in proposal.infeasible


def test_latency_is_refused() -> None:
    """dp says why it does not take a latency problem."""
    problem = star(2)
    assert DpPlacer().supports(problem) is None
    assert "latency" in str(DpPlacer().supports(problem.with_(objective=Objective("latency"))))


@needs_workloads
@pytest.mark.parametrize("name", QUICK)
def test_published_values(name: str) -> None:
    """The published dynamic program's max-load, to nine digits, with a proof."""
    reference = RECORDED["throughput"][name]["dp"]["value"]
    problem = read_workload(WORKLOADS / "throughput" / f"{name}.json").problem
    assert problem is not None
    proposal = run_placer(DpPlacer(), problem, Budget())
    assert proposal.placement is not None and proposal.bound is not None
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid
    assert judged.value * 1e3 == pytest.approx(reference, rel=1e-9)
    assert judged.value * (1 - 1e-9) <= proposal.bound.value <= judged.value


def test_joined_components_stay_a_contraction() -> None:
    """Joining labels keeps ops, order and distinct edges."""
    graph = contract(star(3))
    joined = join(graph, np.array([0, 0, 1, 2], np.int32))
    assert joined.n == 3 and joined.component.tolist() == [0, 0, 1, 2]
    assert joined.successors.tolist() == [1, 2] and joined.predecessors.tolist() == [0, 0]


@examples(20)
@given(problems(kind="throughput", transfers="direct", contiguous=True))
def test_with_direct_transfers_no_reading_hurts(problem: Problem) -> None:
    """The proposal is at least as good as each reading's own, under the judge and within the rules."""
    found = run_placer(DpPlacer(), problem, Budget())
    for reading in list_relaxations(problem):
        other = run_placer(DpPlacer(), reading, Budget())
        if other.placement is not None and other.bound is not None and found.placement is not None:
            mine = judge_placement(problem, found.placement)
            assert mine.valid
            assert mine.value >= (found.bound.value if found.bound else 0.0)


def test_a_slow_host_between_two_accelerators_is_left_out() -> None:
    """Four ops in a row, a fast link between the accelerators and a slow one to the CPU: the CPU stays out."""
    builder = GraphBuilder()
    for i in range(4):
        builder.add_op(f"x{i}", "Op")
        builder.add_tensor(i, nbytes=1000)
        if i:
            builder.add_edge(i - 1, i)
    graph = builder.build()
    slow = [Link(*ends, 1e2) for d in ("a", "b") for ends in ((d, HOST), (HOST, d))]
    links = (Link("a", "b", 1e6), Link("b", "a", 1e6), *slow)
    cluster = Cluster((Device("a"), Device("b"), Device("cpu", kind="cpu")), links, "direct")
    costs = CostTable.given(np.tile([[1.0, 1.0, 1.0]], (4, 1)), transfer_seconds_of(graph, cluster))
    problem = Problem(graph, cluster, costs, Objective("throughput"), Constraints(contiguous=True))
    placement = run_placer(DpPlacer(), problem, Budget()).placement
    assert placement is not None
    assert judge_placement(problem, placement).value == pytest.approx(2.001)


@examples(15)
@given(problems(kind="throughput", contiguous=True, max_ops=5))
def test_climbing_keeps_the_rules_and_never_loses(problem: Problem) -> None:
    """From any valid split, climbing ends at a valid split that is no worse, and where the start is the optimum."""
    graph, price = contract(problem), Evaluator(problem)
    starts = [np.array(device, np.int32) for device, _ in placements(problem)]
    starts = [device for device in starts if judge_placement(problem, Placement(device)).valid][:20]
    values = [judge_placement(problem, Placement(device)).value for device in starts]
    for device, value in zip(starts, values, strict=True):
        climbed = judge_placement(problem, Placement(climb_hill(problem, graph, device, price, Stopwatch(Budget()))))
        assert climbed.valid and climbed.value <= value
        assert climbed.value >= min(values) * (1 - 1e-12) or len(starts) == 20


@pytest.mark.parametrize("transfers", ["direct", "staged"])
def test_shared_wires_and_unequal_links_reach_the_optimum(transfers: str) -> None:
    """Seven ops in a row, two pairs of accelerators joined by a slow shared wire: the optimum of all chain splits."""
    builder = GraphBuilder()
    for i in range(7):
        builder.add_op(f"x{i}", "Op")
        builder.add_tensor(i, nbytes=100 * (i % 3 + 1))
        if i:
            builder.add_edge(i - 1, i)
    graph = builder.build()
    fast = [Link(*ends, 1e4) for pair in (("a", "b"), ("c", "d")) for ends in (pair, pair[::-1])]
    slow = [Link(*ends, 2e2, shared="bus") for d in "abcd" for ends in ((d, HOST), (HOST, d))]
    cluster = Cluster(tuple(Device(name) for name in "abcd"), (*fast, *slow), transfers)  # type: ignore[arg-type]
    costs = CostTable.given(np.tile(np.arange(1.0, 8.0)[:, None], (1, 4)), transfer_seconds_of(graph, cluster))
    problem = Problem(graph, cluster, costs, Objective("throughput"), Constraints(contiguous=True))
    placement = run_placer(DpPlacer(), problem, Budget()).placement
    assert placement is not None
    assert judge_placement(problem, placement).value == pytest.approx(optimum(problem))
