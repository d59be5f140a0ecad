"""Probabilities of devices from hints: of groups of ops, placements drawn from them, and labels that match them.

Draws are coherent: one random number picks the same quantile of the device probabilities of all groups. Each group is
still on each device as often as its probabilities say, but groups with equal probabilities stay together, and uncertain
borders between stages move as a whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placewise.errors import PlacerError
from placewise.model.columns import Bools, Floats, Ints, frozen
from placewise.model.problem import Problem
from placewise.placers.base import Hints, Stopwatch
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.repair import build_packing_instance, repair
from placewise.placers.shared.rules import find_broken_rule

SHARPENED = (1.0, 4.0)
"""Powers of the probabilities that draws use in turns: unchanged, and sharpened."""


def read_priors(
    problem: Problem, hints: Hints, group: npt.NDArray[np.integer] | None = None, n: int | None = None
) -> Floats:
    """The probabilities [n, n_devices] of `n` groups [n_ops] (default: blocks); [0, n_devices] without hints.

    Rows add up to 1 over the devices where a group may run. Raises PlacerError for invalid probabilities.
    """
    if hints.probabilities is None:
        return empty_priors(problem.n_devices)
    rows = np.asarray(hints.probabilities, np.float64)
    if rows.shape != (problem.n_ops, problem.n_devices) or not (np.isfinite(rows) & (rows >= 0)).all():
        shape = f"{problem.n_ops} × {problem.n_devices}"
        raise PlacerError("the probabilities of the hints do not fit", remedy=f"give {shape} numbers, none below zero")
    if group is None:
        group, n = problem.block, problem.n_blocks
    count = int(group.max(initial=-1)) + 1 if n is None else n
    allowed = may_run(problem, frozen(group, np.int32), count)
    return frozen(_normalize_rows(_sum_by_group(rows, group, count), allowed), np.float64)


def empty_priors(n_devices: int) -> Floats:
    """The probabilities [0, n_devices] of no group, for searches without hints."""
    return frozen(np.zeros((0, n_devices)), np.float64)


def draw_placements(
    problem: Problem, likely: Floats, count: int, seed: int, watch: Stopwatch | None = None
) -> list[Ints]:
    """Up to `count` placements [n_ops] that keep the rules: the most probable one, and draws. `likely` is by block.

    Placements that do not fit in memory are repaired. Those that still break a rule, and duplicates, are dropped.
    """
    if not len(likely) or count < 1:
        return []
    rng, seen = np.random.default_rng(seed), set()
    kept: list[Ints] = []
    marks = (np.arange(count - 1) + rng.random(count - 1)) / max(count - 1, 1)
    assignments = [likely.argmax(axis=1)]
    assignments += [
        pick_quantiles(likely ** SHARPENED[i % len(SHARPENED)], mark) for i, mark in enumerate(marks.tolist())
    ]
    instance = None
    for assignment in assignments:
        if watch is not None and watch.out and kept:
            break
        device = assignment.astype(np.int32)[problem.block]
        if find_broken_rule(problem, device) and not problem.constraints.shaped:
            instance = instance or build_packing_instance(problem)
            device = repair(problem, device, instance=instance, seed=seed, watch=watch, measured=False)
        if device is not None and device.tobytes() not in seen and not find_broken_rule(problem, device):
            seen.add(device.tobytes())
            kept.append(device)
    return kept


def pick_quantiles(likely: Floats, mark: float) -> npt.NDArray[np.int64]:
    """The device [n] of each group at the quantile `mark` of its probabilities, summed device by device."""
    summed = np.cumsum(likely, axis=1)
    device: npt.NDArray[np.int64] = (summed > mark * summed[:, -1:]).argmax(axis=1)
    return device


def match_labels(problem: Problem, likely: Floats, assignments: Ints) -> Ints:
    """The same placements [S, n] of groups, with interchangeable devices relabelled to match the probabilities best."""
    kind, matched = interchangeable(problem), assignments.copy()
    for row in range(len(assignments) if len(likely) else 0):
        mass = _sum_by_group(likely, assignments[row], problem.n_devices)
        name = np.arange(problem.n_devices, dtype=np.int32)
        for k in np.unique(kind).tolist():
            _match_devices(mass, np.flatnonzero(kind == k), name)
        matched[row] = name[assignments[row]]
    return matched


def _sum_by_group(rows: Floats, group: npt.NDArray[np.integer], n: int) -> Floats:
    """The sums [n, n_devices] of the rows of each group."""
    sums = np.zeros((n, rows.shape[1]))
    for column in range(rows.shape[1]):
        sums[:, column] = np.bincount(group, weights=rows[:, column], minlength=n)
    return sums


def _match_devices(mass: Floats, members: npt.NDArray[np.integer], name: Ints) -> None:
    """Rename the interchangeable `members` among themselves, in `name`, largest `mass` [old, new] first."""
    old, new = np.meshgrid(members, members, indexing="ij")
    free, open_ = set(members.tolist()), set(members.tolist())
    for place in np.argsort(-mass[old, new], axis=None, kind="stable").tolist():
        one, other = int(old.flat[place]), int(new.flat[place])
        if one in free and other in open_:
            name[one] = other
            free.remove(one)
            open_.remove(other)


def _normalize_rows(weights: Floats, allowed: Bools) -> Floats:
    """Weights [n, n_devices] as shares over the allowed devices; equal shares where no allowed device has weight."""
    kept = np.where(allowed, weights, 0.0)
    total = kept.sum(axis=1, keepdims=True)
    even = allowed / np.maximum(allowed.sum(axis=1, keepdims=True), 1)
    return np.where(total > 0, kept / np.where(total > 0, total, 1.0), even)
