"""uniform: pipelines of equal stages, as people write them by hand: one degree, one number of replicas.

Every (t, p, d, recompute all or nothing) that the devices allow is judged, with the units split evenly by number and by
seconds. `rule` takes the first that fits by Megatron-LM's rule of thumb (Narayanan et al., SC 2021, section 5: split a
layer over as few devices of a node as its memory needs, then add stages, and use what is left as replicas).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.model.ways import StageGroup, Ways, count_in_flight, list_replicas
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.shared.device_classes import DeviceClass, classify
from placewise.simulate.check.stages import check_stages
from placewise.simulate.judge.stages import stages_value

MAX_STAGES = 128
"""More equal stages are not tried."""
ALWAYS_TRIED = 32
"""Shapes that are judged however short the time is, until one keeps the rules."""


@dataclass(frozen=True, slots=True)
class UniformOptions:
    """`rule`: "best" of all uniform plans, or "megatron", the first that fits by its rule of thumb."""

    rule: Literal["best", "megatron"] = "best"


class Shape(NamedTuple):
    """A uniform plan: devices per split, stages, replicas, whether all units recompute, and how units are divided."""

    degree: int
    stages: int
    replicas: int
    recompute: bool
    by_seconds: bool


class UniformPlacer:
    """The plans that people write by hand: equal stages of equally many devices."""

    Options = UniformOptions
    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="uniform",
        summary="the best pipeline of equal stages: one degree, one number of replicas, all or nothing recomputed",
        source="Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021",
        replicates=True,
        splits=True,
    )

    def __init__(self, options: UniformOptions = UniformOptions()) -> None:
        self.options = options

    def supports(self, problem: Problem) -> str | None:
        return None if problem.ways is not None else "its ops may not be split: allow it with --tensor-parallel"

    def propose(self, search: SearchContext) -> Proposal:
        """The best uniform plan that keeps the rules, or a note that none does."""
        problem, best, least = search.problem, None, math.inf
        megatron = self.options.rule == "megatron"
        for tried, (floor, shape) in enumerate(_rank_shapes(problem, megatron=megatron)):
            if floor >= least:
                break
            if search.watch.out and (best is not None or tried >= ALWAYS_TRIED):
                return Proposal(best, reason=Reason.TIME_LIMIT)
            placement = build_uniform(problem, shape)
            if placement is None or check_stages(problem, placement):
                continue
            value = stages_value(problem, placement)
            if value < least:
                best, least = placement, value
            if megatron:
                break
        return Proposal(best, notes=() if best else ("no uniform plan fits",))


def _rank_shapes(problem: Problem, *, megatron: bool) -> list[tuple[float, Shape]]:
    """Shapes whose bytes fit, in the order in which they are tried, each with seconds that it takes at least.

    Best first; by Megatron's rule those with the fewest devices per replica, of these the widest split (takeaways 1
    and 2), and without recomputation if possible.
    """
    ways, classes = problem.require_ways(), classify(problem)
    usable = sum(len(one.members) for one in classes)
    most = (problem.constraints.replicas or usable) if problem.objective.kind == "throughput" else 1
    ranked = []
    for t, recompute in product(ways.degrees.tolist(), (False, True) if ways.recompute.any() else (False,)):
        way = _choose_ways(ways, t, recompute)
        if way is None:
            continue
        for p in range(1, min(usable // t, ways.n_units, MAX_STAGES) + 1):
            counts = list_replicas(ways, min(usable // (t * p), most))
            for by_seconds in (False,) if megatron else (False, True):
                amount = ways.seconds[way, 0] if by_seconds else np.ones(ways.n_units)
                if not np.isfinite(amount).all():
                    continue
                stages = _StageSums.of(problem, way, _divide(amount, p), p)
                for d in counts[-1:] if megatron else counts:
                    floor = stages.least_value(problem, classes, t, d)
                    if floor < math.inf:
                        ranked.append((0.0 if megatron else floor, Shape(t, p, d, recompute, by_seconds)))
    if megatron:
        ranked.sort(key=lambda pair: (pair[1].degree * pair[1].stages, -pair[1].degree, pair[1].recompute))
        return ranked
    return sorted(ranked, key=lambda pair: pair[0])


@dataclass(frozen=True, slots=True, eq=False)
class _StageSums:
    """Sums over the units of each of p stages, whatever devices they get: seconds by class, and bytes."""

    seconds: Floats  # [p, n_classes of the costs]
    crossing: Floats  # [p]
    gradients: Floats
    in_flight: Floats
    fixed: Floats

    @classmethod
    def of(cls, problem: Problem, way: Ints, stage: Ints, p: int) -> _StageSums:
        """The sums for ways [n_units] and stages [n_units]."""
        ways = problem.require_ways()

        def add(amount: Floats) -> Floats:
            return np.bincount(stage, weights=amount, minlength=p).astype(np.float64)

        makers = stage[ways.tensor_unit]
        counts = np.diff(ways.reader_offsets)
        readers, source = stage[ways.reader], np.repeat(makers, counts)
        tensor = np.repeat(np.arange(ways.n_tensors), counts)
        cut = readers != source
        arrivals = np.unique(np.stack((tensor[cut], readers[cut]), axis=1), axis=0)
        crossing = np.zeros(p)
        np.add.at(crossing, arrivals[:, 1], ways.tensor_bytes[arrivals[:, 0]])
        if problem.objective.kind == "throughput" or problem.cluster.transfers == "staged":
            sent = np.unique(tensor[cut])
            np.add.at(crossing, makers[sent], ways.tensor_bytes[sent])
        seconds = np.stack([add(ways.seconds[way, c]) for c in range(ways.n_classes)], axis=1)
        sums = (add(column[way]) for column in (ways.gradient_bytes, ways.bytes_in_flight, ways.bytes_fixed))
        return cls(seconds, crossing, *sums)

    def least_value(self, problem: Problem, classes: list[DeviceClass], t: int, d: int) -> float:
        """Seconds that the stages take at least, each on t · d devices, class by class; inf if bytes do not fit."""
        ways, p = problem.require_ways(), len(self.crossing)
        kind = np.repeat(np.arange(len(classes)), [one.count_splits(t) // d for one in classes])[:p]
        if len(kind) < p:
            return math.inf
        held = count_in_flight(ways.in_flight, ways.microbatches, np.full(p, d, np.int32))
        room = np.array([one.capacity for one in classes])[kind]
        with np.errstate(over="ignore"):
            if (ways.workspace_of(t) + self.fixed + held * self.in_flight > room * (1 + 1e-9)).any():
                return math.inf
        cost = np.array([one.cost_class for one in classes])[kind]
        boundary = np.array([one.boundary[0] for one in classes])[kind]
        group = np.array([(one.inside if t * d <= one.node_size else one.across)[0] for one in classes])[kind]
        with np.errstate(over="ignore"):
            seconds = self.seconds[np.arange(p), cost] / d + ways.passes * self.crossing / boundary / d
            seconds += ways.gradient_factor * (d - 1) / d * self.gradients / group / ways.microbatches
            return float(seconds.sum() if problem.objective.kind == "latency" else seconds.max())


def build_uniform(problem: Problem, shape: Shape) -> Placement | None:
    """The placement of a shape on the devices in their order; None if some unit has no such way or devices run out."""
    ways = problem.require_ways()
    way = _choose_ways(ways, shape.degree, shape.recompute)
    groups = _take_devices(ways, shape)
    if way is None or groups is None:
        return None
    amount = ways.seconds[way, 0] if shape.by_seconds else np.ones(ways.n_units)
    return Placement.of_stages(ways, groups, _divide(amount, shape.stages), way)


def _choose_ways(ways: Ways, degree: int, recompute: bool) -> Ints | None:
    """The first way [n_units] of a degree, with or without recomputation where there are both; None if one lacks."""
    chosen = np.full(ways.n_units, -1, np.int32)
    for prefers in (not recompute, recompute):  # the wished ones last, over the others
        fitting = np.flatnonzero((ways.degree == degree) & (ways.recompute == prefers))
        chosen[ways.way_unit[fitting[::-1]]] = fitting[::-1]
    return None if (chosen < 0).any() else chosen


def _take_devices(ways: Ways, shape: Shape) -> tuple[StageGroup, ...] | None:
    """Groups of alike devices in the order of the cluster; no replica spans nodes."""
    kinds = range(ways.n_classes)
    members = [ways.class_members(kind).tolist() for kind in kinds]
    groups: list[StageGroup] = []
    for of_kind in members:
        left = of_kind
        while len(groups) < shape.stages:
            devices, left = _take(ways, left, shape)
            if devices is None:
                break
            groups.append(StageGroup(tuple(devices), shape.replicas, shape.degree))
    return tuple(groups) if len(groups) == shape.stages else None


def _take(ways: Ways, left: list[int], shape: Shape) -> tuple[list[int] | None, list[int]]:
    taken: list[int] = []
    for _ in range(shape.replicas):
        last = shape.degree - 1
        starts = (i for i in range(len(left) - last) if ways.node[left[i]] == ways.node[left[i + last]])
        start = next(starts, None)
        if start is None:
            return None, left
        taken += left[start : start + shape.degree]
        left = left[:start] + left[start + shape.degree :]
    return taken, left


def _divide(amount: Floats, parts: int) -> Ints:
    """The part [n_units] of each unit: contiguous parts with nearly equal sums, none empty."""
    n = len(amount)
    ends = np.searchsorted(np.cumsum(amount), amount.sum() * np.arange(1, parts) / parts, side="left") + 1
    starts = np.zeros(parts, np.int64)
    for part, end in enumerate(ends.tolist(), start=1):
        starts[part] = min(max(end, starts[part - 1] + 1), n - (parts - part))
    return (np.searchsorted(starts, np.arange(n), side="right") - 1).astype(np.int32)
