"""The cheapest call that runs some ops and leaves out others: a minimum cut, in whole units rounded down.

A call is a set C of ops on one accelerator. It costs their times, each tensor that it receives (made outside, read
inside) and each tensor that it sends (made inside, read outside or an output of the model). All three are submodular in
C: the cheapest C that contains given ops and avoids others is a minimum cut (Picard and Queyranne 1980, "On the
structure of all minimum cuts"; hyperedges as in Ihler, Wagner and Wagner 1993). Resident bytes may have a price too: a
block is held as soon as one of its ops is in C.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from ortools.graph.python import max_flow

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.simulate.blocks import best_seconds, unshared_bytes

_TOTAL = 1 << 40
"""All costs together, in units; a capacity above it is never cut."""


class CallCosts(NamedTuple):
    """The least that ops and transfers can cost on any accelerator, in seconds, and the most bytes one can hold.

    `seconds` [n_ops] is inf where no accelerator may run the op; `receive`, `send` [n_tensors]; `held` [n_blocks]
    bytes whose sum over blocks never exceeds what they need.
    """

    seconds: Floats
    receive: Floats
    send: Floats
    overhead: float
    held: Floats
    room: float


def call_costs(problem: Problem) -> CallCosts:
    cluster, host = problem.cluster, problem.n_devices
    accelerators = np.flatnonzero(~cluster.is_host & problem.allowed.any(axis=0))
    ends = [host] if cluster.transfers == "staged" else [*np.flatnonzero(~cluster.is_host).tolist(), host]
    into = {int(cluster.link_class[x, d]) for d in accelerators.tolist() for x in ends if x != d}
    out = {int(cluster.link_class[d, x]) for d in accelerators.tolist() for x in ends if x != d}
    return CallCosts(
        best_seconds(problem, accelerators),
        _least(problem, into),
        _least(problem, out),
        min((cluster.devices[d].call_overhead for d in accelerators.tolist()), default=0.0),
        unshared_bytes(problem),
        float(problem.capacity[accelerators].max(initial=0.0)),
    )


def _least(problem: Problem, classes: set[int]) -> Floats:
    """The least seconds of each tensor over link classes, 0 without any."""
    if not classes:
        return np.zeros(problem.graph.n_tensors)
    least: Floats = problem.costs.transfer_seconds[:, sorted(classes)].min(axis=1)
    return least


class CheapestCall:
    """The flow network of one problem, solved for different ops inside and outside."""

    def __init__(self, problem: Problem, costs: CallCosts) -> None:
        graph, n = problem.graph, problem.n_ops
        self._block, self._costs, self._n = problem.block, costs, n
        finite = np.isfinite(costs.seconds)
        total = float(costs.seconds[finite].sum() + costs.receive.sum() + costs.send.sum())
        self._scale = _TOTAL / total if total > 0 else 1.0
        leaving = np.bincount(
            graph.tensors.producer[graph.tensors.output & (graph.tensors.producer >= 0)],
            weights=costs.send[graph.tensors.output & (graph.tensors.producer >= 0)],
            minlength=n,
        )
        self._own = np.where(finite, self._units(np.where(finite, costs.seconds, 0.0) + leaving), 2 * _TOTAL)
        tails, heads, units = self._tensor_arcs(problem)
        blocks = 2 + n + 2 * graph.n_tensors + np.arange(problem.n_blocks)
        ops = 2 + np.arange(n)
        self._flow = max_flow.SimpleMaxFlow()
        add = self._flow.add_arcs_with_capacity
        add(tails, heads, units)
        self._inside = add(np.zeros(n, np.int32), ops.astype(np.int32), np.zeros(n, np.int64))
        self._outside = add(ops.astype(np.int32), np.ones(n, np.int32), self._own)
        add(ops.astype(np.int32), blocks[problem.block].astype(np.int32), np.full(n, 2 * _TOTAL))
        self._holding = add(blocks.astype(np.int32), np.ones(len(blocks), np.int32), np.zeros(len(blocks), np.int64))

    def _units(self, seconds: Floats) -> Longs:
        return np.floor(seconds * self._scale).astype(np.int64)

    def _tensor_arcs(self, problem: Problem) -> tuple[Ints, Ints, Longs]:
        """Arcs of tensors: reader → in → maker costs a receive, maker → out → reader a send; in, out are nodes."""
        graph = problem.graph
        tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
        maker, reader = graph.tensors.producer, 2 + graph.consumers
        received = 2 + self._n + np.arange(graph.n_tensors)
        sent = received + graph.n_tensors
        made = np.flatnonzero((maker >= 0) & ~graph.tensors.output)
        never = np.full(len(tensor), 2 * _TOTAL)
        tails = (reader, received, 2 + maker[made], sent[tensor])
        heads = (received[tensor], np.where(maker >= 0, 2 + maker, 1), sent[made], reader)
        units = (never, self._units(self._costs.receive), self._units(self._costs.send[made]), never)
        return (
            np.concatenate(tails).astype(np.int32),
            np.concatenate(heads).astype(np.int32),
            np.concatenate(units).astype(np.int64),
        )

    def cheapest(self, inside: Ints, outside: Ints, *, rounds: int = 8) -> tuple[float, Bools]:
        """A lower bound in seconds on calls that run `inside`, avoid `outside` and fit in memory; and such a call.

        Blocks that do not fit beside those of `inside` are excluded. The price of bytes grows until the cheapest call
        about fits: each price gives a bound (Lagrange), less the price of the available memory. The second result is a
        call [n_ops] found on the way, one that fits if there was any. The bound is inf where `inside` does not fit by
        itself or shares an op with `outside`.
        """
        room = self._costs.room
        held = self._costs.held[np.unique(self._block[inside])].sum()
        if held > room * (1 + 1e-12) or len(np.intersect1d(inside, outside)):
            members = np.zeros(self._n, np.bool_)
            members[inside] = True
            return float("inf"), members
        forced, own = np.zeros(self._n, np.int64), self._own.copy()
        forced[inside], own[outside] = 2 * _TOTAL, 2 * _TOTAL
        own[self._too_large_beside(inside)] = 2 * _TOTAL
        self._flow.set_arcs_capacity(self._inside, forced)
        self._flow.set_arcs_capacity(self._outside, own)
        best, call = self._solve(0.0)
        low, high = (0.0, best, self._bytes(call) - room), None
        price = best / max(room, 1.0)
        for _ in range(rounds if low[2] > 0 else 0):
            value, members = self._solve(price)
            over = self._bytes(members) - room
            best = max(best, value)
            if over > 0:
                low = (price, value, over)
            else:
                high, call = (price, value, over), members
            if over == 0:
                break
            if high is None:
                price *= 4
                continue
            crossing = (high[1] - low[1] + low[0] * low[2] - high[0] * high[2]) / (low[2] - high[2])
            if not low[0] < crossing < high[0]:
                break
            price = crossing
        return best + self._costs.overhead, call

    def _too_large_beside(self, inside: Ints) -> Bools:
        """The ops [n_ops] of blocks that do not fit on an accelerator together with those of `inside`."""
        held, present = self._costs.held, np.unique(self._block[inside])
        left = self._costs.room * (1 + 1e-12) - held[present].sum()
        too_large = held > left
        too_large[present] = False
        refused: Bools = too_large[self._block]
        return refused

    def _solve(self, price: float) -> tuple[float, Bools]:
        """The Lagrangian at a price per byte, rounded down, and the ops of its call."""
        per_block = np.minimum(self._units(price * self._costs.held), 2 * _TOTAL)
        self._flow.set_arcs_capacity(self._holding, per_block)
        if self._flow.solve(0, 1) != self._flow.OPTIMAL:
            return 0.0, np.zeros(self._n, np.bool_)
        value = self._flow.optimal_flow() / self._scale * (1 - 1e-12)
        members = np.zeros(self._n, np.bool_)
        side = np.asarray(self._flow.get_source_side_min_cut())
        members[side[(side >= 2) & (side < 2 + self._n)] - 2] = True
        return value - price * self._costs.room * (1 + 1e-12) if price > 0 else value, members

    def _bytes(self, members: Bools) -> float:
        return float(self._costs.held[np.unique(self._block[members])].sum())
