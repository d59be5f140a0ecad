"""The compute buffers that llama.cpp allocates for the command of a plan."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from placewise._util.text import shortened
from placewise._util.units import format_bytes
from placewise.core.compute_buffer import find_header
from placewise.exporters.llama_cpp.command import write_command
from placewise.exporters.llama_cpp.layout import Layout, find_layout
from placewise.exporters.llama_cpp.words import HOST, NO_PIPELINE, OVERRIDE
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.gguf.llama_flags import parse_flags
from placewise.readers.gguf.llama_graph import COMPARED
from placewise.readers.gguf.llama_memory import count_compute, count_copies
from placewise.simulate import judge_placement


@dataclass(frozen=True, slots=True)
class PlanBuffers:
    """The compute buffers of a plan's command: bytes by device, and how many of them each device has no memory for.

    They are approximate for an `architecture` whose buffers were not compared with llama.cpp's log. `ruled_out` says
    that the command keeps llama.cpp from a pipeline of micro-batches, whose buffers do not fit.
    """

    architecture: str
    sizes: Mapping[str, int]
    missing: Mapping[str, int]
    ruled_out: bool = False

    def describe(self) -> tuple[str, ...]:
        """What the buffers take, and on which devices there is less."""
        each = ", ".join(f"{format_bytes(size)} of {name}" for name, size in self.sizes.items())
        notes = [f"the compute buffers of this plan in llama.cpp take {each}"] if each else []
        if notes and self.architecture not in COMPARED:
            name = shortened(self.architecture, 40)
            notes.append(f"these are approximate: llama.cpp's graph of the architecture {name!r} was not compared")
        if self.ruled_out:
            notes.append(
                f"a pipeline of micro-batches has no room: {OVERRIDE} {NO_PIPELINE} moves no tensor, and avoids it"
            )
        for name, size in self.missing.items():
            have = format_bytes(max(self.sizes[name] - size, 0))
            notes.append(f"llama.cpp will lack {format_bytes(size)} of {name}: {have} are left for its compute buffer")
        return tuple(notes)


def find_buffers(problem: Problem, placement: Placement) -> PlanBuffers:
    """As `count_plan_buffers`, for a placement that llama.cpp can express."""
    return count_plan_buffers(find_layout(problem, placement))


def count_plan_buffers(layout: Layout) -> PlanBuffers:
    """The compute buffers that llama.cpp allocates for a layout; none where they are unknown.

    Where there is no memory for those of a pipeline, it does without: by itself where it finds none, and by the command
    where the user leaves it less than it finds.
    """
    problem = layout.problem
    header = find_header(problem)
    if header is None:
        return PlanBuffers("", {}, {})
    flags, gpus = parse_flags(shlex.split(write_command(layout))), list(layout.accelerators.values())
    called = {name: gpu for gpu, name in layout.accelerators.items()}
    if layout.layers.host >= 0:
        called[HOST] = layout.layers.host
    judged = judge_placement(problem, layout.placement)
    has_pipeline = count_copies(header, flags, gpus) > 1
    for pipelined in (True, False) if has_pipeline else (False,):
        counted = count_compute(header, flags, gpus, pipelined=pipelined)
        sizes = {problem.cluster.names[device]: counted[name] for name, device in called.items()}
        missing = {}
        for device in called.values():
            known = problem.cluster.devices[device]
            left = known.memory - known.reserved - judged.devices[device].peak
            if sizes[known.name] > left:
                missing[known.name] = math.ceil(sizes[known.name] - left)
        if not missing:
            break
    return PlanBuffers(header.architecture, sizes, missing, ruled_out=has_pipeline and not pipelined)
