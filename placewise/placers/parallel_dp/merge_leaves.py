"""Fewer units with the same optimum: leaves that cost nothing follow their only neighbour.

Every loose leaf doubles the number of ideals. A leaf is free where no way of it takes time, exchanges gradients or
holds bytes, it has a way for every degree of its neighbour, and may run on every device that the neighbour may run on.
Wherever it stood, it can follow: no edge between stages appears, and the tensor between the two need not cross any more
(Tarnawski et al. 2020 merge such nodes, too).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewise.model.columns import Bools, Ints, Longs
from placewise.model.topology import sort_topologically
from placewise.model.ways import Ways


@dataclass(frozen=True, slots=True, eq=False)
class MergedWays:
    """Ways of fewer units: `label` [n_units] is the new unit of each, `kept` [n_ways of the new] its old ways."""

    whole: Ways
    ways: Ways
    label: Ints
    kept: Ints

    def merge_able(self, able: Bools) -> Bools:
        """Which new units a class may run, if it may run all the units [n_units] that `able` says."""
        found = np.ones(self.ways.n_units, np.bool_)
        np.logical_and.at(found, self.label, able)
        return found

    def restore(self, stage: Ints, way: Ints) -> tuple[Ints, Ints]:
        """The stages and ways of all units, from those of the new ones."""
        chosen = np.full(self.whole.n_units, -1, np.int32)
        chosen[self.whole.way_unit[self.kept[way]]] = self.kept[way]
        degree = self.whole.degree[self.kept[way]][self.label]
        for unit in np.flatnonzero(chosen < 0).tolist():
            chosen[unit] = self.whole.ways_of(unit, int(degree[unit]))[0]
        return np.ascontiguousarray(stage[self.label]), chosen


def merge_leaves(ways: Ways, able: Bools) -> MergedWays:
    """Let every free leaf follow its neighbour; `able` [n_units, n_devices] are the units that each device may run."""
    n = ways.n_units
    around: list[set[int]] = [set() for _ in range(n)]
    makers = np.repeat(ways.tensor_unit, np.diff(ways.reader_offsets)).tolist()
    for maker, reader in zip(makers, ways.reader.tolist(), strict=True):
        around[maker].add(reader)
        around[reader].add(maker)
    free, degrees = _find_free(ways), [set(ways.degree[ways.ways_of(unit)].tolist()) for unit in range(ways.n_units)]
    follows = list(range(n))
    leaves = [unit for unit in range(n) if free[unit] and len(around[unit]) == 1]
    while leaves:
        leaf = leaves.pop()
        if len(around[leaf]) != 1:
            continue
        (neighbour,) = around[leaf]
        if not degrees[neighbour] <= degrees[leaf] or not np.isfinite(ways.seconds[ways.way_unit == leaf]).all():
            continue
        if (able[neighbour] & ~able[leaf]).any():
            continue
        follows[leaf] = neighbour
        around[neighbour].remove(leaf)
        around[leaf].clear()
        if free[neighbour] and len(around[neighbour]) == 1:
            leaves.append(neighbour)
    return _contract(ways, _resolve(follows))


def _find_free(ways: Ways) -> list[bool]:
    amount = ways.seconds.max(axis=1, where=np.isfinite(ways.seconds), initial=0.0)
    amount = amount + ways.gradient_bytes + ways.bytes_in_flight + ways.bytes_fixed
    return [bool((amount[ways.way_unit == unit] == 0).all()) for unit in range(ways.n_units)]


def _resolve(follows: list[int]) -> Ints:
    """The unit [n_units] that each follows in the end; itself where it follows none."""
    home = np.array(follows, np.int32)
    while not np.array_equal(home, home[home]):
        home = home[home]
    return home


def _contract(ways: Ways, home: Ints) -> MergedWays:
    heads = np.unique(home)
    if len(heads) == ways.n_units:
        return MergedWays(ways, ways, home, np.arange(ways.n_ways, dtype=np.int32))
    label = np.searchsorted(heads, home).astype(np.int32)
    kept = np.flatnonzero(home[ways.way_unit] == ways.way_unit).astype(np.int32)
    makers = label[ways.tensor_unit]
    tensors, offsets, readers = [], [0], []
    for t in range(ways.n_tensors):
        found = label[ways.reader[ways.reader_offsets[t] : ways.reader_offsets[t + 1]]]
        outside = np.unique(found[found != makers[t]]).tolist()
        if outside:
            tensors.append(t)
            readers += outside
            offsets.append(len(readers))
    position = _topological_positions(len(heads), makers[tensors], np.array(offsets), np.array(readers, np.int32))
    by_unit = np.argsort(position[label[ways.way_unit[kept]]], kind="stable")
    kept = kept[by_unit]
    merged = replace(
        ways,
        unit=position[label[ways.unit]],
        way_unit=position[label[ways.way_unit[kept]]],
        degree=ways.degree[kept],
        recompute=ways.recompute[kept],
        name=tuple(ways.name[way] for way in kept.tolist()),
        seconds=ways.seconds[kept],
        gradient_bytes=ways.gradient_bytes[kept],
        bytes_in_flight=ways.bytes_in_flight[kept],
        held_bytes=ways.held_bytes[kept],
        collective_seconds=ways.collective_seconds[kept],
        tensor_unit=position[makers[tensors]],
        tensor_bytes=ways.tensor_bytes[tensors],
        reader_offsets=np.array(offsets, np.int64),
        reader=position[np.array(readers, np.int32)],
        sync_bytes=ways.sync_bytes[np.ix_(kept, np.array(tensors, np.int32))],
        workspace=ways.workspace[np.isin(ways.degrees, ways.degree[kept])],
        unit_names=(),
    )
    return MergedWays(ways, merged, position[label], kept)


def _topological_positions(n: int, makers: Ints, offsets: Longs, readers: Ints) -> Ints:
    """The position [n] of each unit in an order along their edges, the smallest ready one first."""
    before: list[set[int]] = [set() for _ in range(n)]
    for t, maker in enumerate(makers.tolist()):
        for reader in readers[offsets[t] : offsets[t + 1]].tolist():
            before[reader].add(maker)
    order = sort_topologically(before, range(n))
    position = np.empty(n, np.int32)
    position[order] = np.arange(n, dtype=np.int32)
    return position
