"""The checker: every rule broken once, and the words and bytes that it answers with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.result import Violation
from placewise.simulate import judge_placement, why_infeasible
from placewise.simulate.check.check import check_placement

GIB = 2**30


def chain(
    *,
    memory: float = 1e12,
    constraints: Constraints | None = None,
    objective: Objective | None = None,
    group: tuple[int, ...] = (-1, -1, -1, -1),
    state: tuple[int, ...] = (0, 0, 0, 0),
    backward: tuple[bool, ...] = (False, False, False, False),
) -> Problem:
    """Four ops in a chain, tensors of 1 GiB, on acc0, acc1 (which cannot run softmax) and cpu; 1 s for everything."""
    builder = GraphBuilder()
    tensor = -1
    for op, kind in enumerate(("MatMul", "Add", "Softmax", "MatMul")):
        builder.add_op(
            "abcd"[op], kind, scope=f"layer.{op}", group=group[op], state_bytes=state[op], backward=backward[op]
        )
        if op:
            builder.add_edge(tensor, op)
        tensor = builder.add_tensor(op, nbytes=GIB)
    devices = (
        Device("acc0", memory=memory),
        Device("acc1", memory=memory, unsupported=frozenset({"Softmax"})),
        Device("cpu", kind="cpu", memory=memory),
    )
    links = tuple(Link(*pair, 1.0) for name in ("acc0", "acc1") for pair in ((name, HOST), (HOST, name)))
    cluster = Cluster(devices, links)
    transfer = np.ones((4, len(cluster.class_bandwidth)))
    transfer[:, 0] = 0
    return Problem(
        builder.build(),
        cluster,
        CostTable.given(np.ones((4, 3)), transfer),
        objective or Objective("throughput"),
        constraints or Constraints(),
    )


def broken(problem: Problem, *device: int, call: list[int] | None = None) -> list[Violation]:
    return list(
        judge_placement(problem, Placement(np.array(device), None if call is None else np.array(call))).violations
    )


def test_nothing_is_wrong():
    """A placement that keeps every rule has no violation."""
    assert broken(chain(constraints=Constraints(contiguous=True)), 0, 0, 2, 2) == []


@pytest.mark.parametrize(
    ("device", "message"),
    [((0, 0, 0), "it places 3 ops, the graph has 4"), ((0, -1, 3, 0), "ops 'b', 'c' on no device")],
)
def test_coverage(device, message):
    """An op without a device, or no entry for it at all; nothing else is looked at."""
    found = check_placement(chain(), Placement(np.array(device)), None, None)
    assert [(violation.kind, violation.message) for violation in found] == [("coverage", message)]


def test_support():
    """An op of a kind that the device does not have."""
    (found,) = broken(chain(), 0, 0, 1, 1)
    assert found == Violation("support", "op 'c' on acc1, which cannot run it", "acc1", ("c",))


def test_support_by_cost():
    """An op that takes for ever on a device."""
    problem = chain()
    seconds = problem.costs.op_seconds.copy()
    seconds[1, 2] = np.inf
    (found,) = broken(problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds)), 2, 2, 2, 2)
    assert (found.kind, found.message) == ("support", "op 'b' on cpu, which cannot run it")


def test_pins():
    """An op away from where a pin sends it, one where a rule forbids it, one on a device that may not be used."""
    rules = Constraints(pins=(Rule(r"layer\.[01]", "acc0"),), forbidden=(Rule("^d$", "cpu"),))
    assert [(v.message, v.device, v.ops) for v in broken(chain(constraints=rules), 1, 0, 2, 2)] == [
        ("op 'a' on acc1, pinned to acc0", "acc1", ("a",)),
        ("op 'd' on cpu, where a rule forbids it", "cpu", ("d",)),
    ]
    problem = chain()
    devices = (
        problem.cluster.devices[0],
        replace(problem.cluster.devices[1], available=False),
        problem.cluster.devices[2],
    )
    closed = problem.with_(cluster=Cluster(devices, problem.cluster.links))
    (found,) = broken(closed, 0, 1, 0, 0)
    assert (found.kind, found.message) == ("pin", "op 'b' on acc1, which may not be used")


def test_colocation():
    """A group on two devices, and one that is together."""
    (found,) = broken(chain(group=(7, 7, 3, 3)), 0, 2, 0, 0)
    assert found == Violation("colocation", "ops 'a', 'b' belong together and are on acc0, cpu", ops=("a", "b"))


def test_contiguity():
    """Stages that wait for each other in a circle, only where a chain is asked for."""
    (found,) = broken(chain(constraints=Constraints(contiguous=True)), 0, 2, 0, 0)
    assert found.kind == "contiguity"
    assert found.message in ("the stages are no chain: acc0 → cpu → acc0", "the stages are no chain: cpu → acc0 → cpu")
    assert broken(chain(), 0, 2, 0, 0) == []


def test_convexity():
    """A path that leaves a device and comes back, with its ops; a circle of devices that no path makes is convex."""
    rules = Constraints(convex=True)
    (found,) = broken(chain(constraints=rules), 0, 2, 2, 0)
    assert (found.kind, found.device, found.ops) == ("convexity", "acc0", ("a", "b", "c", "d"))
    assert found.message == (
        "the ops on acc0 are not convex: a path leaves them at 'a' and comes back at 'd', by way of ops 'b', 'c'"
    )
    assert broken(chain(constraints=rules), 0, 0, 2, 2) == []
    training = {"group": (0, 1, 1, 0), "backward": (False, False, True, True)}
    assert broken(chain(constraints=rules, **training), 0, 2, 2, 0) == []


def test_convex_sets_may_need_each_other():
    """a → b and c → d, with b and c on one device: convex, and no chain."""
    builder = GraphBuilder()
    for name in "abcd":
        builder.add_op(name, "Op")
    for tail in (0, 2):
        builder.add_edge(builder.add_tensor(tail, nbytes=1), tail + 1)
    graph, cluster = builder.build(), Cluster((Device("x", kind="cpu"), Device("y", kind="cpu")))
    table = CostTable.given(np.ones((4, 2)), np.zeros((2, 1)))
    for rules, kinds in ((Constraints(convex=True), []), (Constraints(contiguous=True), ["contiguity"])):
        problem = Problem(graph, cluster, table, Objective("throughput"), rules)
        assert [violation.kind for violation in broken(problem, 0, 1, 1, 0)] == kinds


def test_contiguity_of_a_training_step():
    """Backward ops follow their groups: forward and backward on the same two devices are a chain."""
    training = {"group": (0, 1, 1, 0), "backward": (False, False, True, True)}
    assert broken(chain(constraints=Constraints(contiguous=True), **training), 0, 2, 2, 0) == []


@pytest.mark.parametrize(("memory", "short"), [(3 * GIB, 0), (3 * GIB - 1, 1), (GIB, 2 * GIB)])
def test_memory_of_a_device(memory, short):
    """Resident bytes and live tensors of acc0: 1 GiB of state, then two tensors at once; short to the byte."""
    problem = chain(memory=memory, state=(GIB, 0, 0, 0))
    found = [v for v in broken(problem, 0, 0, 2, 2) if v.device == "acc0"]
    assert [violation.bytes_short for violation in found] == ([short] if short else [])
    if short == 1:
        assert found[0].message == "acc0 needs 3 GiB and may use 3 GiB: 1 B (1 bytes) short"


def test_memory_models():
    """In the model `sum` hosts are unlimited and tensors are not counted."""
    small = Objective("throughput", memory="sum")
    problem = chain(memory=GIB, state=(GIB, 1, GIB, GIB), objective=small)
    assert [(v.kind, v.device, v.bytes_short) for v in broken(problem, 0, 0, 2, 2)] == [("memory", "acc0", 1)]


def test_headroom_and_reserve():
    """Reserved bytes and the headroom are not for use; headroom is for accelerators only."""
    rules = Constraints(headroom=0.25)
    problem = chain(
        memory=4 * GIB, state=(2 * GIB, 0, 3 * GIB, 0), constraints=rules, objective=Objective("throughput")
    )
    device = replace(problem.cluster.devices[0], reserved=GIB // 2)
    cluster = Cluster((device, *problem.cluster.devices[1:]), problem.cluster.links)
    found = {v.device: v.bytes_short for v in broken(problem.with_(cluster=cluster), 0, 0, 2, 2)}
    # acc0: 2 + 2 GiB of 4 − 1 − ½; cpu: 3 GiB of state, then tensors b and c, and c and d, of 4.
    assert found == {"acc0": 1.5 * GIB, "cpu": GIB}


def test_calls_in_a_circle():
    """Two calls that need each other cannot run, and calls of their own can mend it."""
    builder = GraphBuilder()
    for name in ("a1", "b2", "b1", "a2"):
        builder.add_op(name, "Op")
    for maker, reader in ((0, 2), (1, 3)):
        builder.add_edge(builder.add_tensor(maker, nbytes=1), reader)
    problem = chain(objective=Objective(execution="subgraph"))
    graph = builder.build()
    table = CostTable.given(np.ones((4, 3)), problem.costs.transfer_seconds[:2])
    problem = problem.with_(graph=graph, costs=table)
    judged = judge_placement(problem, Placement(np.array([0, 1, 1, 0])))
    assert judged.value == np.inf
    assert [violation.kind for violation in judged.violations] == ["calls"]
    assert broken(problem, 0, 1, 1, 0, call=[0, 0, 1, 1]) == []


def test_long_lists_are_cut():
    """A message names five ops and counts the rest; the violation holds them all."""
    builder = GraphBuilder()
    for op in range(9):
        builder.add_op(f"op{op}", "Softmax")
    problem = chain()
    table = CostTable.given(np.ones((9, 3)), np.zeros((0, len(problem.cluster.class_bandwidth))))
    (found,) = broken(problem.with_(graph=builder.build(), costs=table), *[1] * 9)
    assert found.message == "ops 'op0', 'op1', 'op2', 'op3', 'op4' and 4 more on acc1, which cannot run it"
    assert len(found.ops) == 9


def test_why_nowhere():
    """A proof names the group that no device may run."""
    rules = Constraints(forbidden=(Rule("^c$", "acc0"), Rule("^c$", "cpu")))
    assert "op 'c' may run on no device" in why_infeasible(chain(constraints=rules))
    pins = Constraints(pins=(Rule("^a$", "acc0"), Rule("^b$", "acc1")))
    assert "the group of 2 ops around 'a' may run on no device" in why_infeasible(
        chain(group=(0, 0, -1, -1), constraints=pins)
    )


@pytest.mark.parametrize(
    ("memory", "needed", "said"), [("sum", 3, "3 GiB and"), ("live", 5, "5 GiB, 2 GiB of it live")]
)
def test_why_too_large(memory, needed, said):
    """A proof names the largest group, the roomiest device and the bytes that are missing; none where it fits.

    The group of a and b has 3 GiB of state, and b, while it runs, its input and its output of 1 GiB each.
    """
    known = {
        "state": (2 * GIB, GIB, 0, 0),
        "group": (0, 0, -1, -1),
        "objective": Objective("throughput", memory=memory),
        "constraints": Constraints(forbidden=(Rule("^a$", "cpu"),)),
    }
    assert why_infeasible(chain(memory=needed * GIB, **known)) == ""
    proof = why_infeasible(chain(memory=needed * GIB - 5, **known))
    assert f"around 'a' needs {said}" in proof
    assert "fits nowhere: on acc0" in proof
    assert "(5 bytes) are missing" in proof


def test_why_all_together():
    """A proof adds up what only limited devices can take."""
    objective = Objective("throughput", memory="sum")
    rules = Constraints(forbidden=(Rule(".", "cpu"),))
    problem = chain(memory=GIB, state=(GIB, GIB, 7, GIB // 2), objective=objective, constraints=rules)
    assert f"({GIB // 2 + 7} bytes)" in why_infeasible(problem)
    assert why_infeasible(problem.with_(constraints=Constraints())) == ""


def test_an_op_without_a_time_is_no_circle():
    """Where the only fault is a device that cannot run an op, nobody says that calls wait for each other."""
    builder = GraphBuilder()
    builder.add_op("a", "Op")
    links = tuple(Link(a, b, 1.0) for d in ("d0", "d1") for a, b in ((d, HOST), (HOST, d)))
    cluster = Cluster((Device("d0"), Device("d1")), links)
    costs = CostTable.given(np.array([[np.inf, 1.0]]), np.zeros((0, len(cluster.class_bandwidth))))
    problem = Problem(builder.build(), cluster, costs, Objective("latency", execution="subgraph"))
    assert [violation.kind for violation in judge_placement(problem, Placement.on(0, 1)).violations] == ["support"]


@pytest.mark.parametrize(
    ("other", "there", "back", "seconds", "why"),
    [
        (Device("twin"), 1.0, 1.0, 1.0, ""),
        (Device("twin"), 1.0, 2.0, 1.0, "their links differ"),
        (Device("twin"), 2.0, 1.0, 1.0, "their links differ"),
        (Device("twin", memory=GIB), 1.0, 1.0, 1.0, "their memory differs"),
        (Device("twin"), 1.0, 1.0, 2.0, "they differ in the ops that they may run or in how long these take"),
        (Device("twin"), 1.0, 1.0, np.inf, "they differ in the ops that they may run or in how long these take"),
        (Device("twin", kind="cpu"), 0.0, 0.0, 1.0, "one of them works in host memory"),
    ],
)
def test_a_stage_is_repeated_by_equal_devices(other, there, back, seconds, why):
    """Same ops in the same time, same memory, same links; otherwise the violation says what differs."""
    builder = GraphBuilder()
    builder.add_op("a", "Op")
    ways = [("acc", HOST, 1.0), (HOST, "acc", 1.0)] + [("twin", HOST, there), (HOST, "twin", back)] * (there > 0)
    cluster = Cluster((Device("acc"), other), tuple(Link(*way) for way in ways))
    table = CostTable.given(np.array([[1.0, seconds]]), np.zeros((0, len(cluster.class_bandwidth))))
    problem = Problem(
        builder.build(), cluster, table, Objective("throughput"), Constraints(contiguous=True, replicas=2)
    )
    stage = Placement(np.zeros(1, np.int32), replicas=np.zeros(2, np.int32))
    found = [v.message for v in judge_placement(problem, stage).violations if v.kind == "replicas"]
    assert found == ([f"twin repeats the stage of acc, and {why}"] if why else [])


def test_shared_weights_are_counted_once_on_each_device_that_uses_them():
    """Three storages of 1, 20 and 300 bytes; the first device uses the last two, twice, and the second the first."""
    builder = GraphBuilder()
    weights = [
        builder.add_weight(f"w{i}", shape=(size,), dtype="int8", storage=i) for i, size in enumerate((1, 20, 300))
    ]
    for op, uses in enumerate(((1, 2), (2,), (0,))):
        builder.add_op("abc"[op], "MatMul")
        for weight in uses:
            builder.use_weight(weights[weight], op)
    problem = chain(memory=0.0, objective=Objective("throughput", memory="sum"))
    table = CostTable.given(np.ones((3, 3)), np.zeros((0, len(problem.cluster.class_bandwidth))))
    problem = problem.with_(graph=builder.build(), costs=table)
    found = check_placement(problem, Placement(np.array([0, 0, 1], np.int32)), None, None)
    assert [(v.device, v.bytes_short) for v in found] == [("acc0", 320.0), ("acc1", 1.0)]


def test_why_on_a_device_without_memory():
    """The roomiest device that may run an op is named, even if it has no memory at all and others have plenty."""
    rules = Constraints(pins=(Rule("^a$", "acc1"),))
    problem = chain(state=(4, 0, 0, 0), objective=Objective("throughput", memory="sum"), constraints=rules)
    devices = (problem.cluster.devices[0], replace(problem.cluster.devices[1], memory=0.0), problem.cluster.devices[2])
    proof = why_infeasible(problem.with_(cluster=Cluster(devices, problem.cluster.links)))
    assert "op 'a' needs 4 B and fits nowhere: on acc1, the roomiest device that may run it, 4 B (4 bytes)" in proof


def test_an_order_of_devices_that_can_be_kept_is_no_conflict():
    """One device that runs everything keeps any order, and so do a, b on the first and c, d on the last device."""
    order = Constraints(contiguous=True, ordered=True)
    assert why_infeasible(chain(constraints=order)) == ""
    pins = tuple(Rule(f"^{name}$", device) for name, device in zip("abcd", ("acc0", "acc0", "cpu", "cpu"), strict=True))
    assert why_infeasible(chain(constraints=replace(order, pins=pins))) == ""
    back = tuple(Rule(f"^{name}$", device) for name, device in (("a", "cpu"), ("d", "acc0")))
    proof = why_infeasible(chain(constraints=replace(order, pins=back)))
    assert proof.startswith(
        "op 'd' comes after op 'a', which may run on cpu at the earliest, and may itself run on acc0"
    )


@pytest.mark.parametrize("objective", [
    Objective("throughput", "blocking"), Objective("throughput", "overlap"), Objective("throughput", "duplex"),
    Objective("latency", execution="sequential"),
], ids=str)  # fmt: skip
def test_tensors_on_their_way_have_two_copies_where_they_overlap_work(objective):
    """b of 1 GiB goes from acc0 to the CPU: its two copies at either end where transfers overlap compute, else one."""
    copies = 1 + (objective.kind == "throughput" and objective.communication != "blocking")
    problem = chain(memory=0.0, objective=objective)
    piece = np.array([0, 0, 0, 0], np.int32)
    found = check_placement(problem, Placement(np.array([0, 0, 2, 2], np.int32)), piece, None)
    # acc0 holds a beside b, and the CPU b beside c
    assert {v.device: v.bytes_short for v in found} == {"acc0": (1 + copies) * GIB, "cpu": (1 + copies) * GIB}
