"""What the user should know of a plan's devices: kinds that some cannot run, full memory, weights held twice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.simulate.blocks import held_by_several

FULL = 0.95
"""The share of its memory from which on a device is called full."""
MOST_KINDS = 3
"""So many kinds of op, or weights, are named."""


def device_remarks(problem: Problem, judgement: Judgement, placement: Placement | None = None) -> list[str]:
    """A sentence each, where there is something to say; weights that several devices hold if a placement is given."""
    held = () if placement is None else held_by_several(problem, placement.device)
    return [*_unsupported(problem), *_full(problem, judgement), *_copies(held)]


def _copies(held: Sequence[str]) -> list[str]:
    """Weights of which each device that uses them has a copy: tied ones, most often."""
    more = f" and {len(held) - MOST_KINDS} more" if len(held) > MOST_KINDS else ""
    return [f"held by every device that uses it: {', '.join(held[:MOST_KINDS])}{more}"] if held else []


def _unsupported(problem: Problem) -> list[str]:
    """What devices cannot run, so that it must go elsewhere: the same sentence for all that cannot run the same."""
    column = problem.graph.ops.kind
    count = dict(zip(column.values, np.bincount(column.codes, minlength=len(column.values)).tolist(), strict=True))
    found: dict[frozenset[str], list[str]] = {}
    for device in problem.cluster:
        kinds = frozenset(kind for kind in device.unsupported if count.get(kind))
        if kinds and device.available:
            found.setdefault(kinds, []).append(device.name)
    lines = []
    for kinds, devices in found.items():
        ops, named = sum(count[kind] for kind in kinds), ", ".join(sorted(kinds)[:MOST_KINDS])
        more = f" and {len(kinds) - MOST_KINDS} kinds more" if len(kinds) > MOST_KINDS else ""
        is_one = "1 op is on another device" if ops == 1 else f"{ops} ops are on other devices"
        lines.append(f"{', '.join(devices)} cannot run {named}{more}: {is_one}")
    return lines


def _full(problem: Problem, judgement: Judgement) -> list[str]:
    """Accelerators without any slack, where none was asked for."""
    full = [
        f"{use.device} ({use.peak / use.capacity:.0%})"
        for device, use in zip(problem.cluster, judgement.devices, strict=True)
        if use.ops and not device.is_host and FULL * use.capacity <= use.peak <= use.capacity < math.inf
    ]
    if not full or problem.constraints.headroom or problem.constraints.spare:
        return []
    keep = "--headroom 10% keeps a tenth of every accelerator free for what frameworks lose"
    return [f"all but full: {', '.join(full)}; {keep}"]
