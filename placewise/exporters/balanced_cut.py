"""Where to cut a line of entries into equal stages, so that the slowest takes least and all fit into memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.model.ways import count_in_flight


@dataclass(frozen=True, slots=True, eq=False)
class EntryCosts:
    """What each entry of a line takes in its ways: seconds, and bytes per micro-batch in flight and throughout [n]."""

    seconds: Floats
    in_flight: Floats
    fixed: Floats


def sum_entries(problem: Problem, entry: Ints, way: Ints, kind: int) -> EntryCosts:
    """The costs of entries on a class of devices; `entry` and `way` [n_units]."""
    ways = problem.require_ways()
    seconds, in_flight, fixed = np.zeros((3, int(entry.max(initial=0)) + 1))
    np.add.at(seconds, entry, ways.seconds[way, kind])
    np.add.at(in_flight, entry, ways.bytes_in_flight[way])
    np.add.at(fixed, entry, ways.bytes_fixed[way])
    return EntryCosts(seconds, in_flight, fixed)


def balance_cut(
    costs: EntryCosts, stages: int, replicas: int, room: float, rule: str, microbatches: int
) -> tuple[int, ...] | None:
    """How many entries each of `stages` has, none without; None where no such cut fits into `room` bytes.

    A dynamic program over entries and stages. Transfers and gradients do not count.
    """
    held = count_in_flight(rule, microbatches, np.full(stages, replicas, np.int32)).tolist()
    total, kept, fixed = (np.concatenate(([0.0], np.cumsum(c))) for c in (costs.seconds, costs.in_flight, costs.fixed))
    load = total[None, :] - total[:, None]
    count = len(costs.seconds)
    backward = np.arange(count + 1)[:, None] >= np.arange(count + 1)[None, :]
    best = np.where(np.arange(count + 1) == 0, 0.0, np.inf)
    before: list[Ints] = []
    for y in held:
        needed = y * (kept[None, :] - kept[:, None]) + fixed[None, :] - fixed[:, None]
        slowest = np.where(backward | (needed > room), np.inf, np.maximum(best[:, None], load))
        before.append(slowest.argmin(axis=0).astype(np.int32))
        best = slowest.min(axis=0)
    if not np.isfinite(best[count]):
        return None
    ends = [count]
    for chosen in reversed(before):
        ends.append(int(chosen[ends[-1]]))
    return tuple(np.diff(ends[::-1]).tolist())
