"""Megatron-LM: layers per pipeline stage, as --pipeline-model-parallel-layout (Megatron Core, user guide)."""

from __future__ import annotations

import re

from placewise.errors import ExportError
from placewise.export.base import Exported, ExportInfo, OptionValues
from placewise.export.commands import devices_read, heading, option
from placewise.export.stages import Stages, parts_of, shared_weights, stages_of, stages_read
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

LAYOUT, SIZE = "--pipeline-model-parallel-layout", "--pipeline-model-parallel-size"
_STAGE = re.compile(r"t(?:\*(\d{1,9}))?")


class MegatronExporter:
    """The arguments of a training run: E for the embedding, t for a layer, L for the loss, | between stages."""

    info = ExportInfo(
        "megatron",
        writes="a line of arguments",
        loaded_by="Megatron-LM (Megatron Core 0.16)",
        verified="parsed by the tool's own code",
        cannot_say="anything but whole layers, in order, on accelerators",
        takes="transformers whose scopes number their layers",
        suffix=".sh",
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. Rank r of the pipeline is stage r; which device that is, is up to the launcher."""
        stages = stages_of(problem, placement, self.info.name)
        line = f"--num-layers {stages.stack.count} {SIZE} {len(stages.layers)} {LAYOUT} '{layout_of(stages)}'"
        text, said = "\n".join((*heading(problem, stages), line, "")), stages.placement()
        return Exported({"megatron.sh": text}, said, shared_weights(problem, said.device))

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`."""
        text = str(exported.files["megatron.sh"])
        layers = layers_read(option(text, LAYOUT))
        if int(option(text, SIZE)) != len(layers):
            raise ExportError(f"{SIZE} is {option(text, SIZE)}, and the layout has {len(layers)} stages")
        return stages_read(problem, self.info.name, devices_read(text), parts_of(layers))


def layout_of(stages: Stages) -> str:
    """``Et*3|t*4L``: what each stage holds."""
    parts = ["t" if count == 1 else f"t*{count}" for count in stages.layers]
    return "E" + "|".join(parts) + "L"


def layers_read(layout: str) -> list[int]:
    """``Et*3|t*4L`` → [3, 4]. Raises ExportError."""
    if not (layout.startswith("E") and layout.endswith("L")):
        raise ExportError(f"the layout {layout!r} does not begin with E and end with L")
    found = [_STAGE.fullmatch(stage) for stage in layout[1:-1].split("|")]
    if None in found:
        raise ExportError(f"the layout {layout!r} has a stage that is not of whole layers")
    return [int(match[1] or 1) for match in found if match]
