"""Pipelines of equal stages: the placements with splits that tools can express, and the best one for a plan.

All stages have one degree of tensor parallelism and one number of replicas. The plan itself, where it is such a
pipeline, else the fastest that its degrees, replicas and cuts, or divisions that are even by number or by seconds,
give: judged, and within all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from placewise.errors import ExportError
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.ways import StageGroup, Ways, count_in_flight
from placewise.simulate import judge_placement


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


Cut = tuple[int, ...]
"""How many consecutive entries of a line each stage has."""
Recompute = Callable[[Ints], Iterable[Bools]]
"""From the stage [n_units] of every unit, the choices of the units [n_units] that recompute."""


@dataclass(frozen=True, slots=True, eq=False)
class EqualStages:
    """Entries per stage, devices over which each replica splits its ops, replicas of each stage, and the placement."""

    cut: Cut
    degree: int
    replicas: int
    placement: Placement


def find_equal_stages(
    problem: Problem, placement: Placement, line: Ints, target: str, recompute: Recompute | None = None
) -> EqualStages:
    """The pipeline of equal stages along a `line` [n_ops] that is the plan, or else the fastest that was found.

    A plan that does not fit the memory becomes the fastest one that does; it stays as it is if there is none.
    `line` numbers entries from 0, and a unit is where its first op is. `recompute` lists the choices of the target; by
    default, units do as in the plan, or all recompute. Raises ExportError where no such pipeline keeps the rules.
    """
    ways = problem.require_ways()
    entry = _entry_of_units(ways, line)
    own = ways.recompute[np.asarray(placement.way)]
    default = (own, np.ones(ways.n_units, np.bool_)) if ways.recompute.any() else (own,)
    best: tuple[float, EqualStages] | None = None
    own_stages: EqualStages | None = None
    for cut, degree, replicas in dict.fromkeys(_list_shapes(problem, placement, entry)):
        unit_stage = np.searchsorted(np.cumsum(cut), entry, side="right").astype(np.int32)
        groups = _take_devices(problem, placement, len(cut), degree, replicas)
        if groups is None or len(np.unique(unit_stage)) < len(cut):
            continue
        for again in default if recompute is None else recompute(unit_stage):
            way = _choose_ways(ways, again, degree)
            if way is None:
                break
            made = EqualStages(cut, degree, replicas, Placement.of_stages(ways, groups, unit_stage, way))
            judged = judge_placement(problem, made.placement)
            if made.placement == placement:
                if not judged.violations or {broken.kind for broken in judged.violations} != {"memory"}:
                    return made
                own_stages = made
            if judged.valid and (best is None or judged.value < best[0]):
                best = (judged.value, made)
    if best is None and own_stages is not None:
        return own_stages
    if best is None:
        remedy = "see what the plan does with placewise judge, or place with --tensor-parallel of one number"
        raise ExportError(f"no pipeline of equal stages that {target} can run keeps the rules", remedy=remedy)
    return best[1]


def require_disjoint(stages: Iterable[Iterable[str]]) -> None:
    """Raise ExportError where a device is in two stages, or in one twice."""
    everything = [name for names in stages for name in names]
    if len(set(everything)) < len(everything):
        raise ExportError("a device is in two stages")


def _entry_of_units(ways: Ways, line: Ints) -> Ints:
    entry = np.zeros(ways.n_units, np.int32)
    entry[ways.unit[::-1]] = line[::-1]
    return entry


def _list_shapes(problem: Problem, placement: Placement, entry: Ints) -> Iterator[tuple[Cut, int, int]]:
    """Entries per stage, degree and replicas: those of the plan, then even divisions, by number and by seconds."""
    ways, replicates = problem.require_ways(), problem.objective.kind == "throughput"
    count = int(entry.max(initial=0)) + 1
    own = _cut_of(placement, ways, entry, count)
    widths = dict.fromkeys((group.tensor_parallel, group.data_parallel) for group in placement.stages)
    if own is not None:
        for degree, replicas in widths:
            yield own, degree, replicas
    usable = int((ways.device_class >= 0).sum())
    for degree in ways.degrees.tolist():
        for p in range(1, min(usable // degree, count) + 1):
            even = tuple(np.diff(np.linspace(0, count, p + 1).round().astype(int)).tolist())
            most = usable // (degree * p) if replicates else 1
            fitting = [d for d in range(1, most + 1) if not ways.trains or ways.microbatches % d == 0]
            yield even, degree, fitting[-1]
            balanced = _balance(problem, placement, entry, p, degree, fitting[-1])
            if balanced is not None:
                yield balanced, degree, fitting[-1]


def _balance(
    problem: Problem, placement: Placement, entry: Ints, stages: int, degree: int, replicas: int
) -> Cut | None:
    """The cut whose slowest stage takes least, with units that recompute as in the plan, or all."""
    ways = problem.require_ways()
    kind = int(ways.device_class[placement.stages[0].devices[0]])
    room = float(problem.capacity[ways.device_class == kind].min()) - ways.workspace_of(degree)
    for again in (ways.recompute[np.asarray(placement.way)], np.ones(ways.n_units, np.bool_)):
        way = _choose_ways(ways, again, degree)
        if way is None or not np.isfinite(ways.seconds[way, kind]).all():
            return None
        costs = sum_entries(problem, entry, way, kind)
        cut = balance_cut(costs, stages, replicas, room, ways.in_flight, ways.microbatches)
        if cut is not None:
            return cut
    return None


def _cut_of(placement: Placement, ways: Ways, entry: Ints, count: int) -> Cut | None:
    """How many entries each stage of a plan has; None if an entry is in two stages, or a stage has none of its own."""
    stage = np.full(ways.n_units, -1)
    stage[ways.unit[::-1]] = np.asarray(placement.stage)[::-1]
    of_entry = np.full(count, -1)
    of_entry[entry] = stage
    for empty in np.flatnonzero(of_entry < 0).tolist():
        of_entry[empty] = of_entry[empty - 1] if empty else 0
    counts = np.bincount(of_entry, minlength=len(placement.stages))
    whole = (of_entry[entry] == stage).all() and (np.diff(of_entry) >= 0).all() and counts.min() > 0
    return tuple(counts.tolist()) if whole else None


def _choose_ways(ways: Ways, again: Bools, degree: int) -> Ints | None:
    """Ways [n_units] of a degree that recompute where they should, if they can; None if a unit has no way."""
    chosen = np.empty(ways.n_units, np.int32)
    for unit in range(ways.n_units):
        fitting = ways.ways_of(unit, degree)
        if not len(fitting):
            return None
        alike = fitting[ways.recompute[fitting] == again[unit]]
        chosen[unit] = (alike if len(alike) else fitting)[0]
    return chosen


def _take_devices(
    problem: Problem, plan: Placement, count: int, degree: int, replicas: int
) -> tuple[StageGroup, ...] | None:
    """Devices for equal stages, those of the plan in its order first; each replica inside one node."""
    ways = problem.require_ways()
    used = [d for group in plan.stages for d in group.devices]
    rest = [d for d in np.flatnonzero(ways.device_class >= 0).tolist() if d not in set(used)]
    left, groups = [*used, *rest], []
    for _ in range(count):
        devices: list[int] = []
        for _ in range(replicas):
            start = next(
                (i for i in range(len(left) - degree + 1) if _alike(ways, left[i : i + degree], devices)), None
            )
            if start is None:
                return None
            devices += left[start : start + degree]
            del left[start : start + degree]
        groups.append(StageGroup(tuple(devices), replicas, degree))
    return tuple(groups)


def _alike(ways: Ways, devices: Sequence[int], others: Sequence[int]) -> bool:
    kinds = {int(ways.device_class[d]) for d in (*devices, *others)}
    return len(kinds) == 1 and len({int(ways.node[d]) for d in devices}) == 1
