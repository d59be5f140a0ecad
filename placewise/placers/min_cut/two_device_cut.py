"""The best placement on the host and one other device that take turns: the method `two_way` of `min_cut`.

In `sequential` execution a value is a sum: the seconds of every op where it runs, and the seconds of every tensor that
the other device needs, once. On two devices such a sum is the value of a cut between them (Stone 1977, "Multiprocessor
scheduling with the aid of network flow algorithms"). Two extra nodes per tensor make a tensor with many readers cost
once (Ihler, Wagner and Wagner 1993). If memory is exceeded, bytes get a price that rises until they fit; every price
still gives a bound (Lagrange). Call overheads are left out of the bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from ortools.graph.python import max_flow

from placewise.model.columns import Floats, Ints, distinct
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import SearchContext, Stopwatch
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate.blocks import block_firsts, block_seconds, unshared_bytes

TOTAL = 1 << 42
"""All costs together, in units of arc capacity; costs are rounded down."""
NEVER = 2 * TOTAL
MAX_OPS = 100_000
"""With more ops, arcs that are never cut would overflow 64 bits."""
PRICES = 24
CALL_SHARES = (0.0, 0.25, 0.5, 1.0)
"""What a crossing tensor pays towards the call that it causes, in calls."""
ROUNDED = 1 - 1e-9


class TwoDeviceCut(NamedTuple):
    """A placement [n_ops] and the value of its cut in seconds, a lower bound on its latency."""

    device: Ints
    seconds: float


def explain_cut_refusal(problem: Problem) -> str | None:
    """None, or why the best placement is no minimum cut between two devices."""
    objective, cluster = problem.objective, problem.cluster
    if objective.kind != "latency" or objective.execution != "sequential":
        return "a value is that of a cut only if devices take turns (latency, sequential)"
    if len(cluster) != 2 or not cluster.is_host.any():
        return "a cut has two sides: the host and one other device"
    if problem.constraints.shaped:
        return "a cut keeps no shape of stages"
    if problem.n_ops > MAX_OPS:
        return f"{problem.n_ops:,} ops are too many: at most {MAX_OPS:,}"
    return None


def propose_two_device_cut(search: SearchContext) -> Proposal:
    """The best of the cuts that fit, and the highest of their bounds."""
    problem, watch = search.problem, search.watch
    overhead = max(device.call_overhead for device in problem.cluster)
    candidates: list[Ints] = []
    bound, reason = 0.0, Reason.FINISHED
    try:
        for share in CALL_SHARES[: None if overhead else 1]:
            if candidates and watch.out:
                reason = Reason.TIME_LIMIT
                break
            rows, low = _search_prices(problem, share * overhead, watch)
            candidates += rows
            bound = max(bound, low if not share else 0.0)
    except KeyboardInterrupt:
        reason = Reason.INTERRUPTED
    proved = Bound(bound * ROUNDED, "minimum cut between two devices")
    fitting = [row for row in candidates if not find_broken_rule(problem, row)]
    if not fitting and candidates:
        repaired = repair(problem, candidates[-1], seed=search.budget.seed, watch=watch)
        fitting = [] if repaired is None else [repaired]
    if not fitting:
        return Proposal(None, proved, reason, ("no cut that was tried fits in memory",))
    values = search.price(np.array(fitting))
    return Proposal(Placement(fitting[int(np.argmin(values))]), proved, reason)


def _search_prices(problem: Problem, crossing: float, watch: Stopwatch) -> tuple[list[Ints], float]:
    """Cuts at rising prices of bytes until one fits, and the highest bound of all prices, in seconds."""
    size, capacity, first = unshared_bytes(problem), problem.capacity, block_firsts(problem)
    network = _TwoDeviceNetwork(problem, crossing)

    def solve(prices: Floats) -> tuple[Ints, float, Floats]:
        cut = network.cut(size[:, None] * prices)
        used = np.bincount(cut.device[first], weights=size, minlength=2)
        rent = float((prices[prices > 0] * capacity[prices > 0]).sum())
        return cut.device, cut.seconds - rent, used - capacity

    device, bound, over = solve(np.zeros(2))
    cuts = [device]
    if (over <= 0).all() and not find_broken_rule(problem, device):
        return cuts, bound
    # If resident bytes fit and activations do not, the accelerator's bytes get the price.
    full = int(np.argmax(over)) if (over > 0).any() else network.other
    low, high = 0.0, network.total / max(float(size[size > 0].min(initial=1.0)), 1.0)
    for _ in range(PRICES):
        if watch.out:
            break
        middle = float(np.sqrt(max(low, high * 1e-12) * high))
        device, value, over = solve(np.where(np.arange(2) == full, middle, 0.0))
        bound = max(bound, value)
        if (over <= 0).all() and not find_broken_rule(problem, device):
            cuts.append(device)
            high = middle
        else:
            low = middle
    return cuts, bound


class _TwoDeviceNetwork:
    """The flow network of a problem: blocks, two nodes per tensor, the host as source, the other device as sink."""

    def __init__(self, problem: Problem, crossing: float) -> None:
        self.problem = problem
        cluster, graph, n = problem.cluster, problem.graph, problem.n_blocks
        self.host = int(np.flatnonzero(cluster.is_host)[0])
        self.other = 1 - self.host
        here, there = cluster.location[[self.host, self.other]].tolist()
        out = problem.costs.transfer_seconds[:, cluster.link_class[here, there]] + crossing
        back = problem.costs.transfer_seconds[:, cluster.link_class[there, here]] + crossing
        self.own = block_seconds(problem, np.array([self.host, self.other]))
        finite = self.own[np.isfinite(self.own)]
        self.total = float(finite.sum() + out.sum() + back.sum()) or 1.0
        self.source, self.sink = n + 2 * graph.n_tensors, n + 2 * graph.n_tensors + 1
        self.arcs = self._list_arcs(out, back)

    def _list_arcs(self, out: Floats, back: Floats) -> tuple[Ints, Ints, Floats]:
        """Producer → sent → readers costs `out`; readers → returned → producer costs `back`. The host keeps outputs."""
        problem, graph, n = self.problem, self.problem.graph, self.problem.n_blocks
        ids = np.arange(graph.n_tensors)
        produced = graph.tensors.producer >= 0
        producer = np.where(produced, problem.block[np.where(produced, graph.tensors.producer, 0)], self.source)
        tensor = np.repeat(ids, np.diff(graph.consumer_offsets))
        pair = distinct(tensor * (self.sink + 1) + problem.block[graph.consumers].astype(np.int64))
        at, reader = pair // (self.sink + 1), pair % (self.sink + 1)
        kept = reader != producer[at]
        outputs = np.flatnonzero(graph.tensors.output & produced)
        at, reader = (
            np.concatenate((at[kept], outputs)),
            np.concatenate((reader[kept], np.full(len(outputs), self.source))),
        )
        sent, returned = n + 2 * ids, n + 2 * ids + 1
        tails = (producer, returned, sent[at], reader)
        heads = (sent, producer, reader, returned[at])
        sizes = (out, back, np.full(len(at), np.inf), np.full(len(at), np.inf))
        return (
            np.concatenate(tails).astype(np.int32),
            np.concatenate(heads).astype(np.int32),
            np.concatenate(sizes),
        )

    def cut(self, rent: Floats) -> TwoDeviceCut:
        """The cheapest placement where blocks also pay `rent` [n_blocks, n_devices]."""
        n, blocks = self.problem.n_blocks, np.arange(self.problem.n_blocks, dtype=np.int32)
        own = self.own + rent[:, [self.host, self.other]]
        tails = np.concatenate((blocks, np.full(n, self.source, np.int32), self.arcs[0]))
        heads = np.concatenate((np.full(n, self.sink, np.int32), blocks, self.arcs[1]))
        sizes = np.concatenate((own[:, 0], own[:, 1], self.arcs[2]))
        finite = np.isfinite(sizes)
        scale = TOTAL / (float(sizes[finite].sum()) or 1.0)
        units = np.full(len(sizes), NEVER)
        units[finite] = np.floor(sizes[finite] * scale).astype(np.int64)
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(tails, heads, units)
        status = flow.solve(self.source, self.sink)
        assert status == flow.OPTIMAL, status
        assignment = np.full(n, self.other, np.int32)
        near = np.array(flow.get_source_side_min_cut(), np.int64)
        assignment[near[near < n]] = self.host
        return TwoDeviceCut(assignment[self.problem.block], flow.optimal_flow() / scale)
