"""Windows for throughput: a part of a placement as a problem of its own.

The units of a few devices are *inside*. Free units move among these devices, alone or in groups; the other units of a
device are one more group. Units of other devices are *outside*: they take no time and no memory and stay where they
are, so that the value of the subproblem is the largest load of the devices inside.

Where stages must form a chain, everything before the devices inside is one group on a device of its own, everything
after is another, and the groups inside may change devices as long as they keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewise.coarsen import CoarseProblem, coarse_problem
from placewise.model.cluster import Cluster
from placewise.model.columns import Bools, Ints, Longs, distinct, frozen, offsets_of
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate.contiguity import Contraction, contract, depth_first


@dataclass(frozen=True, slots=True, eq=False)
class MovableUnits:
    """What windows move: components of the contraction where stages must form a chain, else blocks.

    `of` [n_ops] is the unit of each op. The units that share a tensor with unit u are
    ``neighbours[offsets[u]:offsets[u + 1]]``. `orders` are positions [n] of the units, topological for components.
    `graph` is the contraction, None for blocks.
    """

    of: Ints
    n: int
    offsets: Longs
    neighbours: Ints
    orders: tuple[Longs, ...]
    graph: Contraction | None

    def assignment(self, device: Ints) -> Ints:
        """The device [n] of each unit under a placement [n_ops]."""
        assignment = np.empty(self.n, np.int32)
        assignment[self.of] = device
        return assignment

    def around(self, unit: int) -> Ints:
        """The units next to one."""
        return self.neighbours[self.offsets[unit] : self.offsets[unit + 1]]


def movable_units(problem: Problem) -> MovableUnits:
    """The units of a problem; linear in ops and edges."""
    graph = contract(problem)
    deep = depth_first(graph)
    if problem.constraints.contiguous:
        orders = (np.arange(graph.n), deep.astype(np.int64))
        return MovableUnits(graph.component, graph.n, *neighbours_of(problem, graph.component, graph.n), orders, graph)
    of, n = problem.block, problem.n_blocks
    size = np.bincount(of, minlength=n)
    positions = (np.arange(len(graph.component), dtype=np.int32), deep[graph.component])
    means = (np.bincount(of, weights=position, minlength=n) / size for position in positions)
    return MovableUnits(
        of, n, *neighbours_of(problem, of, n), tuple(np.argsort(np.argsort(m, kind="stable")) for m in means), None
    )


def neighbours_of(problem: Problem, of: Ints, n: int) -> tuple[Longs, Ints]:
    """The groups that share a tensor with each of the n groups `of` [n_ops]: offsets [n + 1], and their rows."""
    graph = problem.graph
    maker = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    made = maker >= 0
    one, other = of[maker[made]].astype(np.int64), of[graph.consumers[made]].astype(np.int64)
    apart = one != other
    pairs = distinct(np.concatenate((one * n + other, other * n + one))[np.tile(apart, 2)])
    rows = pairs // max(n, 1)
    return offsets_of(rows, n), (pairs - rows * n).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class ThroughputWindow:
    """What is freed: the devices inside, and the group of each unit [n], −1 where it stays with its device.

    `before` [n_devices], for chains: the devices whose stages come before those inside.
    """

    devices: tuple[int, ...]
    group: Longs
    before: Bools


@dataclass(frozen=True, slots=True, eq=False)
class Subproblem:
    """The problem of a window; `hint` is what the current placement `now` is in it."""

    coarse: CoarseProblem
    now: Placement
    inside: Bools
    devices: tuple[int, ...]
    hint: Placement

    def lift(self, part: Placement) -> Placement:
        """The whole placement with the inside placed as in `part`, a placement of the subproblem."""
        device = np.where(self.inside, self.coarse.up(part.device), self.now.device).astype(np.int32)
        if self.now.replicas is None and part.replicas is None:
            return Placement(device)
        own = np.arange(self.coarse.problem.n_devices, dtype=np.int32)
        replicas = (own if self.now.replicas is None else self.now.replicas).copy()
        chosen = list(self.devices)
        replicas[chosen] = (own if part.replicas is None else part.replicas)[chosen]
        return Placement(device, replicas=replicas)


def cut_window(problem: Problem, units: MovableUnits, now: Placement, window: ThroughputWindow) -> Subproblem:
    """The subproblem of a window; linear in ops and edges."""
    chained, assignment = units.graph is not None, units.assignment(now.device)
    is_inside = np.zeros(problem.n_devices, np.bool_)
    is_inside[list(window.devices)] = True
    inside, n_groups = is_inside[assignment], int(window.group.max(initial=-1)) + 1
    stand_in = _stand_ins(problem, is_inside, window.before) if chained else np.arange(problem.n_devices)
    held = np.where(inside, assignment, problem.n_devices + stand_in[assignment])
    kinds = distinct(held[window.group < 0].astype(np.int64))
    label = np.where(window.group >= 0, window.group, n_groups + np.searchsorted(kinds, held))
    target = np.full(n_groups + len(kinds), -1, np.int64)
    target[n_groups:] = np.where(kinds >= problem.n_devices, kinds - problem.n_devices, -1 if chained else kinds)
    outside = np.concatenate((np.zeros(n_groups, np.bool_), kinds >= problem.n_devices))
    coarse = coarse_problem(problem, label[units.of].astype(np.int32))
    group = coarse.problem.graph.ops.group
    part = _silence_outside(coarse.problem, is_inside, outside[group], target[group])
    device = np.where(inside, assignment, stand_in[assignment])[units.of].astype(np.int32)
    hint = Placement(coarse.down(device), replicas=_inside_replicas(now.replicas, is_inside))
    return Subproblem(replace(coarse, problem=part), now, inside[units.of], window.devices, hint)


def _stand_ins(problem: Problem, inside: Bools, before: Bools) -> Ints:
    """For each device [n_devices] outside, the one that stands for all before those inside, or for all after."""
    stand_in = np.arange(problem.n_devices, dtype=np.int32)
    for side in (before & ~inside, ~before & ~inside):
        members = np.flatnonzero(side)
        if len(members):
            own = members[~problem.cluster.is_host[members]]
            stand_in[members] = own[0] if len(own) else members[0]
    return stand_in


def _silence_outside(part: Problem, inside: Bools, outside: Bools, target: Longs) -> Problem:
    """The problem with each coarse op held on its `target` [n_ops] (−1: free inside) and no costs outside."""
    seconds = part.costs.op_seconds.copy()
    seconds[np.ix_(~outside, ~inside)] = np.inf
    kept = np.flatnonzero(target >= 0)
    there = np.where(outside[kept], 0.0, seconds[kept, target[kept]])
    seconds[kept] = np.inf
    seconds[kept, target[kept]] = there
    cluster = part.cluster
    devices = tuple(
        device if inside[d] else replace(device, memory=np.inf, unsupported=frozenset(), supported=None, available=True)
        for d, device in enumerate(cluster.devices)
    )
    costs = CostTable.given(frozen(seconds, np.float64), part.costs.transfer_seconds)
    return part.with_(costs=costs, cluster=Cluster(devices, cluster.links, cluster.transfers))


def _inside_replicas(replicas: Ints | None, inside: Bools) -> Ints | None:
    """The replicas of stages inside; other stages have none."""
    if replicas is None:
        return None
    own = np.arange(len(replicas), dtype=np.int32)
    shared: Ints = np.where(inside, replicas, own).astype(np.int32)
    return shared
