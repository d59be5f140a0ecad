"""The rules of a placement that consists of stages, recomputed unit by unit apart from the judge's sums."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Violation
from placewise.model.ways import Ways


def check_stages(problem: Problem, placement: Placement) -> list[Violation]:
    """Every rule that the stages of a placement break.

    Kinds: coverage (an op without a stage, a unit in two), degree (a way or a group of another size than its stage),
    devices (shared by stages, unlike, or in several nodes), replicas, contiguity, order (of
    devices, where that is required), colocation, support and memory.
    """
    ways = problem.require_ways()
    broken = _cover(problem, ways, placement)
    if broken:
        return broken
    stage = dict(zip(ways.unit.tolist(), np.asarray(placement.stage).tolist(), strict=True))
    return [
        *_degrees(ways, placement, stage),
        *_devices(problem, ways, placement),
        *_replicas(problem, ways, placement),
        *_order(ways, stage),
        *_in_order(problem, placement),
        *_colocation(problem, placement),
        *_support(problem, ways, placement, stage),
        *_memory(problem, ways, placement, stage),
    ]


def _cover(problem: Problem, ways: Ways, placement: Placement) -> list[Violation]:
    n_stages = len(placement.stages)
    if placement.stage is None or placement.way is None:
        return [Violation("coverage", "the placement has no stages: ops of this problem may be split")]
    if len(placement.stage) != problem.n_ops or len(placement.way) != ways.n_units:
        return [Violation("coverage", f"the stages are those of {len(placement.stage)} ops, not of {problem.n_ops}")]
    stray = next((op for op, s in enumerate(placement.stage.tolist()) if not 0 <= s < n_stages), None)
    if stray is not None:
        name = problem.graph.ops.name[stray]
        return [Violation("coverage", f"op {name!r} has no stage", ops=(name,))]
    first: dict[int, int] = {}
    for op, (unit, s) in enumerate(zip(ways.unit.tolist(), placement.stage.tolist(), strict=True)):
        if first.setdefault(unit, s) != s:
            name = problem.graph.ops.name[op]
            return [Violation("coverage", f"the unit of op {name!r} is in two stages", ops=(name,))]
    empty = next((s for s in range(n_stages) if s not in set(placement.stage.tolist())), None)
    if empty is not None:
        return [Violation("coverage", f"stage {empty} has no ops")]
    for unit, way in enumerate(placement.way.tolist()):
        if not ways.way_offsets[unit] <= way < ways.way_offsets[unit + 1]:
            return [Violation("coverage", f"unit {unit} has no way {way}")]
    return []


def _degrees(ways: Ways, placement: Placement, stage: dict[int, int]) -> list[Violation]:
    violations = []
    for s, group in enumerate(placement.stages):
        t, d = group.tensor_parallel, group.data_parallel
        if t < 1 or d < 1 or len(group.devices) != t * d:
            violations.append(Violation("degree", f"stage {s} has {len(group.devices)} devices, not {d} × {t}"))
    for unit, way in enumerate(np.asarray(placement.way).tolist()):
        s = stage[unit]
        if ways.degree[way] != placement.stages[s].tensor_parallel:
            degree, t = int(ways.degree[way]), placement.stages[s].tensor_parallel
            violations.append(
                Violation("degree", f"unit {unit} runs on {degree} devices, and stage {s} splits over {t}")
            )
    return violations


def _devices(problem: Problem, ways: Ways, placement: Placement) -> list[Violation]:
    names, violations = problem.cluster.names, []
    uses = Counter(d for group in placement.stages for d in group.devices)
    for d in sorted(uses):
        if uses[d] > 1:
            violations.append(Violation("devices", f"{names[d]} is in {uses[d]} stages or replicas", names[d]))
    for s, group in enumerate(placement.stages):
        kinds = {int(ways.device_class[d]) for d in group.devices}
        if len(kinds) > 1 or -1 in kinds:
            violations.append(Violation("devices", f"the devices of stage {s} are not alike"))
        t = group.tensor_parallel
        for r in range(group.data_parallel):
            if len({int(ways.node[d]) for d in group.devices[r * t : (r + 1) * t]}) > 1:
                violations.append(Violation("devices", f"stage {s} is split over devices of different nodes"))
                break
    return violations


def _replicas(problem: Problem, ways: Ways, placement: Placement) -> list[Violation]:
    most = 1 if problem.objective.kind == "latency" else problem.constraints.replicas
    violations = []
    for s, group in enumerate(placement.stages):
        if group.data_parallel > most > 0:
            violations.append(Violation("replicas", f"stage {s} has {group.data_parallel} replicas, of {most} at most"))
    if not ways.trains:
        return violations
    total = sum(group.data_parallel for group in placement.stages)
    if total > ways.microbatches:
        violations.append(Violation("replicas", f"{total} replicas for a step of {ways.microbatches} micro-batches"))
    for s, group in enumerate(placement.stages):
        if ways.microbatches % group.data_parallel:
            message = (
                f"{group.data_parallel} replicas of stage {s} cannot share {ways.microbatches} micro-batches evenly"
            )
            violations.append(Violation("replicas", message))
    return violations


def _order(ways: Ways, stage: dict[int, int]) -> list[Violation]:
    for tensor, maker in enumerate(ways.tensor_unit.tolist()):
        for reader in ways.reader[ways.reader_offsets[tensor] : ways.reader_offsets[tensor + 1]].tolist():
            if stage[reader] < stage[maker]:
                message = f"unit {reader} reads from unit {maker}, which is in a later stage"
                return [Violation("contiguity", message)]
    return []


def _in_order(problem: Problem, placement: Placement) -> list[Violation]:
    """Stages that do not follow each other as the devices do, where that is required."""
    last = -1
    for s, group in enumerate(placement.stages if problem.constraints.ordered else ()):
        if min(group.devices) < last:
            message = f"stage {s} stands behind {problem.cluster.names[last]}, and its devices before it"
            return [Violation("order", message, problem.cluster.names[min(group.devices)])]
        last = max(group.devices)
    return []


def _colocation(problem: Problem, placement: Placement) -> list[Violation]:
    first: dict[int, int] = {}
    for op, (group, s) in enumerate(zip(problem.group.tolist(), np.asarray(placement.stage).tolist(), strict=True)):
        if group >= 0 and first.setdefault(group, s) != s:
            name = problem.graph.ops.name[op]
            return [Violation("colocation", f"op {name!r} is in another stage than its group", ops=(name,))]
    return []


def _support(problem: Problem, ways: Ways, placement: Placement, stage: dict[int, int]) -> list[Violation]:
    violations = []
    for s, group in enumerate(placement.stages):
        for op in np.flatnonzero(np.asarray(placement.stage) == s).tolist():
            unable = next((d for d in group.devices if not problem.allowed[op, d]), None)
            if unable is not None:
                op_name, device = problem.graph.ops.name[op], problem.cluster.names[unable]
                message = f"op {op_name!r} may not run on {device}"
                violations.append(Violation("support", message, device, (op_name,)))
                break
    for unit, way in enumerate(np.asarray(placement.way).tolist()):
        first = placement.stages[stage[unit]].devices[0]
        if not ways.seconds[way, ways.device_class[first]] < math.inf:
            device = problem.cluster.names[first]
            violations.append(Violation("support", f"unit {unit} cannot run on {device} in its way", device))
    return violations


def _memory(problem: Problem, ways: Ways, placement: Placement, stage: dict[int, int]) -> list[Violation]:
    violations, later = [], 0
    for s in range(len(placement.stages) - 1, -1, -1):
        group = placement.stages[s]
        d = group.data_parallel
        later += d
        copies = {"1f1b": -(-later // d), "gpipe": -(-ways.microbatches // d)}.get(ways.in_flight, 1)
        needed = ways.workspace_of(group.tensor_parallel)
        for unit, way in enumerate(np.asarray(placement.way).tolist()):
            if stage[unit] == s:
                needed += copies * float(ways.bytes_in_flight[way]) + float(sum(ways.held_bytes[way].tolist()))
        device = min(group.devices, key=lambda one: problem.capacity[one])
        capacity = float(problem.capacity[device])
        if needed > capacity * (1 + 1e-12):
            name = problem.cluster.names[device]
            message = f"stage {s} needs {needed:.0f} bytes on {name}, which has {capacity:.0f}"
            violations.append(Violation("memory", message, name, (), needed - capacity))
    return violations[::-1]
