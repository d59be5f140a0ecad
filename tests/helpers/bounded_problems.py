"""Small problems in which ops compete for devices and transfers cost much, and their best values, by trying all."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from simulate_problems import Choose

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Floats, Ints
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.simulate import evaluate, judge_placement
from placewise.simulate.bounds.intervals import NOTHING, QUICK, SOLVED, WORK, PathTimes, begin_chain


def candidates(problem: Problem) -> Ints:
    """Every placement [K, n_ops] that keeps groups together on devices that may run them."""
    homes = []
    for block in range(problem.n_blocks):
        homes.append(np.flatnonzero(problem.allowed[problem.block == block].all(axis=0)).tolist())
    rows = [np.array(choice)[problem.block] for choice in itertools.product(*homes)]
    return np.array(rows, np.int32).reshape(-1, problem.n_ops)


def best_valid(problem: Problem) -> float:
    """The least value of any placement without violations, by looking at all; inf if there is none."""
    rows = candidates(problem)
    values: Floats = evaluate(problem, rows) if len(rows) else np.zeros(0)
    for k in np.argsort(values, kind="stable").tolist():
        if judge_placement(problem, Placement(rows[k])).valid:
            return float(values[k])
    return np.inf


def best_order(problem: Problem, *, placements: int = 4, orders: int = 6) -> float:
    """The least value of the quickest few placements in some random orders, broken rules or not."""
    rows = candidates(problem)
    values, rng = evaluate(problem, rows), np.random.default_rng(problem.n_ops)
    quickest = np.argsort(values, kind="stable")[:placements].tolist()
    judged = [
        judge_placement(problem, Placement(rows[k], order=rng.permutation(problem.n_ops).astype(np.int32))).value
        for k in quickest
        for _ in range(orders)
    ]
    return min(judged, default=np.inf)


def climb(problem: Problem, *, starts: int = 2, rounds: int = 20) -> float:
    """The least value found by moving one group at a time, from one device and from random placements."""
    rng, best = np.random.default_rng(problem.n_ops), np.inf
    homes = [np.flatnonzero(problem.allowed[problem.block == b].all(axis=0)) for b in range(problem.n_blocks)]
    for start in range(starts + 1):
        at = np.array([home[0] if start == 0 else rng.choice(home) for home in homes], np.int32)
        value = np.inf
        for _ in range(rounds):
            moves = [(b, d) for b, home in enumerate(homes) for d in home.tolist()]
            rows = np.repeat(at[None], len(moves), axis=0)
            rows[np.arange(len(moves)), [b for b, _ in moves]] = [d for _, d in moves]
            values = evaluate(problem, rows[:, problem.block])
            if values.min() >= value:
                break
            at, value = rows[values.argmin()], float(values.min())
        best = min(best, value)
    return best


def tangled_problem(
    choose: Choose, execution: str, *, wide: bool = False, n_ops: tuple[int, int] | None = None
) -> Problem:
    """Ops that fork and join, forward and back, on few devices: equal accelerators, some with a slower host.

    Times are multiples of 1/4, and transfers often take as long as several ops. Memory is sometimes scarce. With `wide`
    most ops are between two others, on two accelerators with quick links. `n_ops` are the fewest and most ops.
    """
    builder, n = GraphBuilder(), choose(*(n_ops or ((6, 8) if wide else (4, 7))))
    twins = not wide and choose(0, 2) == 0
    tensors: list[int] = [builder.add_tensor(-1, nbytes=1)] if choose(0, 2) == 0 else []
    for op in range(n):
        forward = (n + 1) // 2
        group = (n - 1 - op if op >= forward else op) if twins else choose(0, 1) if choose(0, 5) == 0 else -1
        builder.add_op(f"op{op}", "Op", group=group, state_bytes=1, backward=twins and op >= forward)
        for tensor in _reads(choose, op, n, tensors, wide=wide):
            builder.add_edge(tensor, op)
        tensors.append(builder.add_tensor(op, nbytes=1, output=op == n - 1 and choose(0, 1) == 0))
    graph = builder.build()
    count, hosts = 2 if wide else choose(2, 3), choose(0, 2) % 2
    room = float(choose(2, n)) if choose(0, 3) == 0 else np.inf
    devices = tuple(Device(f"acc{k}", memory=room, call_overhead=choose(0, 1) / 4) for k in range(count))
    devices += tuple(Device(f"cpu{k}", kind="cpu") for k in range(hosts))
    transfers = "direct" if choose(0, 1) else "staged"
    names = [device.name for device in devices[:count]]
    ends = [pair for name in names for pair in ((name, HOST), (HOST, name))]
    ends += list(itertools.permutations(names, 2)) if transfers == "direct" else []
    wire = "bus" if choose(0, 3) == 0 else ""
    cluster = Cluster(devices, tuple(Link(*pair, 1.0, shared=wire) for pair in ends), transfers)  # type: ignore[arg-type]
    own = np.array([choose(1, 8) / 4 for _ in range(n)])
    slower = np.array([choose(2, 12) / 4 for _ in range(n)])
    seconds = np.stack([own] * count + [own * slower] * hosts, axis=1)
    longest = choose(0, 1) if wide else (1, 4, 12)[choose(0, 2)]
    transfer = np.zeros((graph.n_tensors, len(cluster.class_bandwidth)))
    transfer[:, 1:] = np.array([choose(0, longest) / 4 for _ in range(graph.n_tensors)])[:, None]
    objective = Objective("latency", execution=execution, memory="sum")  # type: ignore[arg-type]
    return Problem(graph, cluster, CostTable.given(seconds, transfer), objective)


def _reads(choose: Choose, op: int, n_ops: int, tensors: list[int], *, wide: bool) -> list[int]:
    """The tensors that the next op reads: recent ones, or what a fork or a join reads."""
    if not wide or op == 0:
        recent = max(0, len(tensors) - choose(2, 4))
        return [tensors[choose(recent, len(tensors) - 1)] for _ in range(choose(op > 1, 2) if tensors else 0)]
    if op == n_ops - 1:
        return [tensor for tensor in tensors if choose(0, 2)]
    return tensors[:2] if choose(0, 3) else []


def solve_intervals(problem: Problem, *, work: float = WORK, go_on: Callable[[], bool] = lambda: True) -> PathTimes:
    """What the best chain of intervals proves for each op of the longest path, by itself."""
    chain = begin_chain(problem)
    if chain is None:
        return NOTHING
    for level in (QUICK, SOLVED):
        work -= chain.improve(level, work, go_on)
    return chain.list_times()
