"""Assignments of blocks to accelerators and the host at given prices: minimum cuts, and the bound that they give.

A block costs its time and its bytes at the prices of the cheapest device on its side, and a tensor that is made on one
side and read on the other costs its quickest transfer. The cheapest assignment is a minimum cut between accelerators
and the host (Stone 1977, "Multiprocessor scheduling with the aid of network flow algorithms"), in whole units rounded
down. In `sequential` execution one thing happens at a time, and a tensor that is needed on the other side crosses at
least once: with a price of 1 for every second the cut bounds the value, less the price of the memory that there is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from ortools.graph.python import max_flow

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import DeviceClasses, unshared_bytes
from placewise.simulate.bounds.assignment import find_prices, round_down
from placewise.simulate.problem_arrays import arrays_of

METHOD = "minimum cut to the host"
LARGEST = 200_000
"""The most uses of tensors of a problem that is cut."""
_ROUNDS = 12
_TOTAL = 1 << 40
"""All costs of a cut together, in units; a capacity above it is never cut."""


def cut_bound(
    problem: Problem, classes: DeviceClasses, times: Floats, go_on: Callable[[], bool] = lambda: True
) -> Bound:
    """The bound for `sequential` execution, in seconds; no further prices are tried once `go_on` is False.

    `times` [n_blocks, n_classes] is inf where none may run.
    """
    a = arrays_of(problem)
    if len(a.consumers) > LARGEST:
        return Bound(0.0, METHOD)
    every = np.ones(len(a.consumers), np.bool_)
    sides = Sides(problem, classes, times, list_traffic(problem, every, a.output))

    def spread(pace: Floats, per_byte: Floats) -> tuple[float, Floats, Floats]:
        least, seconds, moved, held = sides.assign(np.repeat(pace, len(classes.count)), np.repeat(pace, 2), per_byte)
        return least, np.array([seconds.sum() + moved.sum()]), held

    value, _ = find_prices(
        spread, np.ones(1, np.int64), sides.room, sides.scale, sides.unit, rounds=_ROUNDS, go_on=go_on
    )
    return Bound(round_down(value, problem.n_ops), METHOD)


class Fees(NamedTuple):
    """Prices of the tensors that a cut may separate: sent to the host and back [n_cut], and outputs that leave."""

    out: Floats
    into: Floats
    left: Floats


class CheapestAssignment(NamedTuple):
    """The cheapest assignment: its price, rounded down, what it uses, and the tensors that cross.

    `seconds` [n_classes] are without transfers; `sent`, `received` [n_cut] and `left` are those of `Fees`.
    """

    least: float
    seconds: Floats
    held: Floats
    on_host: Bools
    sent: Bools
    received: Bools
    left: Bools


class Sides:
    """Blocks with times [n_blocks, n_classes] and bytes, and the tensors that may cross between the two sides."""

    def __init__(self, problem: Problem, classes: DeviceClasses, times: Floats, traffic: Traffic | None) -> None:
        usable, capacity = np.isfinite(times), problem.capacity[classes.example] * classes.count
        self._cost, self._unusable = np.where(usable, times, 0.0), np.where(usable, 0.0, np.inf)
        self._host = problem.cluster.is_host[classes.example]
        self._held = unshared_bytes(problem)
        self._priced = np.flatnonzero(np.isfinite(capacity))
        self._traffic = traffic
        self.cut = HostCut(traffic, len(times)) if traffic is not None else None
        self.room = capacity[self._priced]
        self.scale = float((self._cost + self._unusable).min(axis=1).sum()) or 1.0
        self.unit = max(float(self._held.sum()), 1.0)

    def assign(self, pace: Floats, crossing: Floats, per_byte: Floats) -> tuple[float, Floats, Floats, Floats]:
        """The least price of an assignment, rounded down, and what it uses.

        `pace` [n_classes] and `crossing` (to the host, from it) are prices of seconds, `per_byte` of bytes in limited
        memories. The seconds of each class, those of transfers each way, and the bytes in limited memories are used.
        """
        if self.cut is None or self._traffic is None:
            choice, moved = self.choose(pace, None, per_byte), np.zeros(2)
        else:
            out, into = self._traffic.out, self._traffic.into
            choice = self.choose(pace, self.cut.list_fees(out * crossing[0], into * crossing[1]), per_byte)
            own = self.cut.list_fees(out, into)
            moved = np.array(
                [own.out[choice.sent].sum() + own.left[choice.left].sum(), own.into[choice.received].sum()]
            )
        return choice.least, choice.seconds, moved, choice.held

    def choose(
        self, pace: Floats, fees: Fees | None, per_byte: Floats, credit: Floats | float = 0.0
    ) -> CheapestAssignment:
        """The cheapest assignment where every block on the host has a `credit` [n_blocks]; no fees: nothing crosses."""
        n, rows = len(pace), np.arange(len(self._cost))
        price = self._cost * pace + self._unusable
        price[:, self._priced] += self._held[:, None] * per_byte
        least = np.where(self._host, price - np.reshape(credit, (-1, 1)), price)
        on_host = self._host[least.argmin(axis=1)]
        gained, none, left = 0.0, np.zeros(0, np.bool_), least
        sent = received = leaving = none
        if self.cut is not None and fees is not None:
            two = np.stack([least[:, ~self._host].min(axis=1), least[:, self._host].min(axis=1)], axis=1)
            gained, on_host = self.cut.find_cheapest(two, fees)
            sent, received, leaving = self.cut.list_crossing(on_host)
            left = np.where(self._host == on_host[:, None], least, np.inf)
        choice = left.argmin(axis=1)
        seconds = np.bincount(choice, weights=self._cost[rows, choice], minlength=n).astype(np.float64)
        held = np.bincount(choice, weights=self._held, minlength=n)[self._priced].astype(np.float64)
        cheapest = least.min(axis=1)
        own, size = float(cheapest.sum()), float(np.abs(cheapest).sum())
        lost = size - round_down(size, len(price))
        return CheapestAssignment(own - lost + gained, seconds, held, on_host, sent, received, leaving)


def list_traffic(problem: Problem, counted: Bools, leaving: Bools) -> Traffic | None:
    """The tensors that may cross: by counted uses [len(consumers)], or as outputs that are `leaving` [n_tensors].

    None if nothing can cross, as where all devices are on one side.
    """
    a, host = arrays_of(problem), problem.n_devices
    devices = np.flatnonzero(~problem.cluster.is_host & problem.allowed.any(axis=0))
    if not len(devices) or not problem.cluster.is_host.any():
        return None
    out = a.transfer[:, np.unique(a.link_class[devices, host])].min(axis=1)
    into = a.transfer[:, np.unique(a.link_class[host, devices])].min(axis=1)
    maker = np.where(a.producer >= 0, problem.block[a.producer], -1).astype(np.int64)
    reader = problem.block[a.consumers].astype(np.int64)
    used = counted & (reader != maker[a.consumed]) & ((out > 0) | (into > 0))[a.consumed]
    pair = np.unique(a.consumed[used].astype(np.int64) * problem.n_blocks + reader[used])
    left = np.flatnonzero(leaving & (maker >= 0) & (out > 0)).astype(np.int64)
    if not len(pair) and not len(left):
        return None
    return Traffic(pair // problem.n_blocks, pair % problem.n_blocks, maker, out, into, left)


class Traffic(NamedTuple):
    """Pairs of a tensor and a block that reads it, and outputs, which leave for the host in any case.

    `maker` [n_tensors] is a block, or −1 for the host; `out` and `into` [n_tensors] are seconds each way.
    """

    tensor: Longs
    reader: Longs
    maker: Longs
    out: Floats
    into: Floats
    leaving: Longs


class HostCut:
    """The flow network between accelerators (source) and the host (sink), solved at different prices."""

    def __init__(self, traffic: Traffic, n_blocks: int) -> None:
        self._maker = traffic.maker[traffic.tensor]
        self._reader, self._n = traffic.reader, n_blocks
        self.tensors, self._at = np.unique(traffic.tensor, return_inverse=True)
        outputs = np.zeros(len(traffic.out), np.bool_)
        outputs[traffic.leaving] = True
        made = traffic.maker[self.tensors] >= 0
        self.leaving, self._leaving = traffic.leaving, traffic.maker[traffic.leaving]
        self.stays = ~made | outputs[self.tensors]
        n_cut = len(self.tensors)
        maker = np.where(made, 2 + traffic.maker[self.tensors], 1)
        sent, received = 2 + n_blocks + np.arange(n_cut), 2 + n_blocks + n_cut + np.arange(n_cut)
        blocks = 2 + np.arange(n_blocks)
        self._flow = max_flow.SimpleMaxFlow()
        never = np.full(len(self._at), 2 * _TOTAL)
        self._add(sent[self._at], 2 + self._reader, never)
        self._add(2 + self._reader, received[self._at], never)
        zero = np.zeros(n_cut, np.int64)
        self._arcs = [
            self._add(np.where(maker > 1, maker, 0), sent, zero),
            self._add(received, maker, zero),
            self._add(blocks, np.ones(n_blocks, np.int64), np.zeros(n_blocks, np.int64)),
            self._add(np.zeros(n_blocks, np.int64), blocks, np.zeros(n_blocks, np.int64)),
        ]

    def _add(self, tails: Longs, heads: Longs, units: Longs) -> Ints:
        arcs: Ints = self._flow.add_arcs_with_capacity(tails.astype(np.int32), heads.astype(np.int32), units)
        return arcs

    def list_fees(self, out: Floats, into: Floats) -> Fees:
        """The fees where tensors [n_tensors] cost `out` to send to the host, once, and `into` to receive from it."""
        return Fees(np.where(self.stays, 0.0, out[self.tensors]), into[self.tensors], out[self.leaving])

    def find_cheapest(self, sides: Floats, fees: Fees) -> tuple[float, Bools]:
        """What the cheapest assignment costs above Σ min `sides` [n_blocks, 2], rounded down, and who is on the host.

        `sides` prices each block on accelerators and on the host.
        """
        leave = np.bincount(self._leaving, weights=fees.left, minlength=self._n)
        extra = sides - sides.min(axis=1)[:, None]
        finite = np.isfinite(extra)
        total = float(extra[finite].sum() + leave.sum() + fees.out.sum() + fees.into.sum())
        scale = _TOTAL / total if total > sys.float_info.min * _TOTAL else 1.0
        units = [np.floor(price * scale).astype(np.int64) for price in (fees.out, fees.into)]
        own = np.where(finite, extra, 0.0) + np.stack([leave, np.zeros(self._n)], axis=1)
        own_units = np.where(finite, np.floor(own * scale), 2 * _TOTAL).astype(np.int64)
        for arcs, capacity in zip(self._arcs, (*units, own_units[:, 0], own_units[:, 1]), strict=True):
            self._flow.set_arcs_capacity(arcs, capacity)
        if self._flow.solve(0, 1) != self._flow.OPTIMAL:
            return 0.0, sides[:, 1] < sides[:, 0]
        gained = self._flow.optimal_flow() / scale * (1 - 1e-12)
        on_host = np.ones(self._n, np.bool_)
        side = np.asarray(self._flow.get_source_side_min_cut())
        on_host[side[(side >= 2) & (side < 2 + self._n)] - 2] = False
        return gained, on_host

    def list_crossing(self, on_host: Bools) -> tuple[Bools, Bools, Bools]:
        """Which tensors are sent to the host and received from it [n_cut], and which outputs leave accelerators."""
        maker = np.where(self._maker >= 0, on_host[self._maker], True)
        reader, count = on_host[self._reader], len(self.tensors)
        sent = np.bincount(self._at, weights=~maker & reader, minlength=count) > 0
        received = np.bincount(self._at, weights=maker & ~reader, minlength=count) > 0
        return sent, received, ~on_host[self._leaving]
