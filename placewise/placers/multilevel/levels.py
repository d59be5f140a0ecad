"""The levels of a multilevel search: problems of groups, from the ops to the coarsest, and the time for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise.coarsen import coarse_problem, colocate
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem

SETUP = 4e-6
"""Seconds per op, tensor and edge below which a search on a level is not worth its setup."""
COARSEST_SHARE = 0.4
"""Of a descent's time, for the coarsest problem; the others share the rest by the square root of their groups."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A problem of groups; the coarse op of every op [n_ops], and the first op of every coarse one."""

    problem: Problem
    op: Ints
    first: Longs

    @property
    def size(self) -> int:
        graph = self.problem.graph
        return graph.n_ops + graph.n_tensors + graph.n_edges

    def up(self, device: Ints) -> Ints:
        """The placement of the ops [n_ops] that a placement of the groups stands for."""
        return device[self.op]

    def down(self, device: Ints) -> Ints | None:
        """The placement of the groups that a placement of the ops stands for; None if it splits a group."""
        placed, block = device[self.first], self.problem.block
        home = np.empty(self.problem.n_blocks, np.int32)
        home[block] = placed
        return placed if np.array_equal(home[block][self.op], device) else None

    def nearest(self, device: Ints, seconds: Floats) -> Ints:
        """The placement that takes each group to where most of its `seconds` [n_ops] are in a placement of the ops."""
        spent = np.zeros((self.problem.n_blocks, self.problem.n_devices))
        np.add.at(spent, (self.problem.block[self.op], device), seconds)
        home: Ints = spent.argmax(axis=1).astype(np.int32)[self.problem.block]
        return home


def levels_of(problem: Problem, labels: Sequence[Ints], *, exact: bool = False) -> list[Level]:
    """The problem itself, and those of the labels [n_ops], from fine to coarse.

    `exact`: groups move as a whole but each of their ops is scheduled, so that pricing takes as long as for ops.
    """
    every = np.arange(problem.n_ops)
    if exact:
        same = [problem, *(colocate(problem, label) for label in labels)]
        return [Level(level, every.astype(np.int32), every) for level in same]
    levels = [Level(problem, every.astype(np.int32), every)]
    for label in labels:
        finer = levels[-1]
        coarse = coarse_problem(finer.problem, label[finer.first])
        levels.append(Level(coarse.problem, coarse.op[finer.op], finer.first[coarse.first]))
    return levels


def level_shares(levels: Sequence[Level], seconds: float) -> list[float]:
    """Each level's share of the time, out of 1: nothing where that would be too little for its size."""
    shares = [0.0] * len(levels)
    if not np.isfinite(seconds):
        return [1.0] * len(levels)
    for finest in range(len(levels)):
        root = np.sqrt([float(level.problem.n_blocks) for level in levels[finest:]])
        rest: Floats = root / root[:-1].sum() * (1 - COARSEST_SHARE) if len(root) > 1 else np.ones(1)
        rest[-1] = COARSEST_SHARE if len(root) > 1 else 1.0
        if finest == len(levels) - 1 or rest[0] * seconds >= SETUP * levels[finest].size:
            shares[finest:] = rest.tolist()
            break
    return shares


def tightened(problem: Problem, taken: Floats) -> Problem:
    """The problem with `taken` bytes [n_devices] less memory on its devices."""
    cluster = problem.cluster
    devices = [replace(device, reserved=device.reserved + float(taken[d])) for d, device in enumerate(cluster)]
    return problem.with_(cluster=replace(cluster, devices=tuple(devices)))
