"""Stages of whole layers, in order, on accelerators: the placements that pipelines of repeated layers can express.

The *entries* of a stack are everything before its first layer, its layers, and everything after the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from placewise.errors import ExportError
from placewise.exporters.base import ExportInfo
from placewise.exporters.projection import cut_into_stages, order_devices, stage_devices
from placewise.exporters.space import Line, Space, find_cuts
from placewise.exporters.stack import Stack, find_stack
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate.blocks import held_by_several

MIN_SHARE = 0.5
"""The least share of the seconds of all layers that the stack must have."""


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Stage s, on ``devices[s]``, has the entries of the stack from ``bounds[s]`` up to ``bounds[s + 1]``."""

    stack: Stack
    devices: tuple[int, ...]
    bounds: tuple[int, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """How many layers each stage has."""
        return tuple(np.diff(np.clip(np.array(self.bounds) - 1, 0, self.stack.count)).tolist())

    def placement(self) -> Placement:
        """The device of every op."""
        return Placement(stage_devices(self.bounds, self.devices)[self.stack.of + 1])


class LayerExporter:
    """A base of targets of whole layers: of transformers only, or of any model; with `ends`, as in `find_stages`."""

    info: ExportInfo
    transformer: ClassVar[bool] = True
    ends: ClassVar[bool] = False

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`."""
        unit = _unit_of(require_stack(problem, self.info.name, transformer=self.transformer), ends=self.ends)
        return Space(lines=(Line(unit, accelerators(problem, self.info.name)),))

    def find_stages(self, problem: Problem, placement: Placement) -> Stages:
        """The stages nearest to a placement. Raises ExportError."""
        return find_stages(problem, placement, self.info.name, transformer=self.transformer, ends=self.ends)

    def project(self, problem: Problem, placement: Placement) -> Placement:
        """See `RunningExporter`."""
        return self.find_stages(problem, placement).placement()


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


def _make_stages(stack: Stack, devices: tuple[int, ...], bounds: tuple[int, ...], *, ends: bool) -> Stages:
    """Stages from bounds of entries, or without `ends` of layers; entries after the last op are in the last stage."""
    entries = (*bounds[:-1], stack.count + 2) if ends else entry_bounds(np.diff(bounds).tolist())
    return Stages(stack, devices, entries)


def _unit_of(stack: Stack, *, ends: bool) -> Ints:
    """The entry of every op [n_ops], or without `ends` its layer."""
    unit: Ints = (stack.of + 1 if ends else np.clip(stack.of, 0, stack.count - 1)).astype(np.int32)
    return unit


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
    elif stack.share < MIN_SHARE:
        fault = f"the longest list of layers here, {stack.path}, takes only {stack.share:.0%} of the time of all layers"
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


def accelerators(problem: Problem, target: str) -> Bools:
    """Which devices [n_devices] are accelerators. Raises ExportError where there is none."""
    mask: Bools = ~problem.cluster.is_host
    if not mask.any():
        raise ExportError(f"{target} runs stages on accelerators, and the cluster has none", remedy="add some")
    return mask


def read_stages(problem: Problem, target: str, devices: Sequence[str], bounds: Sequence[int]) -> Ints:
    """The device of each op [n_ops] from device names and bounds of entries. Raises ExportError."""
    stack = require_stack(problem, target, transformer=False)
    whole = bounds[:1] == (0,) and bounds[-1] == stack.count + 2 and all(a < b for a, b in pairwise(bounds))
    if not whole or len(bounds) != len(devices) + 1:
        raise ExportError(f"{list(bounds)} on {len(devices)} devices are no stages of {stack.count} layers")
    if len(set(devices)) < len(devices):
        raise ExportError(f"a device has two stages: {', '.join(devices)}")
    return Stages(stack, tuple(problem.cluster.index(name) for name in devices), tuple(bounds)).placement().device


def shared_weights(problem: Problem, device: Ints) -> tuple[str, ...]:
    """A note if ops on several devices use the same weight, as with tied embeddings."""
    names = held_by_several(problem, device)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (f"several devices use, and hold, the same weights: {', '.join(names[:3])}{more}",) if names else ()
