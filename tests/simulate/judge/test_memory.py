"""Memory per device: the judge, the checker and the plain twin count the same bytes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from drawn_kinds import kinds_drawn
from hypothesis import given
from simulate_problems import OBJECTIVES, placed, random_placement, random_problem, seeded
from soak import examples, seeds
from split_problems import split_problem
from step_problems import step_problem
from twins import peak_memory
from twins.memory import resident_memory

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Source
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.reporting.devices import peak_line, peak_record
from placewise.simulate import device_memory, judge_placement, memory_peaks, memory_while, why_infeasible
from placewise.transform.untied import untie_weights


def starved(problem: Problem) -> Problem:
    """The problem with devices that have no memory at all, so that the checker tells what each needs."""
    devices = tuple(replace(device, memory=0.0) for device in problem.cluster)
    return problem.with_(cluster=Cluster(devices, problem.cluster.links, problem.cluster.transfers))


def agree(problem: Problem, placement: Placement) -> None:
    """Kernel, checker and twin give the same resident and peak bytes on every device."""
    resident, peak = device_memory(problem, placement)
    assert resident.tolist() == resident_memory(problem, placement.device.tolist())
    assert peak.tolist() == peak_memory(problem, placement)
    judged = judge_placement(starved(problem), placement)
    short = {v.device: v.bytes_short for v in judged.violations if v.kind == "memory"}
    for d, device in enumerate(problem.cluster):
        limited = problem.objective.memory == "live" or not device.is_host
        assert short.get(device.name, 0.0) == (peak[d] if limited else 0.0)
        assert judged.devices[d].peak == peak[d]
        assert judged.devices[d].resident == resident[d]


@examples(80)
@given(placed())
def test_three_ways_to_count_small(case):
    """On problems that hypothesis can shrink."""
    agree(*case)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_three_ways_to_count(objective):
    """On many larger problems of every objective, in both memory models, also where an op cannot run."""
    for seed in seeds(240):
        choose = seeded(seed)
        problem = random_problem(choose, max_ops=25, objective=objective, rules=seed % 3 == 0)
        placement = random_placement(problem, choose)
        if seed % 4:
            problem = kinds_drawn(problem, choose)
        if seed % 5 == 0:
            seconds = problem.costs.op_seconds.copy()
            seconds[choose(0, problem.n_ops - 1)] = math.inf
            problem = problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds))
        agree(problem, placement)


@pytest.mark.parametrize("execution", ["operator", "subgraph"])
def test_calls_and_orders_move_the_peak(execution):
    """Memory follows the calls and the order that a placement brings."""
    found = set()
    for seed in seeds(120):
        choose = seeded(seed)
        problem = random_problem(choose, max_ops=12, objective=Objective("latency", execution=execution))
        device = random_placement(problem, choose).device
        numbers = np.array([choose(0, 2) for _ in device], np.int32)
        own = Placement(device, call=numbers) if execution == "subgraph" else Placement(device, order=numbers)
        agree(problem, own)
        found.add(bool((device_memory(problem, own)[1] == device_memory(problem, Placement(device))[1]).all()))
    assert found == {True, False}


def test_ops_on_hosts_are_in_no_call():
    """Whatever numbers a placement gives to ops on hosts, times and memory stay the same."""
    for seed in seeds(120):
        choose = seeded(seed)
        problem = random_problem(choose, max_ops=12, objective=Objective("latency", execution="subgraph"))
        device = random_placement(problem, choose).device
        numbers = np.array([choose(0, 2) for _ in device], np.int32)
        elsewhere = np.where(problem.cluster.is_host[device], 2 - numbers, numbers)
        one, other = (judge_placement(problem, Placement(device, call=call)) for call in (numbers, elsewhere))
        assert one.value == other.value
        assert [use.peak for use in one.devices] == [use.peak for use in other.devices]


@examples(100)
@given(placed(objective=OBJECTIVES[0]))
def test_one_device_holds_everything(case):
    """On a single device resident bytes are all state and every storage once, whatever the placement was."""
    problem, _ = case
    weights = problem.graph.weights
    used = np.unique(problem.graph.weight_edges.value)
    storages = {int(storage) for storage in weights.storage[used]}
    largest = [int(weights.bytes[weights.storage == storage].max()) for storage in storages]
    resident, _ = device_memory(problem, Placement.on(0, problem.n_ops))
    assert resident[0] == problem.graph.ops.state_bytes.sum() + sum(largest)
    assert not resident[1:].any()


def residual(form: str = "onnx") -> Problem:
    """conv1 → norm → relu → conv2 → add (with the relu's tensor) → reshape → gelu → exp, all of 4 bytes, on a host."""
    builder = GraphBuilder()
    last = builder.add_tensor(-1, nbytes=1, name="x")
    made: dict[str, int] = {}
    chain = ("conv1", "norm", "relu", "conv2", "add", "reshape", "gelu", "exp")
    kinds = ("Conv", "BatchNormalization", "Relu", "Conv", "Add", "Reshape", "Gelu", "Exp")
    for name, kind in zip(chain, kinds, strict=True):
        op = builder.add_op(name, kind)
        builder.add_edge(last, op)
        if name == "add":
            builder.add_edge(made["relu"], op)
        if kind == "Conv":
            builder.use_weight(builder.add_weight(f"w_{name}", shape=(10,), dtype="int8"), op)
        last = made[name] = builder.add_tensor(op, nbytes=4, name=name, output=name == "exp")
    graph = builder.build().with_source(Source("m", "", form))
    cluster = Cluster((Device("cpu", kind="cpu"),), ())
    costs = CostTable.given(np.ones((graph.n_ops, 1)), transfer_seconds_of(graph, cluster))
    return Problem(graph, cluster, costs, Objective("latency", execution="sequential"))


@pytest.mark.parametrize(
    ("form", "held"),
    [("onnx", [5, 4, 4, 8, 8, 4, 8, 8]), ("torch-module", [5, 8, 8, 8, 12, 4, 8, 8])],
)
def test_results_take_the_place_of_operands(form, held):
    """Worked by hand: a model of ONNX, and one that PyTorch runs op by op."""
    problem = residual(form)
    live = memory_while(problem, Placement.on(0, problem.n_ops)) - 20
    assert live.tolist() == held


@pytest.mark.parametrize(("form", "resident"), [("onnx", 12), ("torch-module", 6)])
def test_a_weight_in_two_shapes_is_held_twice(form, resident):
    """ONNX Runtime folds the transpose of a tied embedding into a second weight; PyTorch reads one by strides."""
    builder = GraphBuilder()
    for name, shape in (("lookup", (2, 3)), ("head", (3, 2)), ("again", (2, 3))):
        op = builder.add_op(name, "MatMul")
        builder.use_weight(builder.add_weight(f"w_{name}", shape=shape, dtype="int8", storage=7), op)
        builder.add_tensor(op, nbytes=1, output=True)
    graph = untie_weights(builder.build().with_source(Source("m", "", form)))
    cluster = Cluster((Device("cpu", kind="cpu"),), ())
    costs = CostTable.given(np.ones((3, 1)), transfer_seconds_of(graph, cluster))
    problem = Problem(graph, cluster, costs, Objective("latency", execution="sequential"))
    assert device_memory(problem, Placement.on(0, 3))[0].tolist() == [resident]


def test_a_block_that_just_fits_is_not_called_infeasible():
    """With as much memory as a placement needs, nothing is proved to fit nowhere, whatever works in place."""
    for seed in seeds(300):
        choose = seeded(seed)
        problem = kinds_drawn(random_problem(choose, max_ops=8, objective=OBJECTIVES[seed % 6]), choose)
        problem = problem.with_(objective=replace(problem.objective, memory="live"))
        placement = random_placement(problem, choose)
        _, peak = device_memory(problem, placement)
        devices = tuple(replace(d, memory=float(need)) for d, need in zip(problem.cluster, peak, strict=True))
        tight = problem.with_(cluster=Cluster(devices, problem.cluster.links, problem.cluster.transfers))
        if not judge_placement(tight, placement).violations:
            assert why_infeasible(tight) == ""


def test_what_peaks_when():
    """At its peak a device holds what is named, the largest first: it adds up to the bytes that the judge counts."""
    for seed in seeds(240):
        choose = seeded(seed)
        problem = kinds_drawn(random_problem(choose, max_ops=20, objective=OBJECTIVES[seed % 6]), choose)
        placement = random_placement(problem, choose)
        _, expected = device_memory(problem, placement)
        peaks = memory_peaks(problem, placement)
        assert [peak.device for peak in peaks] == [
            name for d, name in enumerate(problem.cluster.names) if (placement.device == d).any()
        ]
        held = memory_while(problem, placement)
        for peak in peaks:
            d = problem.cluster.names.index(peak.device)
            sizes = [part.bytes for part in peak.held]
            assert sum(sizes) == peak.bytes == expected[d]
            assert sizes == sorted(sizes, reverse=True)
            assert held[problem.graph.ops.name.index(peak.op)] == peak.bytes
            assert placement.device[problem.graph.ops.name.index(peak.op)] == d


@pytest.mark.parametrize(
    ("memory", "order", "first"), [("live", [1, 0], "b"), ("live", [0, 1], "a"), ("sum", [1, 0], "a")]
)
def test_of_equal_peaks_the_first_that_runs_is_named(memory, order, first):
    """Two ops that make 4 bytes each which nobody reads; where tensors do not count, every op holds as much."""
    builder = GraphBuilder()
    for name in "ab":
        builder.add_tensor(builder.add_op(name, "Op", state_bytes=1), nbytes=4)
    cluster = Cluster((Device("cpu", kind="cpu"),))
    objective = Objective("latency", execution="operator", memory=memory)
    problem = Problem(builder.build(), cluster, CostTable.given(np.ones((2, 1)), np.zeros((2, 1))), objective)
    (peak,) = memory_peaks(problem, Placement(np.zeros(2, np.int32), order=np.array(order, np.int32)))
    assert (peak.op, peak.bytes) == (first, 6.0 if memory == "live" else 2.0)


def test_stages_and_steps_have_no_peak_of_an_op():
    """Where ops may be split, and for a training step, the judge says what the stages hold."""
    for problem in (split_problem(3), step_problem(5)):
        assert memory_peaks(problem, Placement.on(0, problem.n_ops)) == ()


def test_memory_of_an_order_is_its_own():
    """What is known of the same devices without an order does not count: b before a holds a's tensor no more."""
    builder = GraphBuilder()
    for name in "abc":
        builder.add_op(name, "Op", state_bytes=0)
    builder.add_edge(builder.add_tensor(0, nbytes=4), 2)
    builder.add_tensor(1, nbytes=8)
    cluster = Cluster((Device("cpu", kind="cpu"),))
    objective = Objective("latency", execution="operator")
    problem = Problem(builder.build(), cluster, CostTable.given(np.ones((3, 1)), np.zeros((2, 1))), objective)
    rows = [Placement(np.zeros(3, np.int32), order=np.array(order, np.int32)) for order in ([1, 0, 2], [0, 1, 2])]
    peaks = [device_memory(problem, row)[1].tolist() for row in (rows[0], Placement(rows[0].device), *rows)]
    assert peaks[0] == peaks[2] == [8.0] and peaks[1] in ([8.0], [12.0]) and peaks[3] == [12.0]


def test_the_peak_of_the_residual_block():
    """Worked by hand: the second convolution is the first op during which eight bytes of tensors are there."""
    (peak,) = memory_peaks(residual(), Placement.on(0, 8))
    assert (peak.device, peak.op, peak.bytes) == ("cpu", "conv2", 28.0)
    assert [(part.kind, part.name, part.bytes) for part in peak.held] == [
        ("weight", "w_conv1", 10.0), ("weight", "w_conv2", 10.0),
        ("tensor", "conv2", 4.0), ("tensor", "relu", 4.0),
    ]  # fmt: skip
    said = "cpu holds most, 28 B, while conv2 runs: weights 20 B (w_conv1 10 B, w_conv2 10 B); tensors 8 B"
    assert peak_line(peak) == f"{said} (conv2 4 B, relu 4 B)"
    assert peak_record(peak)["tensors"] == 8.0


def test_a_tensor_from_elsewhere_is_held_from_the_moment_it_is_made():
    """a runs for 1 s; on the other device b runs until 0.5 s, c until 1.25 s, and d reads a: held from c on."""
    builder = GraphBuilder()
    for name in "abcd":
        builder.add_op(name, "Op", state_bytes=0)
    builder.add_edge(builder.add_tensor(0, nbytes=8), 3)
    links = [Link(*ends, 1.0) for ends in itertools.permutations(("x", "y", HOST), 2)]
    cluster = Cluster((Device("x"), Device("y")), tuple(links), "direct")
    seconds = np.repeat([[1.0], [0.5], [0.75], [1.0]], 2, axis=1)
    costs = CostTable.given(seconds, np.array([[0.0, 1.0]]))
    problem = Problem(builder.build(), cluster, costs, Objective("latency", execution="operator"))
    held = memory_while(problem, Placement(np.array([0, 1, 1, 1], np.int32), order=np.arange(4, dtype=np.int32)))
    assert held.tolist() == [8.0, 0.0, 8.0, 8.0]


def test_tied_weights_have_the_name_of_the_largest():
    """Two views of a storage of 8 bytes, the smaller used first, and a weight of 3: 11 bytes in two items."""
    builder = GraphBuilder()
    views = [builder.add_weight(name, shape=(size,), dtype="int8", storage=storage)
             for name, size, storage in (("part", 2, 0), ("whole", 8, 0), ("other", 3, 1))]  # fmt: skip
    for op, weight in enumerate(views):
        builder.use_weight(weight, builder.add_op("abc"[op], "Op", state_bytes=0))
    cluster = Cluster((Device("cpu", kind="cpu"),))
    problem = Problem(builder.build(), cluster, CostTable.given(np.ones((3, 1)), np.zeros((0, 1))), Objective())
    (peak,) = memory_peaks(problem, Placement.on(0, 3))
    assert [(part.kind, part.name, part.bytes) for part in peak.held] == [
        ("weight", "whole", 8),
        ("weight", "other", 3),
    ]
