"""Pipelines of split stages as plain lists: what a stage takes, and the best pipeline of all.

`PlainStages.price` follows the formulas of docs/judge.md; `best_pipeline` tries every chain of ideals of the units,
every group of devices for every stage, every degree, and every way of every unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, product
from typing import NamedTuple

from placewise.model.placement import Placement
from placewise.model.problem import Problem

Group = tuple[int, ...]
"""Devices of one stage, ascending."""


class PlainStage(NamedTuple):
    """Units, devices, degree and replicas of one stage, and where the tensors at its ends come from and go to."""

    units: tuple[int, ...]
    devices: Group
    degree: int
    replicas: int
    in_flight: int
    others: tuple[tuple[int, Group], ...]  # the devices behind every unit that it exchanges tensors with


class PlainStages:
    """The lists of a problem with ways."""

    def __init__(self, problem: Problem) -> None:
        ways, cluster = problem.require_ways(), problem.cluster
        self.unit = ways.unit.tolist()
        self.n, self.classes = ways.n_units, ways.device_class.tolist()
        self.of_unit = [
            [w for w, unit in enumerate(ways.way_unit.tolist()) if unit == number] for number in range(self.n)
        ]
        self.degree, self.seconds = ways.degree.tolist(), ways.seconds.tolist()
        self.gradients, self.in_flight = ways.gradient_bytes.tolist(), ways.bytes_in_flight.tolist()
        self.fixed, self.sync = [sum(row) for row in ways.held_bytes.tolist()], ways.sync_bytes.tolist()
        self.workspace = dict(zip(sorted(set(self.degree)), ways.workspace.tolist(), strict=True))
        offsets = ways.reader_offsets.tolist()
        self.tensors = [
            (maker, size, ways.reader.tolist()[offsets[t] : offsets[t + 1]])
            for t, (maker, size) in enumerate(zip(ways.tensor_unit.tolist(), ways.tensor_bytes.tolist(), strict=True))
        ]
        self.microbatches, self.passes, self.factor = ways.microbatches, ways.passes, ways.gradient_factor
        self.trains, self.rule = ways.passes > 1 or ways.gradient_factor > 0, ways.in_flight
        self.node, self.capacity = ways.node.tolist(), problem.capacity.tolist()
        self.staged, self.latency = cluster.transfers == "staged", problem.objective.kind == "latency"
        self.link, self.location = cluster.link_class.tolist(), cluster.location.tolist()
        self.rate = list(zip(cluster.class_bandwidth.tolist(), cluster.class_latency.tolist(), strict=True))
        self.host, self.devices = len(cluster), range(len(cluster))
        self.most = 1 if self.latency else problem.constraints.replicas or len(cluster)
        self.able = [
            [all(problem.allowed[op, d] for op in range(problem.n_ops) if ways.unit[op] == unit) for d in self.devices]
            for unit in range(self.n)
        ]

    def route(self, own: Group, other: Group, nbytes: float) -> float:
        """Seconds on the slowest link, in either direction; staged: of those of the own devices with host memory."""
        ends = [self.location[d] for d in own]
        far = [self.host] if self.staged else [self.location[d] for d in other]
        links = {self.link[a][b] for a in ends for b in far} | {self.link[b][a] for a in ends for b in far}
        return max((self.rate[c][1] + nbytes / self.rate[c][0] for c in links if c), default=0.0)

    def gradient_seconds(self, devices: Group, replicas: int, nbytes: float) -> float:
        """Seconds per micro-batch in which replicas exchange gradients."""
        if replicas == 1 or not self.factor:
            return 0.0
        pairs = (
            {(self.location[d], self.host) for d in devices} | {(self.host, self.location[d]) for d in devices}
            if self.staged
            else {(self.location[a], self.location[b]) for a in devices for b in devices}
        )
        moved = self.factor * (replicas - 1) / replicas * nbytes
        rates = [self.rate[self.link[a][b]] for a, b in pairs if self.link[a][b]]
        return max((2 * (replicas - 1) * late + moved / fast for fast, late in rates), default=0.0) / self.microbatches

    def seconds_of(self, stage: PlainStage, way: dict[int, int]) -> float:
        """Seconds per micro-batch of a stage."""
        inside, others = set(stage.units), dict(stage.others)
        kind, d = self.classes[stage.devices[0]], stage.replicas
        total = sum(self.seconds[way[unit]][kind] for unit in stage.units) / d
        for tensor, (maker, size, readers) in enumerate(self.tensors):
            if maker in inside:
                targets = {others[reader] for reader in readers if reader not in inside}  # stages share no devices
                if targets and (self.staged or not self.latency):
                    for target in [next(iter(targets))] if self.staged else targets:
                        gathered = self.sync[way[maker]][tensor]
                        total += self.passes * self.route(stage.devices, target, size + gathered) / d
            elif own := [reader for reader in set(readers) if reader in inside]:
                gathered = sum(self.sync[way[reader]][tensor] for reader in own)
                total += self.passes * self.route(stage.devices, others[maker], size + gathered) / d
        nbytes = sum(self.gradients[way[unit]] for unit in stage.units)
        return total + self.gradient_seconds(stage.devices, d, nbytes)

    def bytes_of(self, stage: PlainStage, way: dict[int, int]) -> float:
        """Bytes on each device of a stage."""
        held = sum(stage.in_flight * self.in_flight[way[unit]] + self.fixed[way[unit]] for unit in stage.units)
        return held + self.workspace.get(stage.degree, 0.0)

    def fits(self, stage: PlainStage, way: dict[int, int]) -> bool:
        """Whether its devices hold that."""
        room = min(self.capacity[d] for d in stage.devices)
        return self.bytes_of(stage, way) <= room * (1 + 1e-12)

    def choices(self, stage: PlainStage) -> Iterator[dict[int, int]]:
        """Every choice of ways for the units of a stage that fits and can run."""
        kind = self.classes[stage.devices[0]]
        if not all(self.able[unit][d] for unit in stage.units for d in stage.devices):
            return
        listed = [
            [w for w in self.of_unit[unit] if self.degree[w] == stage.degree and self.seconds[w][kind] < math.inf]
            for unit in stage.units
        ]
        for ways in product(*listed):
            way = dict(zip(stage.units, ways, strict=True))
            if self.fits(stage, way):
                yield way

    def held(self, replicas: int, later: int) -> int:
        """Micro-batches that a stage holds, with so many replicas behind it."""
        if self.rule == "1f1b":
            return math.ceil((later + replicas) / replicas)
        return math.ceil(self.microbatches / replicas) if self.rule == "gpipe" else 1

    def groups(self, free: Sequence[int]) -> Iterator[tuple[Group, int, int]]:
        """Devices, degree and replicas that a stage may have."""
        usable = [d for d in free if self.classes[d] >= 0]
        for size in range(1, len(usable) + 1):
            for devices in combinations(usable, size):
                if len({self.classes[d] for d in devices}) > 1:
                    continue
                for degree in sorted(set(self.degree)):
                    per_node = [sum(self.node[d] == node for d in devices) for node in set(self.node)]
                    if not any(count % degree for count in per_node) and size // degree <= self.most:
                        yield devices, degree, size // degree

    def ideals_below(self, ideal: frozenset[int]) -> Iterator[frozenset[int]]:
        """Every smaller set of units that is closed under predecessors."""
        members = sorted(ideal)
        pairs = [(maker, reader) for maker, _, readers in self.tensors for reader in readers]
        for size in range(len(members)):
            for chosen in combinations(members, size):
                inside = set(chosen)
                if all(maker in inside or reader not in inside for maker, reader in pairs):
                    yield frozenset(chosen)

    def may_repeat(self, replicas: int, later: int) -> bool:
        """Whether a stage may have so many replicas, with so many in later stages."""
        if not self.trains:
            return True
        return self.microbatches % replicas == 0 and later + replicas <= self.microbatches

    def stages_of(self, placement: Placement) -> list[PlainStage]:
        """The stages of a placement."""
        assert placement.stage is not None
        stage_of = dict(zip(self.unit, placement.stage.tolist(), strict=True))
        stages, later = [], 0
        for number in reversed(range(len(placement.stages))):
            group = placement.stages[number]
            units = tuple(unit for unit in range(self.n) if stage_of[unit] == number)
            others = tuple((u, placement.stages[stage_of[u]].devices) for u in range(self.n) if u not in units)
            held = self.held(group.data_parallel, later)
            stages.append(PlainStage(units, group.devices, group.tensor_parallel, group.data_parallel, held, others))
            later += group.data_parallel
        return stages[::-1]

    def merge(self, one: float, other: float) -> float:
        """The value of two parts of a pipeline."""
        return one + other if self.latency else max(one, other)


def best_pipeline(problem: Problem) -> float:
    """The least value of any pipeline that keeps the rules; inf if there is none."""
    plain = PlainStages(problem)
    return _best_apart(plain) if plain.staged else best_of_all(plain)


def _best_apart(plain: PlainStages) -> float:
    """Where transfers are staged, what a stage takes does not depend on the devices of others."""
    kinds: dict[object, list[int]] = {}
    for d in plain.devices:
        routes = plain.link[plain.location[d]][plain.host], plain.link[plain.host][plain.location[d]]
        able = tuple(row[d] for row in plain.able)
        if plain.classes[d] >= 0:
            kinds.setdefault((plain.classes[d], plain.node[d], plain.capacity[d], able, routes), []).append(d)
    members = list(kinds.values())

    @cache
    def least_seconds(units: tuple[int, ...], devices: Group, degree: int, replicas: int, in_flight: int) -> float:
        others = tuple((unit, ()) for unit in range(plain.n))
        stage = PlainStage(units, devices, degree, replicas, in_flight, others)
        return min((plain.seconds_of(stage, way) for way in plain.choices(stage)), default=math.inf)

    @cache
    def groups_of(left: tuple[int, ...]) -> list[tuple[tuple[int, ...], Group, int, int]]:
        found = {}
        free = [d for kind, count in zip(members, left, strict=True) for d in kind[:count]]
        for devices, degree, replicas in plain.groups(free):
            taken = tuple(sum(d in kind for d in devices) for kind in members)
            found.setdefault((taken, degree), (taken, devices, degree, replicas))
        return list(found.values())

    @cache
    def best(ideal: frozenset[int], left: tuple[int, ...], later: int) -> float:
        if not ideal:
            return 0.0 if plain.latency else -math.inf
        least = math.inf
        for before in plain.ideals_below(ideal):
            units = tuple(sorted(ideal - before))
            for taken, devices, degree, replicas in groups_of(left):
                if not plain.may_repeat(replicas, later):
                    continue
                seconds = least_seconds(units, devices, degree, replicas, plain.held(replicas, later))
                if seconds < math.inf:
                    rest = tuple(a - b for a, b in zip(left, taken, strict=True))
                    least = min(least, plain.merge(seconds, best(before, rest, later + replicas)))
        return least

    return best(frozenset(range(plain.n)), tuple(map(len, members)), 0)


def best_of_all(plain: PlainStages) -> float:
    """Any links: every pipeline, one after the other."""
    least = math.inf
    stage_value = cache(
        lambda stage: min((plain.seconds_of(stage, way) for way in plain.choices(stage)), default=math.inf)
    )
    for chain in _pipelines(plain, frozenset(range(plain.n)), tuple(plain.devices), 0):
        behind = {unit: devices for units, devices, *_ in chain for unit in units}
        value = 0.0 if plain.latency else -math.inf
        for units, devices, degree, replicas, in_flight in chain:
            others = tuple((unit, behind[unit]) for unit in _neighbours(plain, units))
            seconds = stage_value(PlainStage(units, devices, degree, replicas, in_flight, others))
            value = plain.merge(value, seconds)
            if value >= least:
                break
        least = min(least, value)
    return least


def _neighbours(plain: PlainStages, units: tuple[int, ...]) -> list[int]:
    inside = set(units)
    readers = {r for maker, _, readers in plain.tensors if maker in inside for r in readers}
    makers = {maker for maker, _, readers in plain.tensors if inside & set(readers)}
    return sorted((readers | makers) - inside)


def _pipelines(
    plain: PlainStages, ideal: frozenset[int], free: tuple[int, ...], later: int
) -> Iterator[list[tuple[tuple[int, ...], Group, int, int, int]]]:
    if not ideal:
        yield []
        return
    for before in plain.ideals_below(ideal):
        units = tuple(sorted(ideal - before))
        for devices, degree, replicas in plain.groups(free):
            if plain.may_repeat(replicas, later):
                rest = tuple(d for d in free if d not in devices)
                own = (units, devices, degree, replicas, plain.held(replicas, later))
                for chain in _pipelines(plain, before, rest, later + replicas):
                    yield [*chain, own]
