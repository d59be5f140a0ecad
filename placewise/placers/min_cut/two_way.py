"""two_way: the best placement on the host and one other device that take turns, by a minimum cut.

In `sequential` execution a value is a sum: the seconds of every op where it runs, and of every tensor that is needed at
the other place, once. On two devices such a sum is the value of a cut between them (Stone 1977, "Multiprocessor
scheduling with the aid of network flow algorithms"); a tensor with many readers is paid once by way of two more nodes
(Ihler, Wagner and Wagner 1993). Bytes that are too many are given a price until they fit, and any price leaves a bound
(Lagrange); what a call costs besides its ops is left out of the bound.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from ortools.graph.python import max_flow

from placewise.model.columns import Floats, Ints, distinct
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import (
    PlacerInfo,
    SearchContext,
    Stopwatch,
)
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import broken
from placewise.simulate.blocks import block_firsts, block_seconds, unshared_bytes

TOTAL = 1 << 42
"""All costs together, in units of capacity, which are rounded down."""
NEVER = 2 * TOTAL
MOST_OPS = 100_000
"""More arcs than a capacity that is never cut may have leave no room in 64 bits."""
PRICES = 24
CALL_SHARES = (0.0, 0.25, 0.5, 1.0)
"""What a tensor that crosses pays towards the call that it makes necessary, in calls."""
ROUNDED = 1 - 1e-9


class Cut(NamedTuple):
    """A placement [n_ops] and the value of the cut, in seconds, never more than its sum."""

    device: Ints
    seconds: float


class TwoWayPlacer:
    """Optimal with its proof where calls cost nothing and memory does not bind; else near it, with a bound."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="two_way",
        summary="the best placement on the host and one device that take turns, by a minimum cut",
        source="Stone, IEEE Trans. Software Engineering SE-3 (1977)",
        exact=True,
        objectives=frozenset({"latency"}),
    )

    def supports(self, problem: Problem) -> str | None:
        objective, cluster = problem.objective, problem.cluster
        if objective.kind != "latency" or objective.execution != "sequential":
            return "only where devices take turns (latency, sequential) is a value that of a cut"
        if len(cluster) != 2 or not cluster.is_host.any():
            return "a cut has two sides: the host and one other device"
        if problem.constraints.shaped:
            return "a cut keeps no shape of stages"
        if problem.n_ops > MOST_OPS:
            return f"{problem.n_ops:,} ops are too many: at most {MOST_OPS:,}"
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best of the cuts that fit, and the highest of their bounds."""
        problem, watch, price = search.problem, search.watch, search.price
        overhead = max(device.call_overhead for device in problem.cluster)
        found: list[Ints] = []
        bound, reason = 0.0, Reason.FINISHED
        try:
            for share in CALL_SHARES[: None if overhead else 1]:
                if found and watch.out:
                    reason = Reason.TIME_LIMIT
                    break
                rows, low = _priced(problem, share * overhead, watch)
                found += rows
                bound = max(bound, low if not share else 0.0)
        except KeyboardInterrupt:
            reason = Reason.INTERRUPTED
        proved = Bound(bound * ROUNDED, "minimum cut between two devices")
        fitting = [row for row in found if not broken(problem, row)]
        if not fitting and found:
            mended = repair(problem, found[-1], seed=search.budget.seed, watch=watch)
            fitting = [] if mended is None else [mended]
        if not fitting:
            return Proposal(None, proved, reason, ("no cut that was tried fits in memory",))
        values = price(np.array(fitting))
        return Proposal(Placement(fitting[int(np.argmin(values))]), proved, reason)


def _priced(problem: Problem, crossing: float, watch: Stopwatch) -> tuple[list[Ints], float]:
    """Cuts as the price of bytes rises until one fits, and the highest bound of all prices, in seconds."""
    held, capacity, first = unshared_bytes(problem), problem.capacity, block_firsts(problem)
    network = _Network(problem, crossing)

    def solved(prices: Floats) -> tuple[Ints, float, Floats]:
        cut = network.cut(held[:, None] * prices)
        used = np.bincount(cut.device[first], weights=held, minlength=2)
        rent = float((prices[prices > 0] * capacity[prices > 0]).sum())
        return cut.device, cut.seconds - rent, used - capacity

    device, bound, over = solved(np.zeros(2))
    found = [device]
    if (over <= 0).all() and not broken(problem, device):
        return found, bound
    # Where resident bytes fit and activations do not, it is the accelerator that is relieved, if there is one.
    full = int(np.argmax(over)) if (over > 0).any() else network.other
    low, high = 0.0, network.total / max(float(held[held > 0].min(initial=1.0)), 1.0)
    for _ in range(PRICES):
        if watch.out:
            break
        middle = float(np.sqrt(max(low, high * 1e-12) * high))
        device, value, over = solved(np.where(np.arange(2) == full, middle, 0.0))
        bound = max(bound, value)
        if (over <= 0).all() and not broken(problem, device):
            found.append(device)
            high = middle
        else:
            low = middle
    return found, bound


class _Network:
    """The arcs of a problem: blocks, two nodes per tensor, the host as the source and the other device as the sink."""

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
        self.wires = self._wires(out, back)

    def _wires(self, out: Floats, back: Floats) -> tuple[Ints, Ints, Floats]:
        """Maker → sent → readers costs `out`; readers → returned → maker costs `back`. Inputs and outputs are here."""
        problem, graph, n = self.problem, self.problem.graph, self.problem.n_blocks
        ids = np.arange(graph.n_tensors)
        made = graph.tensors.producer >= 0
        maker = np.where(made, problem.block[np.where(made, graph.tensors.producer, 0)], self.source)
        tensor = np.repeat(ids, np.diff(graph.consumer_offsets))
        pair = distinct(tensor * (self.sink + 1) + problem.block[graph.consumers].astype(np.int64))
        at, reader = pair // (self.sink + 1), pair % (self.sink + 1)
        kept = reader != maker[at]
        home = np.flatnonzero(graph.tensors.output & made)
        at, reader = np.concatenate((at[kept], home)), np.concatenate((reader[kept], np.full(len(home), self.source)))
        sent, returned = n + 2 * ids, n + 2 * ids + 1
        tails = (maker, returned, sent[at], reader)
        heads = (sent, maker, reader, returned[at])
        sizes = (out, back, np.full(len(at), np.inf), np.full(len(at), np.inf))
        return (
            np.concatenate(tails).astype(np.int32),
            np.concatenate(heads).astype(np.int32),
            np.concatenate(sizes),
        )

    def cut(self, rent: Floats) -> Cut:
        """The cheapest placement where blocks also pay `rent` [n_blocks, n_devices]."""
        n, blocks = self.problem.n_blocks, np.arange(self.problem.n_blocks, dtype=np.int32)
        own = self.own + rent[:, [self.host, self.other]]
        tails = np.concatenate((blocks, np.full(n, self.source, np.int32), self.wires[0]))
        heads = np.concatenate((np.full(n, self.sink, np.int32), blocks, self.wires[1]))
        sizes = np.concatenate((own[:, 0], own[:, 1], self.wires[2]))
        finite = np.isfinite(sizes)
        scale = TOTAL / (float(sizes[finite].sum()) or 1.0)
        units = np.full(len(sizes), NEVER)
        units[finite] = np.floor(sizes[finite] * scale).astype(np.int64)
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(tails, heads, units)
        status = flow.solve(self.source, self.sink)
        assert status == flow.OPTIMAL, status
        home = np.full(n, self.other, np.int32)
        near = np.array(flow.get_source_side_min_cut(), np.int64)
        home[near[near < n]] = self.host
        return Cut(home[self.problem.block], flow.optimal_flow() / scale)
