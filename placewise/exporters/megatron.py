"""Megatron-LM: layers per pipeline stage, as --pipeline-model-parallel-layout (Megatron Core, user guide)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, OptionValues, asked_precision
from placewise.exporters.commands import heading, read_devices, read_option
from placewise.exporters.split_stages import find_split_stages, micro_batch_size, read_split_stages, split_heading
from placewise.exporters.stages import (
    LayerExporter,
    entry_bounds,
    read_stages,
    shared_weights,
)
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

_TENSOR = "--tensor-model-parallel-size"
_RECOMPUTE, _AGAIN = "--recompute-granularity", "--recompute-num-layers"
"""With the method "block", the first so many layers of every stage (Megatron Core, `TransformerBlock`)."""
LAYOUT, SIZE = "--pipeline-model-parallel-layout", "--pipeline-model-parallel-size"
_STAGE = re.compile(r"t(?:\*(\d{1,9}))?")


class MegatronExporter(LayerExporter):
    """The arguments of a training run: E is the embedding, t a layer, L the loss, and | separates stages."""

    info = ExportInfo(
        "megatron",
        writes="a line of arguments",
        loaded_by="Megatron-LM (Megatron Core 0.16)",
        verified="parsed by the tool's own code",
        cannot_say="anything but whole layers, in order, on accelerators",
        cannot_split="unequal stages, recomputation of other layers than the first ones of every stage",
        takes="transformers whose scopes number their layers",
        suffix=".sh",
        precisions=("fp16", "bf16"),
        splits=True,
        sequence_parallel=True,
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. Rank r of the pipeline runs stage r; the launcher decides on which device."""
        if placement.stages:
            return self._export_split(problem, placement)
        stages = self.find_stages(problem, placement)
        line = f"--num-layers {stages.stack.count} {SIZE} {len(stages.layers)} {LAYOUT} '{write_layout(stages.layers)}'"
        line += {"fp16": " --fp16", "bf16": " --bf16"}.get(asked_precision(problem), "")
        text, projected = "\n".join((*heading(problem, stages), line, "")), stages.placement()
        return Exported({"megatron.sh": text}, projected, shared_weights(problem, projected.device))

    def _export_split(self, problem: Problem, placement: Placement) -> Exported:
        stages = find_split_stages(problem, placement, self.info.name, first_layers=True)
        ways, count, layout = problem.require_ways(), len(stages.entries), write_layout(stages.entries)
        line = f"--num-layers {stages.stack.count} {_TENSOR} {stages.degree} {SIZE} {count} {LAYOUT} '{layout}'"
        if problem.constraints.sequence_parallel and stages.degree > 1:
            line += " --sequence-parallel"
        batch = micro_batch_size(problem)
        if ways.trains:
            line += f" --micro-batch-size {batch} --global-batch-size {batch * ways.microbatches}"
        again = max((len(layers) for layers in stages.recomputed_layers(problem)), default=0)
        if again:
            line += f" {_RECOMPUTE} full --recompute-method block {_AGAIN} {again}"
        line += {"fp16": " --fp16", "bf16": " --bf16"}.get(asked_precision(problem), "")
        world = f"# world size {count * stages.degree * stages.replicas}: {stages.replicas} data-parallel replicas"
        return Exported(
            {"megatron.sh": "\n".join((*split_heading(problem, stages), world, line, ""))}, stages.placement
        )

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`."""
        text = str(exported.files["megatron.sh"])
        layers = read_layout(read_option(text, LAYOUT))
        if problem.ways is not None:
            replicas = re.search(r"^# world size \d+: (\d+) data-parallel replicas$", text, re.MULTILINE)
            degree = int(read_option(text, _TENSOR))
            return read_split_stages(problem, self.info.name, text, layers, degree, int(replicas[1]) if replicas else 1)
        if int(read_option(text, SIZE)) != len(layers):
            raise ExportError(f"{SIZE} is {read_option(text, SIZE)}, and the layout has {len(layers)} stages")
        return read_stages(problem, self.info.name, read_devices(text), entry_bounds(layers))


def write_layout(layers: Sequence[int]) -> str:
    """The layers of each stage, such as ``Et*3|t*4L``."""
    parts = ["t" if count == 1 else f"t*{count}" for count in layers]
    return "E" + "|".join(parts) + "L"


def read_layout(layout: str) -> list[int]:
    """``Et*3|t*4L`` → [3, 4]. Raises ExportError."""
    if not (layout.startswith("E") and layout.endswith("L")):
        raise ExportError(f"the layout {layout!r} does not begin with E and end with L")
    matches = [_STAGE.fullmatch(stage) for stage in layout[1:-1].split("|")]
    if None in matches:
        raise ExportError(f"the layout {layout!r} has a stage that does not consist of whole layers")
    return [int(match[1] or 1) for match in matches if match]
