"""Pipelines of equal stages: one degree of tensor parallelism, one number of replicas, whole layers in every stage.

What vLLM and Megatron-LM can say of a plan whose ops are split. The plan itself, where it is such a pipeline, else the
fastest that its degrees, replicas and cuts, or an even division, give: judged, and within all rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from placewise.errors import ExportError
from placewise.exporters.commands import name_nodes, printable
from placewise.exporters.stack import Stack
from placewise.exporters.stages import require_stack
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.ways import StageGroup, Ways
from placewise.simulate import judge_placement

_STAGE = re.compile(r"^# stage (\d+) is (\[.*\])", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class SplitStages:
    """Layers per stage, devices over which each replica splits its ops, replicas of each stage, and the placement.

    `recomputed` are the units of the model that recompute their activations.
    """

    stack: Stack
    layers: tuple[int, ...]
    degree: int
    replicas: int
    placement: Placement
    recomputed: int


def find_split_stages(problem: Problem, placement: Placement, target: str) -> SplitStages:
    """The pipeline of equal stages that is the plan, or else the fastest that was found.

    Raises ExportError for a model without one list of layers, and where no such pipeline keeps the rules.
    """
    stack = require_stack(problem, target)
    best: tuple[float, SplitStages] | None = None
    for layers, degree, replicas in _list_shapes(problem, placement, stack):
        made = _build(problem, placement, stack, layers, degree, replicas)
        if made is None:
            continue
        if made.placement == placement:
            return made
        judged = judge_placement(problem, made.placement)
        if judged.valid and (best is None or judged.value < best[0]):
            best = (judged.value, made)
    if best is None:
        remedy = "see what the plan does with placewise judge, or place with --tensor-parallel of one number"
        raise ExportError(f"no pipeline of equal stages that {target} can run keeps the rules", remedy=remedy)
    return best[1]


def _list_shapes(problem: Problem, placement: Placement, stack: Stack) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Layers per stage, degree and replicas: those of the plan first, then even divisions."""
    ways, replicates = problem.require_ways(), problem.objective.kind == "throughput"
    own = _layers_of(placement, stack)
    widths = dict.fromkeys((group.tensor_parallel, group.data_parallel) for group in placement.stages)
    if own is not None:
        for degree, replicas in widths:
            yield own, degree, replicas
    usable = int((ways.device_class >= 0).sum())
    for degree in ways.degrees.tolist():
        for p in range(1, min(usable // degree, stack.count) + 1):
            even = tuple(np.diff(np.linspace(0, stack.count, p + 1).round().astype(int)).tolist())
            most = usable // (degree * p) if replicates else 1
            fitting = [d for d in range(1, most + 1) if not ways.trains or ways.microbatches % d == 0]
            yield even, degree, fitting[-1]


def _layers_of(placement: Placement, stack: Stack) -> tuple[int, ...] | None:
    """How many layers each stage of a plan has; None if a layer is in two, or a stage has none."""
    stage = np.asarray(placement.stage)
    layer = np.clip(stack.of, 0, stack.count - 1)
    of_layer = np.full(stack.count, -1)
    of_layer[layer] = stage
    counts = np.bincount(of_layer, minlength=len(placement.stages))
    whole = (of_layer[layer] == stage).all() and (np.diff(of_layer) >= 0).all() and counts.min() > 0
    return tuple(counts.tolist()) if whole else None


def _build(
    problem: Problem, plan: Placement, stack: Stack, layers: tuple[int, ...], degree: int, replicas: int
) -> SplitStages | None:
    ways = problem.require_ways()
    way = _choose_ways(ways, np.asarray(plan.way), degree)
    groups = _take_devices(problem, plan, len(layers), degree, replicas)
    if way is None or groups is None:
        return None
    layer = np.clip(stack.of, 0, stack.count - 1)
    stage = np.searchsorted(np.cumsum(layers), layer, side="right")
    unit_stage = np.full(ways.n_units, -1, np.int32)
    unit_stage[ways.unit] = stage
    placement = Placement.of_stages(ways, groups, unit_stage, way)
    recomputed = int(ways.recompute[way].sum())
    return SplitStages(stack, layers, degree, replicas, placement, recomputed)


def _choose_ways(ways: Ways, own: Ints, degree: int) -> Ints | None:
    """Ways [n_units] of a degree that recompute as the plan does; None if a unit has none."""
    chosen = np.empty(ways.n_units, np.int32)
    for unit in range(ways.n_units):
        fitting = ways.ways_of(unit, degree)
        if not len(fitting):
            return None
        alike = fitting[ways.recompute[fitting] == ways.recompute[own[unit]]]
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


def _alike(ways: Ways, devices: list[int], others: list[int]) -> bool:
    kinds = {int(ways.device_class[d]) for d in (*devices, *others)}
    return len(kinds) == 1 and len({int(ways.node[d]) for d in devices}) == 1


def split_heading(problem: Problem, stages: SplitStages) -> list[str]:
    """Comment lines with the model, and with the devices and layers of every stage."""
    source = problem.graph.source
    model = printable(source.path) if source else "a model"
    lines = [f"# {stages.stack.count} layers ({printable(stages.stack.path)}) of {model}, placed by Placewise"]
    start = 0
    for s, (group, layers) in enumerate(zip(stages.placement.stages, stages.layers, strict=True)):
        names = json.dumps([problem.cluster.names[d] for d in group.devices])
        nodes = name_nodes(problem.cluster, group.devices)
        lines.append(f"# stage {s} is {names}: layers {start} to {start + layers - 1}{nodes}")
        start += layers
    return lines


def read_split_stages(problem: Problem, target: str, text: str, layers: list[int], degree: int, replicas: int) -> Ints:
    """The first device of each op's stage [n_ops], from the devices in the comments and the options of a command.

    Raises ExportError where they do not fit together.
    """
    stack = require_stack(problem, target)
    found = [json.loads(names) for _, names in _STAGE.findall(text)]
    if [int(number) for number, _ in _STAGE.findall(text)] != list(range(len(layers))) or min(layers, default=0) < 1:
        raise ExportError("the comments do not name the devices of every stage")
    if any(len(names) != degree * replicas for names in found) or sum(layers) != stack.count:
        raise ExportError(f"the sizes of the command do not fit {stack.count} layers and the devices of its stages")
    everything = [name for names in found for name in names]
    if len(set(everything)) < len(everything):
        raise ExportError("a device is in two stages")
    first = np.array([problem.cluster.index(names[0]) for names in found], np.int32)
    ends = np.cumsum(layers)
    if any(a >= b for a, b in pairwise([0, *ends.tolist()])):
        raise ExportError("a stage has no layers")
    device: Ints = first[np.searchsorted(ends, np.clip(stack.of, 0, stack.count - 1), side="right")]
    return device
