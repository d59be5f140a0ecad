"""A window: part of a placement cut out as a problem of its own.

The units of a few devices are *inside*: the free ones go where they like among these devices, alone or in groups that
stay together, the others of a device are one more group. What is on other devices is *outside*: it takes no time and
no memory and stays where it is, so that the value of the small problem is the largest load of the devices inside.

Where stages must form a chain, all that comes before the devices inside is one group on a device of its own, all that
comes after is another, and the groups inside are free to change devices: they must only keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewise.coarsen import CoarseProblem, coarse_problem
from placewise.model.cluster import Cluster
from placewise.model.columns import Bools, Ints, Longs, distinct, frozen
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.large_neighbourhood.units import Units


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What is freed: the devices inside, and for every unit [n] its group, −1 where it stays with its device.

    `before` [n_devices], for chains: the devices whose stages come before those inside.
    """

    devices: tuple[int, ...]
    group: Longs
    before: Bools


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The problem of a window, and how its placements become placements of the whole."""

    coarse: CoarseProblem
    now: Placement
    inside: Bools
    devices: tuple[int, ...]
    hint: Placement

    def whole(self, found: Placement) -> Placement:
        """The placement with what is inside placed as the part's answer says."""
        device = np.where(self.inside, self.coarse.up(found.device), self.now.device).astype(np.int32)
        if self.now.replicas is None and found.replicas is None:
            return Placement(device)
        own = np.arange(self.coarse.problem.n_devices, dtype=np.int32)
        replicas = (own if self.now.replicas is None else self.now.replicas).copy()
        chosen = list(self.devices)
        replicas[chosen] = (own if found.replicas is None else found.replicas)[chosen]
        return Placement(device, replicas=replicas)


def cut(problem: Problem, units: Units, now: Placement, window: Window) -> Part:
    """The part of `problem` that a window frees; linear in ops and edges."""
    chained, home = units.graph is not None, units.home(now.device)
    is_inside = np.zeros(problem.n_devices, np.bool_)
    is_inside[list(window.devices)] = True
    inside, n_groups = is_inside[home], int(window.group.max(initial=-1)) + 1
    stand_in = _stand_ins(problem, is_inside, window.before) if chained else np.arange(problem.n_devices)
    held = np.where(inside, home, problem.n_devices + stand_in[home])
    kinds = distinct(held[window.group < 0].astype(np.int64))
    label = np.where(window.group >= 0, window.group, n_groups + np.searchsorted(kinds, held))
    target = np.full(n_groups + len(kinds), -1, np.int64)
    target[n_groups:] = np.where(kinds >= problem.n_devices, kinds - problem.n_devices, -1 if chained else kinds)
    outside = np.concatenate((np.zeros(n_groups, np.bool_), kinds >= problem.n_devices))
    coarse = coarse_problem(problem, label[units.of].astype(np.int32))
    group = coarse.problem.graph.ops.group
    part = _silenced(coarse.problem, is_inside, outside[group], target[group])
    device = np.where(inside, home, stand_in[home])[units.of].astype(np.int32)
    hint = Placement(coarse.down(device), replicas=_inside_replicas(now.replicas, is_inside))
    return Part(replace(coarse, problem=part), now, inside[units.of], window.devices, hint)


def _stand_ins(problem: Problem, inside: Bools, before: Bools) -> Ints:
    """For every device [n_devices] outside the one that stands for all that come before, or for all that come after."""
    stand_in = np.arange(problem.n_devices, dtype=np.int32)
    for side in (before & ~inside, ~before & ~inside):
        members = np.flatnonzero(side)
        if len(members):
            own = members[~problem.cluster.is_host[members]]
            stand_in[members] = own[0] if len(own) else members[0]
    return stand_in


def _silenced(part: Problem, inside: Bools, outside: Bools, target: Longs) -> Problem:
    """The problem with coarse ops that stay [n_ops] held on `target` (−1: inside); what is outside takes nothing."""
    seconds = part.costs.op_seconds.copy()
    seconds[np.ix_(~outside, ~inside)] = np.inf
    kept = np.flatnonzero(target >= 0)
    there = np.where(outside[kept], 0.0, seconds[kept, target[kept]])
    seconds[kept] = np.inf
    seconds[kept, target[kept]] = there
    cluster = part.cluster
    devices = tuple(
        device if inside[d] else replace(device, memory=np.inf, unsupported=frozenset(), available=True)
        for d, device in enumerate(cluster.devices)
    )
    costs = CostTable.given(frozen(seconds, np.float64), part.costs.transfer_seconds)
    return part.with_(costs=costs, cluster=Cluster(devices, cluster.links, cluster.transfers))


def _inside_replicas(replicas: Ints | None, inside: Bools) -> Ints | None:
    """The replicas of stages inside; the others share nothing."""
    if replicas is None:
        return None
    own = np.arange(len(replicas), dtype=np.int32)
    shared: Ints = np.where(inside, replicas, own).astype(np.int32)
    return shared
