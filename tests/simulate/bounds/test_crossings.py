"""Bounds of throughput that count transfers: by hand, and against every placement of small problems."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from bounded_problems import best_valid, candidates
from published import ROOT, needs_workloads
from simulate_problems import random_problem, seeded
from soak import enough, seeds

from placewise import _native
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Bound
from placewise.readers.workload import read_workload
from placewise.simulate import judge_placement, lower_bound
from placewise.simulate.blocks import device_classes, unshared_bytes
from placewise.simulate.bounds.assignment import block_prices_bound
from placewise.simulate.bounds.bounds import possible_seconds
from placewise.simulate.bounds.crossings import _own_transfers, alone_bound, parting_bound
from placewise.simulate.bounds.host_cut import Traffic
from placewise.simulate.bounds.spreading import PricePoint, TransferProgram, _list_crossings, transfer_bound
from placewise.simulate.problem_arrays import arrays_of, find_crossing_uses

MODES = ("blocking", "overlap", "duplex")


def bound_of(find, problem: Problem, above: float = 1e-3) -> Bound:
    """One of the bounds of a problem, by itself."""
    classes = device_classes(problem)
    return find(problem, classes, possible_seconds(problem, classes), above=above)


def crossing_problem(seed: int) -> Problem:
    """A random problem, direct or staged, on private links and shared wires, in which transfers often cost much."""
    choose = seeded(50_000 + seed)
    mode, schedule = MODES[seed % 3], "gpipe" if seed % 7 == 0 else "1f1b"
    problem = random_problem(
        choose, max_ops=6, max_devices=3, objective=Objective("throughput", mode, schedule=schedule),
        rules=seed % 5 == 0, scarce=seed % 4 != 0, alike=seed % 2 == 0,
    )  # fmt: skip
    slower = replace(problem.costs, transfer_seconds=problem.costs.transfer_seconds * choose(1, 4))
    return problem.with_(costs=slower)


def test_no_placement_is_below_the_bounds():
    """Against every placement, either bound is often the largest one, and equal to the best value."""
    seen = {"bounded": 0, "parting": 0, "alone": 0, "tight": 0}
    for seed in seeds(400):
        problem = crossing_problem(seed)
        times = possible_seconds(problem, device_classes(problem))
        best = best_valid(problem)
        if best == np.inf or not np.isfinite(times).any(axis=1).all():
            continue
        bounds = {"parting": bound_of(parting_bound, problem).value, "alone": bound_of(alone_bound, problem).value}
        known = lower_bound(problem)
        assert max(known.value, *bounds.values()) <= best
        seen["bounded"] += 1
        for name, value in bounds.items():
            seen[name] += value > 0 and value >= known.value * (1 - 1e-3)
        seen["tight"] += max(bounds.values()) >= best * (1 - 1e-3)
    assert seen["bounded"] > enough(240)
    assert min(seen["parting"], seen["alone"]) > enough(40)
    assert seen["tight"] > enough(40)


def row(
    seconds: list[float], transfer: float, *, wire: str = "", transfers: str = "direct", mode: str = "blocking",
    memory: float = np.inf,
) -> Problem:  # fmt: skip
    """Ops of 1 byte in a row on two accelerators; every tensor takes `transfer` seconds over any link."""
    builder = GraphBuilder()
    for op in range(len(seconds)):
        builder.add_op(f"op{op}", "Op", state_bytes=1)
        if op:
            builder.add_edge(builder.add_tensor(op - 1, nbytes=1), op)
    names = ("acc0", "acc1")
    ends = [pair for name in names for pair in ((name, HOST), (HOST, name))]
    ends += [names, names[::-1]] if transfers == "direct" else []
    links = tuple(Link(*pair, 1.0, shared=wire) for pair in ends)
    cluster = Cluster(tuple(Device(name, memory=memory) for name in names), links, transfers)  # type: ignore[arg-type]
    table = np.zeros((len(seconds) - 1, len(cluster.class_bandwidth)))
    table[:, 1:] = transfer
    costs = CostTable.given(np.array([[own] * 2 for own in seconds]), table)
    return Problem(builder.build(), cluster, costs, Objective("throughput", mode, memory="sum"))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_slow_links_keep_everything_together(mode):
    """Four ops of 1 s, and transfers of 9 s: one device takes 4 s, and no bound without transfers exceeds 2 s."""
    problem = row([1, 1, 1, 1], 9.0, mode=mode)
    assert bound_of(parting_bound, problem, above=2.0).value == pytest.approx(4, rel=1e-3)
    assert lower_bound(problem).value == pytest.approx(4, rel=1e-3)
    assert best_valid(problem) == 4


def test_a_shared_wire_carries_both_hops():
    """Staged, a tensor of 3 s crosses a shared wire twice: six ops of 1 s stay together, which private links part."""
    assert lower_bound(row([1] * 6, 3.0, transfers="staged", wire="bus", mode="overlap")).value > 5.9
    free = row([1] * 6, 3.0, transfers="staged", mode="overlap")
    assert lower_bound(free).value == pytest.approx(3, rel=1e-3)
    assert best_valid(free) == 3


def test_scarce_memory_forces_a_slow_transfer():
    """Two bytes fit beside each other: four ops must part, however slow the link is."""
    problem = row([1, 1, 1, 1], 9.0, memory=2)
    assert lower_bound(problem).value == pytest.approx(2 + 9, rel=1e-3)
    assert best_valid(problem) == 2 + 9


def test_the_largest_op_and_its_cheapest_neighbours():
    """An op of 6 s between ops of 1 s, and tensors of 2 s: it takes both neighbours, or pays 4 s."""
    problem = row([0.5, 1, 6, 1, 0.5], 2.0)
    assert bound_of(alone_bound, problem).value == pytest.approx(6 + 1 + 1 + 0.5 + 0.5, rel=1e-9)
    assert bound_of(alone_bound, row([5, 1, 6, 1, 5], 2.0)).value == pytest.approx(6 + 2 + 2, rel=1e-9)


@needs_workloads
def test_bert_is_bounded_at_once():
    """The best known value of three layers of BERT as operators is a minimum cut around one op, to 0.1 %."""
    path = ROOT / "dnn-partitioning/throughput/OperatorGraphs/bert_l-3_inference.json"
    problem = read_workload(path, objective="throughput").problem
    assert problem is not None
    bound = lower_bound(problem)
    assert bound.method == "largest group with its transfers"
    assert 0.0219084 * 0.999 < bound.value <= 0.0219085


def test_several_devices_of_a_host_pass_tensors_for_nothing():
    """Three CPUs share three ops of 1 s in a row, whatever their tensors take elsewhere."""
    problem = row([1, 1, 1], 9.0)
    hosts = tuple(Device(f"cpu{k}", kind="cpu") for k in range(3))
    seconds = np.ones((3, 3))
    costs = CostTable.given(seconds, np.zeros((2, 1)))
    both = Problem(problem.graph, Cluster(hosts, ()), costs, problem.objective)
    assert lower_bound(both).value == pytest.approx(1, rel=1e-9)
    assert best_valid(both) == 1


def test_no_placement_is_below_the_transfers_of_parts_that_fit():
    """Against every placement, from any starting value; often above all bounds that leave transfers out."""
    bounded = larger = 0
    for seed in seeds(400):
        problem = crossing_problem(1000 + seed)
        classes = device_classes(problem)
        times = possible_seconds(problem, classes)
        best = best_valid(problem)
        if best == np.inf or not np.isfinite(times).any(axis=1).all():
            continue
        weight, room = unshared_bytes(problem), problem.capacity[classes.example] * classes.count
        plain = block_prices_bound(times, np.isfinite(times), weight, room, classes.count)
        for share in (0.3, 0.6, 0.9):
            bound = transfer_bound(problem, classes, times, above=best * share, work=0.05)
            assert bound.value <= best
            larger += bound.value > max(plain, best * share) * (1 + 1e-3)
        bounded += 1
    assert bounded > enough(240)
    assert larger > enough(32)


@pytest.mark.parametrize(
    ("mode", "transfer", "least", "best"), [("blocking", 1.0, 7.49, 8.0), ("overlap", 0.6, 5.1, 5.4)]
)
def test_ops_that_suit_the_host_pay_for_going_there(mode, transfer, least, best):
    """Ten ops in a row take 1 s on an accelerator and 2 s on the host, or the reverse: apart they would take 5 s."""
    accelerator = row([1.0] * 10, transfer)
    cluster = Cluster((Device("acc"), Device("cpu", kind="cpu")), (Link("acc", HOST, 1.0), Link(HOST, "acc", 1.0)))
    table = np.full((9, len(cluster.class_bandwidth)), transfer)
    table[:, 0] = 0
    costs = CostTable.given(np.array([[1.0, 2.0], [2.0, 1.0]] * 5), table)
    problem = Problem(accelerator.graph, cluster, costs, Objective("throughput", mode))
    found = bound_of(transfer_bound, problem, above=5.0)
    assert least < found.value <= best_valid(problem) == pytest.approx(best)


def test_parts_of_a_long_row_pass_tensors():
    """32 ops of 1 s in a row on two accelerators take 16 s each and one tensor of 4 s, paid at both ends."""
    problem = row([1.0] * 32, 4.0)
    classes = device_classes(problem)
    found = transfer_bound(problem, classes, possible_seconds(problem, classes), above=16.0)
    assert found.method == "fractional assignment and transfers"
    assert 18 < found.value <= 20
    assert transfer_bound(problem, classes, possible_seconds(problem, classes), above=20.1).value == 0


def test_bytes_that_do_not_fit_cross_a_shared_wire():
    """Of 32 ops in a row, 20 fit on a device: a tensor of 50 s crosses the bus, whatever the ops take."""
    problem = row([0.01] * 32, 50.0, memory=20, wire="bus", mode="overlap")
    classes = device_classes(problem)
    found = transfer_bound(problem, classes, possible_seconds(problem, classes), above=0.2)
    assert 25 < found.value <= 50


def test_work_and_time_end_the_search_for_trees():
    """Less work proves no more, and nothing is proved when the time is over before it begins."""
    problem = row([1.0, 2.0, 1.5, 0.5] * 8, 4.0)
    classes = device_classes(problem)
    times = possible_seconds(problem, classes)
    values = [transfer_bound(problem, classes, times, above=20.0, work=work).value for work in (0.0, 0.01, 0.2)]
    assert values[0] == 0 and values == sorted(values) and values[-1] > 20
    assert transfer_bound(problem, classes, times, above=20.0, go_on=lambda: False).value == 0


def hub(heavy: int, light: int, room: int, over: int) -> Problem:
    """An op that passes tensors of 100 s to heavy readers and of 1 s to light ones of 1 byte, over a shared wire.

    A device holds `room` bytes, `over` less than all ops need together.
    """
    builder, each = GraphBuilder(), (room + over - light) // (heavy + 1)
    builder.add_op("hub", "Op", state_bytes=room + over - light - heavy * each)
    for reader in range(heavy + light):
        builder.add_op(f"reader{reader}", "Op", state_bytes=each if reader < heavy else 1)
        builder.add_edge(builder.add_tensor(0, nbytes=1), reader + 1)
    names = ("acc0", "acc1")
    ends = [*(pair for name in names for pair in ((name, HOST), (HOST, name))), names, names[::-1]]
    links = tuple(Link(*pair, 1.0, shared="bus") for pair in ends)
    cluster = Cluster(tuple(Device(name, memory=room) for name in names), links, "direct")
    transfer = np.array([[0.0, 100.0]] * heavy + [[0.0, 1.0]] * light)
    costs = CostTable.given(np.full((1 + heavy + light, 2), 1e-6), transfer)
    return Problem(builder.build(), cluster, costs, Objective("throughput", "overlap", memory="sum"))


@pytest.mark.parametrize("heavy", [20, 799])
def test_an_excess_of_a_few_bytes_is_rounded_down(heavy):
    """Of ten million bytes, 20 do not fit: 20 light ops move for 1 s each, however the shares of a device add up."""
    problem = hub(heavy, 40, 10_000_019, 20)
    device = np.zeros(problem.n_ops, np.int32)
    device[-20:] = 1
    best = judge_placement(problem, Placement(device))
    assert best.valid and best.value == 20
    assert 19.99 < bound_of(transfer_bound, problem, above=1.0).value <= 20


@pytest.mark.parametrize(("seconds", "transfer"), [(1e-300, 1e-300), (1e-300, 1e300), (1e-320, 1.0)])
def test_no_bound_is_sought_among_seconds_without_common_scale(seconds, transfer):
    """Where quotients of seconds overflow, nothing is proved, and nothing warns."""
    problem = row([seconds] * 4, transfer, memory=2)
    assert bound_of(transfer_bound, problem, above=seconds).value == 0
    assert lower_bound(problem).value <= best_valid(problem)


def test_tensors_join_groups_and_load_them() -> None:
    """Tensor by tensor: the groups that make and read it, equal ones once, with the sum over their tensors; and what
    each group receives, or sends to others and as an output.
    """
    for seed in seeds(80):
        problem = random_problem(seeded(seed), max_ops=9, objective=Objective("throughput"))
        a, block, rng = arrays_of(problem), problem.block.tolist(), np.random.default_rng(seed)
        uses, values = find_crossing_uses(problem), rng.integers(0, 9, problem.graph.n_tensors).astype(float)
        joined: dict[int, set[int]] = {}
        for use in uses.tolist():
            tensor = int(a.consumed[use])
            joined.setdefault(tensor, {block[a.producer[tensor]]}).add(block[a.consumers[use]])
        if joined:
            found = _list_crossings(problem, uses)
            ends = found.edge_offsets.tolist()
            edges = [found.edge_nodes[i:j].tolist() for i, j in pairwise(ends)]
            assert len({tuple(edge) for edge in edges}) == len(edges) and all(edge == sorted(edge) for edge in edges)
            for tensor in range(problem.graph.n_tensors):
                edge = int(found.of[tensor])
                assert (None if edge < 0 else set(edges[edge])) == joined.get(tensor)
            sums = [sum(values[t] for t in joined if set(edge) == joined[t]) for edge in edges]
            assert found.sum_tensors(values).tolist() == sums
            at = found.node_offsets.tolist()
            for node in range(problem.n_blocks):
                near = found.node_edges[at[node] : at[node + 1]].tolist()
                assert near == [e for e, edge in enumerate(edges) if node in edge]
        reads, leaves = set[tuple[int, int]](), {t for t in range(len(values)) if a.output[t] and a.producer[t] >= 0}
        maker = np.array([block[op] if op >= 0 else -1 for op in a.producer.tolist()], np.int64)
        for use, tensor in enumerate(a.consumed.tolist()):
            if block[a.consumers[use]] != maker[tensor]:
                reads.add((tensor, block[a.consumers[use]]))
        out, into = values, values[::-1].copy()
        wanted = [
            sum(into[t] for t, b in reads if b == group)
            + sum(out[t] for t in {t for t, _ in reads} | leaves if maker[t] == group)
            for group in range(problem.n_blocks)
        ]
        pairs = np.array(sorted(reads), np.int64).reshape(-1, 2)
        traffic = Traffic(pairs[:, 0], pairs[:, 1], maker, out, into, np.array(sorted(leaves), np.int64))
        assert _own_transfers(traffic, problem.n_blocks).tolist() == wanted


def loads_of(problem: Problem, row_: np.ndarray, count: int) -> tuple[list[float], float] | None:
    """What a placement loads: device classes, transfers and wires [count], and its max-load; None if it is invalid."""
    judged, of = judge_placement(problem, Placement(row_)), device_classes(problem).of.tolist()
    n, mode, total = len(device_classes(problem).count), problem.objective.communication, [0.0] * count
    send, receive = {"blocking": (0, 0), "overlap": (n, n), "duplex": (n, 2 * n)}[mode]
    for device, use in zip(of, judged.devices, strict=True):
        total[device] += use.compute
        total[send + device] += use.send
        total[receive + device] += use.receive
    total[-1] += sum(judged.wires.values())
    return (total, judged.value) if judged.valid else None


def hosted_problem(seed: int) -> Problem:
    """A few ops that two accelerators and a host run about as quickly; tensors cost less than ops, direct or staged."""
    choose, builder = seeded(70_000 + seed), GraphBuilder()
    n, transfers = choose(2, 5), "staged" if seed % 2 else "direct"
    for op in range(n):
        builder.add_op(f"op{op}", "Op", state_bytes=1)
    for op in range(n - 1):
        tensor = builder.add_tensor(op, nbytes=1, output=choose(0, 2) == 0)
        for reader in {op + 1, choose(op + 1, n - 1)}:
            builder.add_edge(tensor, reader)
    names = ("acc0", "acc1")
    ends = [pair for name in names for pair in ((name, HOST), (HOST, name))]
    ends += [names, names[::-1]] if transfers == "direct" else []
    devices = (*(Device(name) for name in names), Device("cpu", kind="cpu"))
    cluster = Cluster(devices, tuple(Link(*pair, 1.0) for pair in ends), transfers)
    seconds = np.array([[choose(4, 8) / 4] * 2 + [choose(4, 8) / 4] for _ in range(n)])
    table = np.array([[choose(1, 4) / 8] for _ in range(n - 1)]) * (np.arange(len(cluster.class_bandwidth)) > 0)
    return Problem(builder.build(), cluster, CostTable.given(seconds, table), Objective("throughput", MODES[seed % 3]))


def test_no_loads_cost_less_than_any_prices_and_trees_say():
    """At random prices, with trees, against every placement: sharper than the bound, which is for good prices only."""
    compared = close = 0
    for seed in seeds(60):
        problem = hosted_problem(seed)
        classes, rng = device_classes(problem), np.random.default_rng(seed)
        program = TransferProgram(problem, classes, possible_seconds(problem, classes))
        program.raise_floor(best_valid(problem) * 0.8, 0.02, lambda: True)
        found = [loads_of(problem, row_, len(program.loads.count)) for row_ in candidates(problem)]
        loads, values = map(np.array, zip(*(one for one in found if one is not None), strict=True))
        for _ in range(8):
            prices = rng.random(len(program.loads.count)) * (program.loads.count > 0)
            prices /= program.loads.count @ prices
            factors = rng.random(len(program.trees)) ** 8
            proved, slope = program.weigh(PricePoint(prices, np.zeros(len(program.sides.room)), factors))
            slack = loads @ prices + slope * values - proved
            assert slack.min() >= -1e-9
            compared += bool(factors.any())
            close += bool(slack.min() < 1e-3 * proved and factors.any())
    assert compared > enough(100) and close > enough(5)


def plain_tree(
    members: list[list[int]], length: list[float], weight: list[float], root: int
) -> tuple[float, dict[int, float]]:
    """The cheapest tree from a root, per excess, over all sets of nearest nodes: by Bellman and Ford's relaxation."""
    distance, via = {root: 0.0}, dict[int, tuple[int, int]]()
    while True:
        better = [
            (distance[one] + length[edge], other, edge, one)
            for edge, nodes in enumerate(members) for one in nodes for other in nodes
            if one in distance and distance[one] + length[edge] < min(distance.get(other, 1.0), 1.0)
        ]  # fmt: skip
        if not better:
            break
        reached, other, edge, one = min(better)
        distance[other], via[other] = reached, (edge, one)
    order = sorted(distance, key=lambda node: (distance[node], node))
    found: tuple[float, float, dict[int, float]] = (1 - 1e-6, 0.0, {})
    for size in range(1, len(order) + 1):
        excess = sum(weight[node] for node in order[:size]) - 1
        used: dict[int, float] = {}
        for node in order[:size]:
            below = node
            while below != root:
                edge, below = via[below]
                used[edge] = used.get(edge, 0.0) + weight[node]
        used = {edge: min(amount, excess) for edge, amount in used.items()}
        cost = sum(length[edge] * amount for edge, amount in used.items())
        if excess > 1e-6 and cost / excess < found[0]:
            found = cost / excess, excess, used
    return found[1], found[2]


def test_trees_are_those_of_the_twin():
    """The kernel's tree carries what its own nodes weigh, and costs no less than the best over all sets of a twin."""
    grown = equal = 0
    for seed in seeds(400):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(3, 9))
        members = [sorted(rng.choice(n, int(rng.integers(2, 4)), replace=False).tolist()) for _ in range(n + 2)]
        incident = [[edge for edge, nodes in enumerate(members) if node in nodes] for node in range(n)]
        length, weight = rng.random(len(members)) * 0.6, rng.random(n) * 0.7
        root = int(rng.integers(n))
        excess, edges, carried = _native.spreading_tree(*columns(members), *columns(incident), length, weight, root)
        best, used = plain_tree(members, length.tolist(), weight.tolist(), root)
        assert (excess > 0) <= (best > 0)
        if not excess:
            continue
        grown += 1
        own = float(carried @ length[edges]) / excess
        least = sum(length[edge] * amount for edge, amount in used.items()) / best
        assert least - 1e-9 <= own < 1 and carried.max() <= excess + 1e-12
        if excess == pytest.approx(best):
            equal += 1
            assert dict(zip(edges.tolist(), carried.tolist(), strict=True)) == pytest.approx(used)
    assert grown > enough(120) and equal > enough(60)


def columns(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths as offsets and values."""
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return offsets, np.array([value for row_ in rows for value in row_], np.int32)
