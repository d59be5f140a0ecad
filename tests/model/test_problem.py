"""Clusters, cost tables, problems and placements: what they derive, and what they refuse."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from placewise.errors import ClusterError, CostError, InputError, PlanError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule, cached_per_problem


def star(*names: str, transfers: str = "staged", bandwidth: float = 1e9) -> Cluster:
    """Accelerators and a CPU, each accelerator linked to host memory."""
    devices = (*(Device(name, memory=100) for name in names), Device("cpu", kind="cpu"))
    links = [Link(a, b, bandwidth, 1e-6) for name in names for a, b in ((name, HOST), (HOST, name))]
    return Cluster(devices, tuple(links), transfers)  # type: ignore[arg-type]


def chain(n: int = 3) -> Graph:
    """x0 → x1 → …, scopes layer.0, layer.1, …"""
    builder = GraphBuilder()
    for i in range(n):
        op = builder.add_op(f"x{i}", "Conv" if i % 2 else "Relu", scope=f"layer.{i}", state_bytes=10)
        if i:
            builder.add_edge(i - 1, op)
        builder.add_tensor(op, nbytes=1000)
    return builder.build()


def problem(graph: Graph, cluster: Cluster, **changes: object) -> Problem:
    """Every op takes a second on every device."""
    costs = CostTable.given(np.ones((graph.n_ops, len(cluster))), transfer_seconds_of(graph, cluster))
    return Problem(graph, cluster, costs, **changes)  # type: ignore[arg-type]


def test_locations_and_link_classes() -> None:
    """Host devices share one location; equal links share a class; a link that is not there goes through the host."""
    cluster = star("a", "b", transfers="direct")
    assert cluster.location.tolist() == [0, 1, 3]
    home, across = cluster.link_class[0, 3], cluster.link_class[0, 1]
    assert cluster.link_class[3, 1] == home != across
    assert cluster.class_bandwidth[[home, across]].tolist() == [1e9, pytest.approx(0.5e9)]
    assert cluster.class_latency[[home, across]].tolist() == [1e-6, pytest.approx(2e-6)]
    assert len(set(cluster.queue[cluster.queue >= 0].tolist())) == 6
    assert star("a", "b").link_class[0, 1] == 0


def test_shared_wires_share_a_queue() -> None:
    """Links with one name are one wire."""
    links = tuple(Link(*pair, 1e9, shared="bus") for pair in (("a", HOST), (HOST, "a"), ("b", HOST), (HOST, "b")))
    cluster = Cluster((Device("a"), Device("b")), links)
    assert cluster.wires == ("bus",)
    assert set(cluster.queue[cluster.queue >= 0].tolist()) == {0}


def test_a_way_through_the_host_over_two_wires_is_refused() -> None:
    """Halves that share one wire load it; two wires need a link for the pair, which then says what it loads."""
    up = [Link(name, HOST, 1.0, shared="up") for name in "ab"]
    for shared, wire in (("", "up"), ("up", "up")):
        down = [Link(HOST, name, 1.0, shared=shared) for name in "ab"]
        cluster = Cluster((Device("a"), Device("b")), (*up, *down), "direct")
        assert cluster.wires[cluster.wire[0, 1]] == wire
    down = [Link(HOST, name, 1.0, shared="down") for name in "ab"]
    with pytest.raises(ClusterError, match=r"'up' and 'down'.*add a link from a to b"):
        Cluster((Device("a"), Device("b")), (*up, *down), "direct")
    assert Cluster((Device("a"), Device("b")), (*up, *down)).wire[0, 1] == -1
    pairs = [Link("a", "b", 1.0, shared="down"), Link("b", "a", 1.0)]
    cluster = Cluster((Device("a"), Device("b")), (*up, *down, *pairs), "direct")
    assert cluster.wires[cluster.wire[0, 1]] == "down" and cluster.wire[1, 0] == -1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Device("host"), "cannot be called"),
        (lambda: Device("a", memory=-1), "memory is -1"),
        (lambda: Device("a", memory=math.nan), "memory is nan"),
        (lambda: Device("a", peak_flops={"float32": 0}), "peak_flops"),
        (lambda: Device("a", streams=0), "streams"),
        (lambda: Link("a", "b", 0), "bandwidth is 0"),
        (lambda: Link("a", "b", 1, -1), "latency is -1"),
        (lambda: Cluster(()), "at least one device"),
        (lambda: Cluster((Device("a"), Device("a"))), "both called 'a'"),
        (lambda: Cluster((Device("a"),), (Link("a", "z", 1),)), "'z', which does not exist"),
        (lambda: Cluster((Device("a"), Device("b")), (), "direct"), "nothing links a to"),
        (lambda: star("a").index("z"), "no device 'z'"),
    ],
)
def test_impossible_clusters_are_refused(make: object, message: str) -> None:
    """Each wrong figure or name is refused by a sentence that names it."""
    with pytest.raises(ClusterError, match=message):
        make()  # type: ignore[operator]


def test_transfer_times_follow_from_bytes() -> None:
    """Latency + bytes / bandwidth, nothing inside one memory, and unknown sizes are an error where they matter."""
    cluster = star("a")
    seconds = transfer_seconds_of(chain(), cluster)
    assert seconds[0].tolist() == [0.0, pytest.approx(1e-6 + 1e-6)]
    builder = GraphBuilder()
    builder.add_op("a", "Relu")
    builder.add_op("b", "Relu")
    builder.add_edge(builder.add_tensor(0, name="mystery"), 1)
    with pytest.raises(CostError, match="'mystery' is unknown"):
        transfer_seconds_of(builder.build(), cluster)


@pytest.mark.parametrize("value", [math.nan, -1.0])
def test_bad_costs_are_named(value: float) -> None:
    """A NaN or negative time is refused with op and device."""
    graph, cluster = chain(), star("a")
    seconds = np.ones((3, 2))
    seconds[1, 0] = value
    costs = CostTable.given(seconds, transfer_seconds_of(graph, cluster))
    with pytest.raises(CostError, match="op 'x1' on a is"):
        Problem(graph, cluster, costs)


def test_rules_become_masks() -> None:
    """Pins, forbidden pairs, unsupported kinds, unavailable devices and infinite times close devices to ops."""
    cluster = star("a", "b")
    rules = Constraints(pins=(Rule(r"layer\.0", "cpu"),), forbidden=(Rule("^x2$", "a"),))
    assert problem(chain(), cluster, constraints=rules).allowed.tolist() == [
        [False, False, True], [True, True, True], [False, True, True],
    ]  # fmt: skip
    picky = Cluster(
        (Device("a", unsupported=frozenset({"Conv"})), Device("b", available=False), Device("cpu", "cpu")),
        cluster.links,
    )
    assert problem(chain(), picky).allowed.tolist() == [[True, False, True], [False, False, True], [True, False, True]]


def test_rules_that_match_nothing_are_refused() -> None:
    """A pattern without an op, a broken pattern and an unknown device are errors."""
    for rule, message in (
        (Rule("zzz", "a"), "matches 'zzz'"),
        (Rule("(", "a"), "regular expression"),
        (Rule("x", "q"), "no device 'q'"),
    ):
        with pytest.raises(InputError, match=message):
            problem(chain(), star("a"), constraints=Constraints(pins=(rule,)))


def test_capacity_counts_reserved_and_headroom() -> None:
    """Usable bytes are memory − reserved − headroom on accelerators; the sum model does not limit hosts."""
    cluster = Cluster((Device("a", memory=100, reserved=10), Device("cpu", "cpu", memory=50)), star("a").links)
    live = problem(chain(), cluster, constraints=Constraints(headroom=0.2))
    assert live.capacity.tolist() == [70, 50]
    assert problem(chain(), cluster, objective=Objective(memory="sum")).capacity.tolist() == [90, math.inf]


def test_blocks_number_groups_by_first_op() -> None:
    """Ops of a group share a block, others have their own."""
    builder = GraphBuilder()
    for name, group in (("a", -1), ("b", 5), ("c", -1), ("d", 5)):
        builder.add_op(name, "Add", group=group)
    assert problem(builder.build(), star("a")).block.tolist() == [0, 1, 2, 1]


def test_unknown_objectives_are_refused() -> None:
    """A word that is no objective, mode or execution names the ones that are."""
    for wrong in ({"kind": "speed"}, {"communication": "loud"}, {"execution": "magic"}, {"memory": "guess"}):
        with pytest.raises(InputError, match="choose from"):
            Objective(**wrong)  # type: ignore[arg-type]


def test_placements_by_name() -> None:
    """Names go in and out; a missing op, an unknown op and an unknown device are refused."""
    graph, cluster = chain(2), star("a")
    placement = Placement.named(graph, cluster, {"x0": "a", "x1": "cpu"})
    assert placement.device.tolist() == [0, 1]
    assert placement.assignment(graph, cluster) == {"x0": "a", "x1": "cpu"}
    assert placement == Placement(np.array([0, 1]))
    for wrong, message in (
        ({"x0": "a"}, "'x1' has no device"),
        ({"q": "a"}, "no op 'q'"),
        ({"x0": "a", "x1": "z"}, "no device 'z'"),
    ):
        with pytest.raises(PlanError, match=message):
            Placement.named(graph, cluster, wrong)


def test_links_too_slow_for_a_number_are_refused() -> None:
    """Bytes over a bandwidth next to nothing are more seconds than a number holds: one sentence, and no warning."""
    builder = GraphBuilder()
    builder.add_tensor(builder.add_op("a", "A"), nbytes=1 << 40, output=True)
    links = tuple(Link(*ends, 1e-320) for ends in (("d0", HOST), (HOST, "d0"), ("d1", HOST), (HOST, "d1")))
    graph, cluster = builder.build(), Cluster((Device("d0", "gpu", 1.0), Device("d1", "gpu", 1.0)), links)
    costs = CostTable.given(np.ones((1, 2)), transfer_seconds_of(graph, cluster))
    with pytest.raises(CostError, match=r"the transfer time of tensor .* is inf"):
        Problem(graph, cluster, costs, Objective("latency"))


def test_threads_share_what_is_derived() -> None:
    """Of eight threads that ask at once, one works it out, and the others wait for the same object."""
    worked = []

    @cached_per_problem
    def derive(problem: Problem) -> object:
        worked.append(problem)
        time.sleep(0.05)
        return object()

    first, second = (problem(chain(), star("a")) for _ in range(2))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(derive, [first] * 8))
    assert len(worked) == 1 and all(value is found[0] for value in found)
    assert derive(second) is not found[0] and len(worked) == 2
