"""Equal stages of whole layers: what vLLM and Megatron-LM can express of a plan whose ops are split."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from placewise.errors import ExportError
from placewise.exporters.commands import printable
from placewise.exporters.equal_stages import find_equal_stages
from placewise.exporters.stack import Stack
from placewise.exporters.stages import require_stack
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.ways import Ways

_STAGE = re.compile(r"^# stage (\d+) is (\[.*\])", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class SplitStages:
    """Layers per stage, devices over which each replica splits its ops, replicas of each stage, and the placement."""

    stack: Stack
    layers: tuple[int, ...]
    degree: int
    replicas: int
    placement: Placement

    def recomputed_layers(self, problem: Problem) -> list[list[int]]:
        """The layers of each stage, by number, of which a unit recomputes."""
        ways, stage = problem.require_ways(), np.asarray(self.placement.stage)
        again = ways.recompute[np.asarray(self.placement.way)][ways.unit]
        again &= (self.stack.of >= 0) & (self.stack.of < self.stack.count)
        return [np.unique(self.stack.of[again & (stage == s)]).tolist() for s in range(len(self.layers))]


def find_split_stages(
    problem: Problem, placement: Placement, target: str, *, first_layers: bool = False
) -> SplitStages:
    """The pipeline of equal stages that is the plan, or else the fastest that was found.

    With `first_layers`, a target recomputes equally many layers of every stage, the first ones, or all. Raises
    ExportError for a model without one list of layers, and where no such pipeline keeps the rules.
    """
    stack = require_stack(problem, target)
    layer = np.clip(stack.of, 0, stack.count - 1).astype(np.int32)
    choices = None
    if first_layers and problem.require_ways().recompute.any():
        choices = partial(_recompute_first, problem.require_ways(), stack)
    made = find_equal_stages(problem, placement, layer, target, choices)
    return SplitStages(stack, made.cut, made.degree, made.replicas, made.placement)


def _recompute_first(ways: Ways, stack: Stack, unit_stage: Ints) -> list[Bools]:
    """The choices [n_units] to recompute the first layers of every stage, none to all."""
    layer = np.full(ways.n_units, -1, np.int64)
    inside = (stack.of >= 0) & (stack.of < stack.count)
    np.maximum.at(layer, ways.unit[inside], stack.of[inside])
    start = np.full(int(unit_stage.max(initial=0)) + 1, stack.count)
    np.minimum.at(start, unit_stage[layer >= 0], layer[layer >= 0])
    place = layer - start[unit_stage]
    return [(layer >= 0) & (place < count) for count in range(int(place.max(initial=0)) + 2)]


def split_heading(problem: Problem, stages: SplitStages) -> list[str]:
    """Comment lines with the model, and with the devices and layers of every stage."""
    source = problem.graph.source
    model = printable(source.path) if source else "a model"
    lines = [f"# {stages.stack.count} layers ({printable(stages.stack.path)}) of {model}, placed by Placewise"]
    start = 0
    for s, (group, layers) in enumerate(zip(stages.placement.stages, stages.layers, strict=True)):
        names = json.dumps([problem.cluster.names[d] for d in group.devices])
        lines.append(f"# stage {s} is {names}: layers {start} to {start + layers - 1}")
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
