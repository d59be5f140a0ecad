"""What a target can express, for a search: stages along a line of units, or problems with rules of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from placewise.model.columns import Bools, Ints, rows_of_labels
from placewise.model.placement import Placement
from placewise.model.problem import Problem, Rule
from placewise.simulate import judge_placement


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Stages of consecutive units: one on each of some devices, in any order of these.

    `unit` [n_ops] numbers the units from 0; `devices` [n_devices] may have a stage. Before these stages comes one on
    the device `first`, which always has unit 0 (−1: there is no such device). Where that one has `leads_from` units or
    more, and the device `lead` has a stage, this comes before those of the others (−1: any order will do).
    """

    unit: Ints
    devices: Bools
    first: int = -1
    lead: int = -1
    leads_from: int = 1

    @property
    def count(self) -> int:
        return int(self.unit.max(initial=-1)) + 1


@dataclass(frozen=True, slots=True)
class Space:
    """All placements of `lines`, or of `problems`: parts of the problem, each with the rules that a target adds.

    `splits` says in words which splits the lines have, where the target can express others too.
    """

    lines: tuple[Line, ...] = ()
    problems: tuple[Problem, ...] = ()
    splits: str = ""


def find_cuts(problem: Problem, placement: Placement, unit: Ints) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The devices of the stages of a placement, and their bounds along units.

    None if it has no such stages, or breaks a rule: other cuts may keep it.
    """
    line = np.full(int(unit.max(initial=-1)) + 1, -1, np.int64)
    line[unit] = placement.device
    for empty in np.flatnonzero(line < 0).tolist():
        line[empty] = line[empty - 1] if empty else placement.device[np.argmin(unit)]
    if not np.array_equal(line[unit], placement.device):
        return None
    starts = np.flatnonzero(np.r_[True, line[1:] != line[:-1]]) if len(line) else np.zeros(0, np.int64)
    devices = line[starts].tolist()
    if len(set(devices)) < len(devices) or not judge_placement(problem, placement).valid:
        return None
    return tuple(devices), (*starts.tolist(), len(line))


def sharing(problem: Problem, sets: Iterable[Iterable[int]]) -> Problem:
    """The problem in which the ops of each set share a device."""
    names = problem.graph.ops.name
    together = tuple(tuple(names[op] for op in ops) for ops in map(tuple, sets) if len(ops) > 1)
    return problem.with_(constraints=replace(problem.constraints, together=(*problem.constraints.together, *together)))


def sets_of(label: Ints) -> list[list[int]]:
    """The ops of each label [n_ops]."""
    labels, number = np.unique(label, return_inverse=True)
    return [rows.tolist() for rows in rows_of_labels(number, len(labels))]


def pinned(problem: Problem, op: int, device: int) -> Problem:
    """The problem with one op, and all that share its device, on a device."""
    rule = Rule(f"^{re.escape(problem.graph.ops.name[op])}$", problem.cluster.names[device])
    return problem.with_(constraints=replace(problem.constraints, pins=(*problem.constraints.pins, rule)))
