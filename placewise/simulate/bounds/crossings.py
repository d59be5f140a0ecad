"""Lower bounds for throughput that count transfers: groups that cannot part, and the largest group with its transfers.

Suppose that some placement has a max-load of at most T. A tensor that crosses from its maker's group to a reader's
elsewhere loads both devices, and the wires between them, beside the times of these two groups. Where that exceeds T for
every pair of devices, both groups share a device. They count as one group then, which takes longer, so that more
tensors cannot cross. T is refuted if a group that grows so fits on no device, by time or by bytes, or if the fractional
assignment (`assignment.py`) of these groups exceeds T. Bisection finds the largest T that is refuted. Links count as
they are: directed, of unequal speeds, in two hops through the host, on shared wires.

The device of a group also runs other groups, or exchanges tensors with them. With `blocking` transfers, its load is at
least that of the cheapest set of groups with this one, times, sent and received tensors together: a minimum cut (Stone
1977, "Multiprocessor scheduling with the aid of network flow algorithms"), in whole units rounded down.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placewise.model.columns import Floats, Longs
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import DeviceClasses, unshared_bytes
from placewise.simulate.bounds.assignment import block_prices_bound, round_down
from placewise.simulate.bounds.bisection import find_refuted
from placewise.simulate.bounds.cheapest_call import call_costs
from placewise.simulate.bounds.host_cut import HostCut, Traffic
from placewise.simulate.bounds.sharing import join_sets
from placewise.simulate.problem_arrays import arrays_of, find_crossing_uses

METHOD, ALONE = "groups that cannot part", "largest group with its transfers"
LARGEST = 100_000
"""The most uses of tensors of a problem whose crossings are looked at."""
_STEEP = 1e6
"""No step of the bisection is larger: what is refuted then can run nowhere."""
_SURE = 1 + 1e-9
"""What a sum must exceed T by, as it is computed in floating point."""
_ANCHORS = 8
"""The most groups whose cheapest sets are found, those with the longest times."""


class Route(NamedTuple):
    """A way from a device of class `source` to one of class `target`: the seconds of each tensor [n_tensors].

    `sends` and `receives` are what the two devices pay, `wire` is the most that one shared wire carries, and `wires` is
    what all of them carry.
    """

    source: int
    target: int
    sends: Floats
    receives: Floats
    wire: Floats
    wires: Floats


def parting_bound(
    problem: Problem,
    classes: DeviceClasses,
    times: Floats,
    *,
    above: float = 0.0,
    go_on: Callable[[], bool] = lambda: True,
) -> Bound:
    """The largest max-load that is refuted, in seconds, starting from `above`; 0 if none above it is.

    `times` [n_blocks, n_classes] is inf where a block may not run. It holds for one device per stage.
    """
    if above <= 0 or len(arrays_of(problem).consumers) > LARGEST or not go_on():
        return Bound(0.0, METHOD)
    test = _Parting(problem, classes, times, go_on)
    return Bound(find_refuted(above, test.refutes, go_on, steepest=_STEEP), METHOD)


class _Parting:
    """Groups that share a device if some placement keeps a max-load, and whether that is impossible."""

    def __init__(self, problem: Problem, classes: DeviceClasses, times: Floats, go_on: Callable[[], bool]) -> None:
        a, self._go_on = arrays_of(problem), go_on
        uses = find_crossing_uses(problem)
        self._tensor = a.consumed[uses].astype(np.int64)
        self._maker = problem.block[a.producer[self._tensor]].astype(np.int64)
        self._reader = problem.block[a.consumers[uses]].astype(np.int64)
        self._routes = list_routes(problem, classes)
        self._times, self._held = times, unshared_bytes(problem)
        self._capacity, self._count = problem.capacity[classes.example], classes.count
        self._blocking = problem.objective.communication == "blocking"

    def refutes(self, most: float) -> bool:
        """Whether no placement has a max-load of at most `most` seconds; no once the time is over."""
        over, n = most * _SURE, len(self._times)
        sets = np.arange(n)
        maker, reader, tensor = self._maker, self._reader, self._tensor
        while self._go_on():
            number = np.unique(sets, return_inverse=True)[1]
            times = np.stack([np.bincount(number, weights=column) for column in self._times.T], axis=1).astype(
                np.float64
            )
            held = np.bincount(number, weights=self._held).astype(np.float64)
            times = np.where((times <= over) & (held[:, None] <= self._capacity * _SURE), times, np.inf)
            if not np.isfinite(times).any(axis=1).all():
                return True
            apart = sets[maker] != sets[reader]
            maker, reader, tensor = maker[apart], reader[apart], tensor[apart]
            joined = self._least_loads(times[number[maker]], times[number[reader]], tensor) > over
            if not joined.any():
                break
            sets = join_sets(sets, maker[joined], reader[joined])
        else:
            return False
        if len(times) == n or times.size > LARGEST:
            return False
        room = self._capacity * self._count
        return block_prices_bound(times, np.isfinite(times), held, room, self._count) > over

    def _least_loads(self, makes: Floats, reads: Floats, tensor: Longs) -> Floats:
        """The least load of the busiest device or wire if a tensor crosses between two groups of these times."""
        least = np.full(len(tensor), np.inf)
        join = np.add if self._blocking else np.maximum
        for route in self._routes:
            sent, received = route.sends[tensor], route.receives[tensor]
            load = np.maximum(join(makes[:, route.source], sent), join(reads[:, route.target], received))
            least = np.minimum(least, np.maximum(load, route.wire[tensor]))
        return least


def list_routes(problem: Problem, classes: DeviceClasses) -> list[Route]:
    """The distinct ways between two devices; between two of one location nothing moves."""
    a, host, routes = arrays_of(problem), problem.n_devices, dict[tuple[int, ...], Route]()
    for s, t in itertools.permutations(range(host), 2):
        source, target = int(a.location[s]), int(a.location[t])
        ways = ((source, host), (host, target)) if a.staged else ((source, target),)
        hops = [way for way in ways if way[0] != way[1]] or [(host, host)]
        links, wires = [int(a.link_class[hop]) for hop in hops], [int(a.wire[hop]) for hop in hops]
        both = len(wires) > 1 and wires[0] == wires[1] >= 0
        key = (int(classes.of[s]), int(classes.of[t]), *(wire if both else wire >= 0 for wire in wires), *links)
        if key not in routes:
            none = np.zeros(len(a.transfer))
            sends = a.transfer[:, links[0]] if source != host else none
            receives = a.transfer[:, links[-1]] if target != host else none
            carried = sum((a.transfer[:, k] for k, wire in zip(links, wires, strict=True) if wire >= 0), none)
            routes[key] = Route(key[0], key[1], sends, receives, sends + receives if both else none, carried)
    return list(routes.values())


def alone_bound(
    problem: Problem,
    classes: DeviceClasses,
    times: Floats,
    *,
    above: float = 0.0,
    go_on: Callable[[], bool] = lambda: True,
) -> Bound:
    """The largest load that the device of some group has at least, in seconds; 0 if none above `above` is found."""
    a, n = arrays_of(problem), problem.n_blocks
    best, host = 0.0, problem.cluster.is_host[classes.example]
    if problem.objective.communication != "blocking" or host.all() or len(a.consumers) > LARGEST or not go_on():
        return Bound(best, ALONE)
    costs, own = call_costs(problem), times[:, ~host].min(axis=1)
    slower = times[:, host].min(axis=1, initial=np.inf)
    maker = np.where(a.producer >= 0, problem.block[a.producer], -1).astype(np.int64)
    reader = problem.block[a.consumers].astype(np.int64)
    pair = np.unique(a.consumed[reader != maker[a.consumed]].astype(np.int64) * n + reader[reader != maker[a.consumed]])
    leaving = np.flatnonzero(a.output & (maker >= 0)).astype(np.int64)
    traffic = Traffic(pair // n, pair % n, maker, costs.send, costs.receive, leaving)
    most = np.minimum(own + _own_transfers(traffic, n), slower)
    network = None
    for block in np.argsort(-most, kind="stable")[:_ANCHORS].tolist():
        if most[block] <= max(above, best) or not go_on():
            break
        if np.isfinite(own[block]):
            network = network or HostCut(traffic, n)
            sides = np.stack([own, np.zeros(n)], axis=1)
            sides[block, 1] = np.inf
            fees = network.list_fees(traffic.out, traffic.into)
            load = min(network.find_cheapest(sides, fees)[0] + float(own[block]), float(slower[block]))
        else:
            load = float(slower[block])
        best = max(best, round_down(load, problem.n_ops))
    return Bound(best if best > above else 0.0, ALONE)


def _own_transfers(traffic: Traffic, n: int) -> Floats:
    """The seconds of all tensors that each block [n] receives, or makes for others."""
    total = np.bincount(traffic.reader, weights=traffic.into[traffic.tensor], minlength=n).astype(np.float64)
    sent = np.zeros(len(traffic.maker), np.bool_)
    sent[traffic.tensor] = sent[traffic.leaving] = True
    sent &= traffic.maker >= 0
    return total + np.bincount(traffic.maker[sent], weights=traffic.out[sent], minlength=n)
