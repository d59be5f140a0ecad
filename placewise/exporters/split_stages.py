"""Equal stages of whole layers: what tools of layers can express of a plan whose ops are split."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from placewise.errors import ExportError
from placewise.exporters.commands import name_nodes, printable
from placewise.exporters.equal_stages import find_equal_stages, require_disjoint
from placewise.exporters.stack import Stack
from placewise.exporters.stages import require_stack
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.ways import Ways

_STAGE = re.compile(r"^# stage (\d+) is (\[.*\])", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class SplitStages:
    """Entries per stage, devices over which each replica splits its ops, replicas of each stage, and the placement.

    Entries are layers, or with `ends`, everything before the first layer, the layers, and everything after the last.
    """

    stack: Stack
    entries: tuple[int, ...]
    degree: int
    replicas: int
    placement: Placement

    def recomputed_layers(self, problem: Problem) -> list[list[int]]:
        """The layers of each stage, by number, of which a unit recomputes."""
        ways, stage = problem.require_ways(), np.asarray(self.placement.stage)
        again = ways.recompute[np.asarray(self.placement.way)][ways.unit]
        again &= (self.stack.of >= 0) & (self.stack.of < self.stack.count)
        return [np.unique(self.stack.of[again & (stage == s)]).tolist() for s in range(len(self.entries))]


def find_split_stages(
    problem: Problem, placement: Placement, target: str, *, transformer: bool = True, ends: bool = False,
    first_layers: bool = False,
) -> SplitStages:  # fmt: skip
    """The pipeline of equal stages that is the plan, or else the fastest that was found.

    With `first_layers`, a target recomputes equally many layers of every stage, the first ones, or all. Raises
    ExportError for a model without one list of layers, and where no such pipeline keeps the rules.
    """
    stack = require_stack(problem, target, transformer=transformer)
    choices = None
    if first_layers and problem.require_ways().recompute.any():
        choices = partial(_recompute_first, problem.require_ways(), stack)
    made = find_equal_stages(problem, placement, _entries(stack, ends=ends), target, choices)
    cut = made.cut
    if ends:
        cut = (*cut[:-1], stack.count + 2 - sum(cut[:-1]))
    return SplitStages(stack, cut, made.degree, made.replicas, made.placement)


def _entries(stack: Stack, *, ends: bool) -> Ints:
    """The entry [n_ops] of every op."""
    entry: Ints = (stack.of + 1 if ends else np.clip(stack.of, 0, stack.count - 1)).astype(np.int32)
    return entry


def _recompute_first(ways: Ways, stack: Stack, unit_stage: Ints) -> list[Bools]:
    """The choices [n_units] to recompute the first layers of every stage, none to all."""
    layer = np.full(ways.n_units, -1, np.int64)
    inside = (stack.of >= 0) & (stack.of < stack.count)
    np.maximum.at(layer, ways.unit[inside], stack.of[inside])
    start = np.full(int(unit_stage.max(initial=0)) + 1, stack.count)
    np.minimum.at(start, unit_stage[layer >= 0], layer[layer >= 0])
    place = layer - start[unit_stage]
    return [(layer >= 0) & (place < count) for count in range(int(place.max(initial=0)) + 2)]


def split_heading(problem: Problem, stages: SplitStages, *, ends: bool = False) -> list[str]:
    """Comment lines with the model, and with the devices and layers of every stage."""
    source, count = problem.graph.source, stages.stack.count
    model = printable(source.path) if source else "a model"
    lines = [f"# {count} layers ({printable(stages.stack.path)}) of {model}, placed by Placewise"]
    start = -1 if ends else 0
    for s, (group, entries) in enumerate(zip(stages.placement.stages, stages.entries, strict=True)):
        names = json.dumps([problem.cluster.names[d] for d in group.devices])
        first, last = max(start, 0), min(start + entries, count) - 1
        here = f"layers {first} to {last}" if first <= last else "what comes before or after all layers"
        lines.append(f"# stage {s} is {names}: {here}{name_nodes(problem.cluster, group.devices)}")
        start += entries
    return lines


def micro_batch_size(problem: Problem) -> int:
    """The dimension `batch` of the model, which is one micro-batch; 1 if it has none."""
    source = problem.graph.source
    return int(source.options.get("dims", {}).get("batch", 1)) if source else 1


def read_split_stages(
    problem: Problem, target: str, text: str, entries: Sequence[int], degree: int, replicas: int, *,
    transformer: bool = True, ends: bool = False,
) -> Ints:  # fmt: skip
    """The first device of each op's stage [n_ops], from the devices in the comments and the options of a command.

    Raises ExportError where they do not fit together.
    """
    stack = require_stack(problem, target, transformer=transformer)
    found = [json.loads(names) for _, names in _STAGE.findall(text)]
    if [int(number) for number, _ in _STAGE.findall(text)] != list(range(len(entries))) or min(entries, default=0) < 1:
        raise ExportError("the comments do not name the devices of every stage")
    if any(len(names) != degree * replicas for names in found) or sum(entries) != stack.count + 2 * ends:
        raise ExportError(f"the sizes of the command do not fit {stack.count} layers and the devices of its stages")
    require_disjoint(found)
    first = np.array([problem.cluster.index(names[0]) for names in found], np.int32)
    device: Ints = first[np.searchsorted(np.cumsum(entries), _entries(stack, ends=ends), side="right")]
    return device
