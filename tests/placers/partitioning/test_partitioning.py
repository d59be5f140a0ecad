"""mincut and metis: known cuts, what a tensor counts, valid on random problems, and what is said without them."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from plain_rules import keeps_the_rules, placements
from soak import examples
from strategies import problems

from placewise.analysis.compare import compare
from placewise.errors import MissingExtraError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.placers import registry
from placewise.placers.base import Budget, run_placer
from placewise.placers.shared.partitions.hypergraph import build_hypergraph, list_working_devices
from placewise.placers.shared.repair import build_packing_instance
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract, device_cycle

NAMES = ("metis", "mincut")
LIBRARIES = {"metis": "pymetis", "mincut": "mtkahypar"}
for library in LIBRARIES.values():
    pytest.importorskip(library, reason="the extra 'partition' is not installed")


def machines(speeds: int, *, transfers: str = "direct", memory: float = np.inf) -> Cluster:
    """Accelerators with links of 1 byte/s to each other and to the host."""
    devices = tuple(Device(f"acc{i}", memory=memory) for i in range(speeds))
    ends = [*(device.name for device in devices), HOST]
    pairs = [(a, b) for a in ends for b in ends if a != b and (transfers == "direct" or HOST in (a, b))]
    return Cluster(devices, tuple(Link(a, b, 1.0) for a, b in pairs), transfers)  # type: ignore[arg-type]


def clusters(sizes: list[int], heavy: int, light: int) -> Graph:
    """Groups of ops, each op joined to all later ones of its group by one tensor; the last to the next group's first.

    A tensor inside a group has `heavy` bytes; the one between two groups `light`.
    """
    builder = GraphBuilder()
    op, bridge = 0, -1
    for size in sizes:
        made: list[int] = []
        for member in range(size):
            builder.add_op(f"op{op}", "Op")
            for tensor in made:
                builder.add_edge(tensor, op)
            if bridge >= 0 and member == 0:
                builder.add_edge(bridge, op)
            made.append(builder.add_tensor(op, nbytes=heavy))
            if member == size - 1:
                bridge = builder.add_tensor(op, nbytes=light)
            op += 1
    return builder.build()


def problem_of(graph: Graph, cluster: Cluster, seconds: np.ndarray | None = None, **options: object) -> Problem:
    """One second per op and device unless told otherwise; transfers by bytes."""
    seconds = np.ones((graph.n_ops, len(cluster))) if seconds is None else seconds
    costs = CostTable.given(seconds, transfer_seconds_of(graph, cluster))
    options.setdefault("objective", Objective("throughput", memory="sum"))
    return Problem(graph, cluster, costs, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transfers", ["direct", "staged"])
@pytest.mark.parametrize("contiguous", [False, True])
def test_the_edge_between_two_cliques_is_cut(name: str, transfers: str, contiguous: bool) -> None:
    """Two cliques of eight ops joined by one edge: the parts are the cliques, and only that edge is sent."""
    graph = clusters([8, 8], heavy=3, light=1)
    problem = problem_of(graph, machines(2, transfers=transfers), constraints=Constraints(contiguous=contiguous))
    proposal = run_placer(registry.create(name), problem, Budget())
    assert proposal.placement is not None
    assert proposal.placement.device.tolist() == [0] * 8 + [1] * 8
    assert judge_placement(problem, proposal.placement).value == 9.0


@pytest.mark.parametrize("name", NAMES)
def test_five_groups_on_five_devices(name: str) -> None:
    """Five cliques in a row come apart into five parts where the light edges are, whatever the seed."""
    graph = clusters([6] * 5, heavy=5, light=1)
    problem = problem_of(graph, machines(5))
    for seed in range(3):
        proposal = run_placer(registry.create(name), problem, Budget(seed=seed))
        assert proposal.placement is not None
        assert proposal.placement.device.tolist() == [d for d in range(5) for _ in range(6)]


@pytest.mark.parametrize("name", NAMES)
def test_quicker_devices_get_larger_parts(name: str) -> None:
    """A device of three times the speed takes the clique of twelve, the slow one that of four."""
    graph = clusters([4, 12], heavy=3, light=1)
    seconds = np.tile([1.0, 3.0], (16, 1))
    proposal = run_placer(registry.create(name), problem_of(graph, machines(2), seconds), Budget())
    assert proposal.placement is not None
    assert proposal.placement.device.tolist() == [1] * 4 + [0] * 12


def test_a_tensor_is_one_hyperedge_and_many_edges() -> None:
    """One op feeds three readers: one net of four pins for Mt-KaHyPar, three edges, both ways, for METIS."""
    builder = GraphBuilder()
    builder.add_op("maker", "Op")
    tensor = builder.add_tensor(0, nbytes=4)
    for reader in range(3):
        builder.add_edge(tensor, builder.add_op(f"reader{reader}", "Op"))
    problem = problem_of(builder.build(), machines(2))
    net = build_hypergraph(problem, build_packing_instance(problem), list_working_devices(problem))
    assert net.list_pins() == [[0, 1, 2, 3]]
    offsets, neighbours, weights = net.list_pairs()
    assert offsets.tolist() == [0, 3, 4, 5, 6] and neighbours.tolist() == [1, 2, 3, 0, 0, 0]
    assert len(set(weights.tolist())) == 1


def test_a_group_is_one_node() -> None:
    """Ops of a colocation group are one node: what they send each other is no net, their seconds add up."""
    builder = GraphBuilder()
    for op in range(4):
        builder.add_op(f"op{op}", "Op", group=0 if op in (0, 2) else -1)
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    problem = problem_of(builder.build(), machines(2))
    net = build_hypergraph(problem, build_packing_instance(problem), list_working_devices(problem))
    assert net.list_pins() == [[0, 1], [1, 0], [0, 2]]
    assert net.weight[0] == pytest.approx(2 * net.weight[1], rel=1e-6)


def test_shares_follow_speed_and_host_ops_stay_out() -> None:
    """One accelerator is twice as quick as the other; an op pinned to the CPU is no node and nobody's work."""
    devices = (Device("quick"), Device("slow"), Device("cpu", kind="cpu"))
    links = tuple(Link(a, b, 1.0) for d in ("quick", "slow") for a, b in ((d, HOST), (HOST, d)))
    graph = clusters([4], heavy=1, light=1)
    seconds = np.tile([1.0, 2.0, 9.0], (4, 1))
    rules = Constraints(pins=(Rule("op1$", "cpu"),))
    problem = problem_of(graph, Cluster(devices, links), seconds, constraints=rules)
    net = build_hypergraph(problem, build_packing_instance(problem), list_working_devices(problem))
    assert net.node.tolist() == [0, 2, 3] and net.devices.tolist() == [0, 1]
    assert net.share == pytest.approx([2 / 3, 1 / 3])
    for name in NAMES:
        proposal = run_placer(registry.create(name), problem, Budget())
        assert proposal.placement is not None and proposal.placement.device[1] == 2


@examples(15)
@given(problems(max_ops=6))
def test_cuts_keep_the_rules(problem: Problem) -> None:
    """Whatever is proposed is valid, in a row where it must be, and comes twice the same."""
    for name in NAMES:
        placer = registry.create(name)
        proposal = run_placer(placer, problem, Budget(seed=1))
        assert proposal.placement == run_placer(placer, problem, Budget(seed=1)).placement
        if proposal.placement is None:
            assert proposal.notes or proposal.infeasible
            if proposal.infeasible:
                assert not any(keeps_the_rules(problem, device) for device, _ in placements(problem))
            continue
        assert {violation.kind for violation in judge_placement(problem, proposal.placement).violations} <= {"calls"}
        if problem.constraints.contiguous:
            assert device_cycle(contract(problem), proposal.placement.device) is None


@pytest.mark.parametrize("name", NAMES)
def test_parts_are_made_to_fit(name: str) -> None:
    """Ten ops of which three need most bytes, on devices that hold one of them each: the parts respect that."""
    builder = GraphBuilder()
    for op in range(10):
        builder.add_op(f"op{op}", "Op", state_bytes=10 if op < 3 else 1)
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    problem = problem_of(builder.build(), machines(3, memory=13))
    proposal = run_placer(registry.create(name), problem, Budget())
    assert proposal.placement is not None and judge_placement(problem, proposal.placement).valid
    assert sorted(proposal.placement.device[:3].tolist()) == [0, 1, 2]


def test_a_missing_library_is_a_refusal_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its library a placer is named with the extra that brings it, and a comparison goes on."""
    found = importlib.util.find_spec
    gone = set(LIBRARIES.values())
    monkeypatch.setattr(registry, "find_spec", lambda name: None if name in gone else found(name))
    problem = problem_of(clusters([2, 2], heavy=1, light=1), machines(2))
    for name, library in LIBRARIES.items():
        with pytest.raises(MissingExtraError, match=rf"{name}.*{library}.*placewise\[partition\]"):
            registry.create(name)
    entries = {entry.placer: entry for entry in compare(problem, (*NAMES, "single"), Budget())}
    assert entries["single"].result is not None
    for name in NAMES:
        assert entries[name].result is None and "partition" in entries[name].refusal


@pytest.mark.filterwarnings("error")
def test_devices_without_memory_share_by_speed() -> None:
    """Two devices of which nothing may be used, and weights that need some: the shares are numbers, and no warning."""
    builder = GraphBuilder()
    for op in range(2):
        builder.use_weight(builder.add_weight(f"w{op}", shape=(4,), dtype="float32"), builder.add_op(f"op{op}", "Op"))
    cluster = machines(2, memory=0.0)
    costs = CostTable.given(np.array([[1.0, 2.0], [1.0, 2.0]]), np.zeros((0, len(cluster.class_bandwidth))))
    problem = Problem(builder.build(), cluster, costs, Objective("throughput"))
    devices = list_working_devices(problem)
    share = build_hypergraph(problem, build_packing_instance(problem), devices).share
    assert share.tolist() == pytest.approx([2 / 3, 1 / 3])
