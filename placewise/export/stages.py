"""Stages of whole layers, in order, on accelerators: all that pipelines of repeated layers can say of a placement.

The *entries* of a stack are all that comes before its first layer, its layers, and all that comes after the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from placewise.errors import ExportError
from placewise.export.projection import in_stages, line_of, staged
from placewise.export.stack import Stack, stack_of
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate.blocks import held_by_several

MOST_OF_IT = 0.5
"""The share of the seconds of all layers that the list of layers which is cut has at least."""


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Stage s, on ``devices[s]``, has the entries of the stack from ``parts[s]`` to below ``parts[s + 1]``."""

    stack: Stack
    devices: tuple[int, ...]
    parts: tuple[int, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """How many layers each stage has."""
        return tuple(np.diff(np.clip(np.array(self.parts) - 1, 0, self.stack.count)).tolist())

    def placement(self) -> Placement:
        """The device of every op."""
        return Placement(staged(self.parts, self.devices)[self.stack.of + 1])


def stages_of(
    problem: Problem, placement: Placement, target: str, *, transformer: bool = True, ends: bool = False
) -> Stages:
    """The stages nearest to a placement; with `ends`, what comes before or after all layers may be a stage of its own.

    Raises ExportError for a model or a cluster that cannot be cut so.
    """
    stack = needed_stack(problem, target, transformer=transformer)
    unit = (stack.of + 1 if ends else np.clip(stack.of, 0, stack.count - 1)).astype(np.int32)
    line = line_of(problem, placement, unit, accelerators(problem, target))
    if not line:
        remedy = "place the model on accelerators"
        raise ExportError(f"the plan uses no accelerator, and {target} runs stages on nothing else", remedy=remedy)
    cuts = in_stages(problem, placement, unit, line)
    if not cuts:
        names = ", ".join(problem.cluster.names[device] for device in line)
        raise ExportError(
            f"no cut between layers lets {names} run every op of its stage",
            remedy="see what the plan puts elsewhere, and choose a target that places single ops",
        )
    kept = [stage for stage, (start, end) in enumerate(pairwise(cuts)) if start < end]
    parts = (*(cuts[stage] for stage in kept), cuts[-1])
    devices = tuple(line[stage] for stage in kept)
    return Stages(stack, devices, parts if ends else parts_of(np.diff(parts).tolist()))


def parts_of(layers: Sequence[int]) -> tuple[int, ...]:
    """Layers per stage as bounds of entries: what comes before is in the first stage, what comes after in the last.

    Raises ExportError for a stage without layers.
    """
    if min(layers, default=0) < 1:
        raise ExportError(f"{list(layers)} layers: every stage needs one")
    ends = np.cumsum(layers).tolist()
    return (0, *(end + 1 for end in ends[:-1]), ends[-1] + 2)


def needed_stack(problem: Problem, target: str, *, transformer: bool = True) -> Stack:
    """The stack of a model, of a transformer if so asked. Raises ExportError for a model that is none."""
    stack = stack_of(problem)
    lacks = ""
    if stack is None:
        lacks = "the scopes of this model number no layers"
    elif stack.share < MOST_OF_IT:
        lacks = f"the longest list of layers here, {stack.path}, is but {stack.share:.0%} of all layers"
    elif transformer and not stack.attends:
        lacks = f"there is no attention in the layers of {stack.path}"
    elif transformer and _coded(stack):
        lacks = f"this model has an encoder and a decoder ({', '.join(sorted((stack.path, *stack.others)))})"
    if lacks or stack is None:
        kind = "a decoder, or an encoder," if transformer else "a model"
        raise ExportError(
            f"{target} takes {kind} of one list of layers, and {lacks}",
            remedy="choose a target that takes every model: placewise export --list",
        )
    return stack


def _coded(stack: Stack) -> bool:
    """Whether one list of layers is an encoder's and another one a decoder's."""
    words = [path.split(".") for path in (stack.path, *stack.others)]
    return any("encoder" in parts for parts in words) and any("decoder" in parts for parts in words)


def accelerators(problem: Problem, target: str) -> Bools:
    """Which devices [n_devices] are accelerators. Raises ExportError where there is none."""
    found: Bools = ~problem.cluster.is_host
    if not found.any():
        raise ExportError(f"{target} runs stages on accelerators, and the cluster has none", remedy="add some")
    return found


def stages_read(problem: Problem, target: str, devices: Sequence[str], parts: Sequence[int]) -> Ints:
    """The device of each op [n_ops] as names of devices and bounds of entries say it. Raises ExportError."""
    stack = needed_stack(problem, target, transformer=False)
    whole = parts[:1] == (0,) and parts[-1] == stack.count + 2 and all(start < end for start, end in pairwise(parts))
    if not whole or len(parts) != len(devices) + 1:
        raise ExportError(f"{list(parts)} on {len(devices)} devices are no stages of {stack.count} layers")
    if len(set(devices)) < len(devices):
        raise ExportError(f"a device has two stages: {', '.join(devices)}")
    return Stages(stack, tuple(problem.cluster.index(name) for name in devices), tuple(parts)).placement().device


def shared_weights(problem: Problem, device: Ints) -> tuple[str, ...]:
    """A note for the user where ops on several devices use one weight, as with tied embeddings; () if none do."""
    found = held_by_several(problem, device)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (f"several devices use, and hold, the same weights: {', '.join(found[:3])}{more}",) if found else ()
