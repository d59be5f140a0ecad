"""Stages of whole layers, in order, on accelerators: the placements that pipelines of repeated layers can express.

The *entries* of a stack are everything before its first layer, its layers, and everything after the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from placewise.errors import ExportError
from placewise.exporters.base import ExportInfo
from placewise.exporters.equal_stages import find_equal_stages, require_disjoint
from placewise.exporters.projection import cut_into_stages, order_devices, stage_devices
from placewise.exporters.space import Line, Space, find_cuts
from placewise.exporters.stack import Stack, find_stack
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.ways import Ways
from placewise.simulate.blocks import held_by_several

_TOKEN_TYPES = ("int32", "int64")
MOST_LAYERS = 5_000
"""Of a model that is exported by layer: the bytes of all ranges of layers are tabled."""
MIN_SHARE, MIN_OPS_SHARE = 0.5, 0.2
"""The least shares that the stack must have, of the seconds of all layers and of the ops of the model."""


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Stage s has the entries of the stack from ``bounds[s]`` up to ``bounds[s + 1]``, on the devices ``devices[s]``.

    They are the `replicas` of the stage, one after the other, each of which splits its ops over `degree` devices.
    """

    stack: Stack
    devices: tuple[tuple[int, ...], ...]
    bounds: tuple[int, ...]
    placement: Placement
    degree: int = 1
    replicas: int = 1

    @property
    def layers(self) -> tuple[int, ...]:
        """How many layers each stage has."""
        return tuple(np.diff(np.clip(np.array(self.bounds) - 1, 0, self.stack.count)).tolist())

    def recomputed_layers(self, problem: Problem) -> list[list[int]]:
        """The layers of each stage, by number, of which a unit recomputes."""
        ways, stage = problem.require_ways(), np.asarray(self.placement.stage)
        again = ways.recompute[np.asarray(self.placement.way)][ways.unit]
        again &= (self.stack.of >= 0) & (self.stack.of < self.stack.count)
        return [np.unique(self.stack.of[again & (stage == s)]).tolist() for s in range(len(self.devices))]


class LayerExporter:
    """A base of targets of whole layers: of transformers only, or of any model; with `ends`, as in `find_stages`.

    With `first_layers`, the target recomputes equally many layers of every stage, the first ones, or all.
    """

    info: ExportInfo
    transformer: ClassVar[bool] = True
    ends: ClassVar[bool] = False
    first_layers: ClassVar[bool] = False

    def space(self, problem: Problem) -> Space:
        unit = _unit_of(require_stack(problem, self.info.name, transformer=self.transformer), ends=self.ends)
        return Space(lines=(Line(unit, accelerators(problem, self.info.name)),))

    def find_stages(self, problem: Problem, placement: Placement) -> Stages:
        """The stages nearest to a placement; of split ops, the fastest equal stages. Raises ExportError."""
        if placement.stages:
            return self._find_split_stages(problem, placement)
        return find_stages(problem, placement, self.info.name, transformer=self.transformer, ends=self.ends)

    def project(self, problem: Problem, placement: Placement) -> Placement:
        return self.find_stages(problem, placement).placement

    def _find_split_stages(self, problem: Problem, placement: Placement) -> Stages:
        """The pipeline of equal stages that is the plan, or else the fastest that was found."""
        stack, ways = require_stack(problem, self.info.name, transformer=self.transformer), problem.require_ways()
        choices = partial(_recompute_first, ways, stack) if self.first_layers and ways.recompute.any() else None
        unit = _unit_of(stack, ends=self.ends)
        made = find_equal_stages(problem, placement, unit, self.info.name, choices)
        cuts = (0, *np.cumsum(made.cut).tolist())
        devices = tuple(group.devices for group in made.placement.stages)
        return Stages(
            stack, devices, _entries_of(stack, cuts, ends=self.ends), made.placement, made.degree, made.replicas
        )


def find_stages(
    problem: Problem, placement: Placement, target: str, *, transformer: bool = True, ends: bool = False
) -> Stages:
    """The stages nearest to a placement; with `ends`, the ops before or after all layers may be stages of their own.

    Raises ExportError for a model or a cluster without such stages.
    """
    stack = require_stack(problem, target, transformer=transformer)
    unit = _unit_of(stack, ends=ends)
    usable = accelerators(problem, target)
    known = find_cuts(problem, placement, unit)
    if known is not None and usable[list(known[0])].all():
        return _make_stages(stack, *known, ends=ends)
    line = order_devices(problem, placement, unit, usable)
    if not line:
        remedy = "place the model on accelerators"
        raise ExportError(f"the plan uses no accelerator, and {target} runs stages on nothing else", remedy=remedy)
    cuts = cut_into_stages(problem, placement, unit, line)
    if not cuts:
        names = ", ".join(problem.cluster.names[device] for device in line)
        raise ExportError(
            f"no cut between layers lets {names} run every op of its stage",
            remedy="see what the plan puts elsewhere, and choose a target that places single ops",
        )
    kept = [stage for stage, (start, end) in enumerate(pairwise(cuts)) if start < end]
    bounds = (*(cuts[stage] for stage in kept), cuts[-1])
    return _make_stages(stack, tuple(line[stage] for stage in kept), bounds, ends=ends)


def _make_stages(stack: Stack, devices: tuple[int, ...], cuts: tuple[int, ...], *, ends: bool) -> Stages:
    bounds = _entries_of(stack, cuts, ends=ends)
    placement = Placement(stage_devices(bounds, devices)[stack.of + 1])
    return Stages(stack, tuple((device,) for device in devices), bounds, placement)


def _entries_of(stack: Stack, cuts: tuple[int, ...], *, ends: bool) -> tuple[int, ...]:
    """Bounds of entries from such bounds, or without `ends` of layers; what is after the last op is in the last one."""
    return (*cuts[:-1], stack.count + 2) if ends else entry_bounds(np.diff(cuts).tolist())


def _recompute_first(ways: Ways, stack: Stack, unit_stage: Ints) -> list[Bools]:
    """The choices [n_units] to recompute the first layers of every stage, none to all."""
    layer = np.full(ways.n_units, -1, np.int64)
    inside = (stack.of >= 0) & (stack.of < stack.count)
    np.maximum.at(layer, ways.unit[inside], stack.of[inside])
    start = np.full(int(unit_stage.max(initial=0)) + 1, stack.count)
    np.minimum.at(start, unit_stage[layer >= 0], layer[layer >= 0])
    place = layer - start[unit_stage]
    return [(layer >= 0) & (place < count) for count in range(int(place.max(initial=0)) + 2)]


def _unit_of(stack: Stack, *, ends: bool) -> Ints:
    """The entry of every op [n_ops], or without `ends` its layer."""
    return (stack.of + 1 if ends else np.clip(stack.of, 0, stack.count - 1)).astype(np.int32)


def entry_bounds(layers: Sequence[int]) -> tuple[int, ...]:
    """Layers per stage as bounds of entries; the first stage includes the ops before, the last the ops after.

    Raises ExportError for a stage without layers.
    """
    if min(layers, default=0) < 1:
        raise ExportError(f"{list(layers)} layers: every stage needs one")
    ends = np.cumsum(layers).tolist()
    return (0, *(end + 1 for end in ends[:-1]), ends[-1] + 2)


def require_stack(problem: Problem, target: str, *, transformer: bool = True) -> Stack:
    """The stack of a model, or of a transformer only. Raises ExportError for any other model."""
    stack = find_stack(problem)
    fault = ""
    if stack is None:
        fault = "the scopes of this model number no layers"
    elif stack.count > MOST_LAYERS:
        fault = f"{stack.path} numbers {stack.count:,} layers here, more than {MOST_LAYERS:,}"
    elif stack.share < MIN_SHARE:
        fault = f"the longest list of layers here, {stack.path}, takes only {stack.share:.0%} of the time of all layers"
    elif stack.ops_share < MIN_OPS_SHARE:
        fault = f"the layers of {stack.path} have only {stack.ops_share:.0%} of the ops"
    elif transformer and not stack.attends:
        fault = f"there is no attention in the layers of {stack.path}"
    elif transformer and _has_encoder_and_decoder(stack):
        fault = f"this model has an encoder and a decoder ({', '.join(sorted((stack.path, *stack.others)))})"
    if fault or stack is None:
        kind = "a decoder, or an encoder," if transformer else "a model"
        raise ExportError(
            f"{target} takes {kind} of one list of layers, and {fault}",
            remedy="choose a target that takes every model: placewise export --list",
        )
    return stack


def _has_encoder_and_decoder(stack: Stack) -> bool:
    """Whether the model has layers of an encoder and layers of a decoder."""
    words = [path.split(".") for path in (stack.path, *stack.others)]
    return any("encoder" in parts for parts in words) and any("decoder" in parts for parts in words)


def micro_batch_size(problem: Problem) -> int:
    """The dimension `batch` of the model, which is one micro-batch; 1 if it has none."""
    source = problem.graph.source
    return int(source.options.get("dims", {}).get("batch", 1)) if source else 1


def accelerators(problem: Problem, target: str) -> Bools:
    """Which devices [n_devices] are accelerators. Raises ExportError where there is none."""
    mask: Bools = ~problem.cluster.is_host
    if not mask.any():
        raise ExportError(f"{target} runs stages on accelerators, and the cluster has none", remedy="add some")
    return mask


def read_stages(
    problem: Problem, target: str, devices: Sequence[Sequence[str]], bounds: Sequence[int], size: int = 1
) -> Ints:
    """The first device of each op's stage [n_ops], from the names of its `size` devices and bounds of entries.

    Raises ExportError.
    """
    stack = require_stack(problem, target, transformer=False)
    whole = tuple(bounds[:1]) == (0,) and bounds[-1] == stack.count + 2 and all(a < b for a, b in pairwise(bounds))
    if not whole or len(bounds) != len(devices) + 1 or any(len(names) != size for names in devices):
        raise ExportError(f"{list(bounds)} on {len(devices)} × {size} devices are no stages of {stack.count} layers")
    require_disjoint(devices)
    first = tuple(problem.cluster.index(names[0]) for names in devices)
    return stage_devices(bounds, first)[stack.of + 1]


def note_other_model(problem: Problem, target: str) -> tuple[str, ...]:
    """A note for a target of language models if this is none: no input is integers of [batch, length]. GGUF files are
    language models.
    """
    tensors, source = problem.graph.tensors, problem.graph.source
    if source is not None and source.format == "gguf":
        return ()
    inputs = np.flatnonzero(tensors.producer < 0).tolist()
    if any(tensors.dtype_name(i) in _TOKEN_TYPES and len(tensors.shape[i]) == 2 for i in inputs):
        return ()
    return (f"{target} runs language models only, and no input of this model is a batch of token ids",)


def shared_weights(problem: Problem, device: Ints) -> tuple[str, ...]:
    """A note if ops on several devices use the same weight, as with tied embeddings."""
    names = held_by_several(problem, device)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (f"several devices use, and hold, the same weights: {', '.join(names[:3])}{more}",) if names else ()
