"""Megatron-LM: layers per pipeline stage, as --pipeline-model-parallel-layout (Megatron Core, user guide)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, OptionValues, asked_precision
from placewise.exporters.commands import heading, read_devices, read_option, require_stages
from placewise.exporters.stages import (
    LayerExporter,
    Stages,
    entry_bounds,
    micro_batch_size,
    note_other_model,
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
_WORLD = re.compile(r"^# world size \d+: (\d+) data-parallel replicas$", re.MULTILINE)
_STAGE = re.compile(r"t(?:\*(\d{1,9}))?")


class MegatronExporter(LayerExporter):
    """The arguments of a training run: E is the embedding, t a layer, L the loss, and | separates stages."""

    first_layers = True
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
        stages, ways = self.find_stages(problem, placement), problem.ways
        lines, count = heading(problem, stages), len(stages.devices)
        tensor = "" if ways is None else f" {_TENSOR} {stages.degree}"
        line = f"--num-layers {stages.stack.count}{tensor} {SIZE} {count} {LAYOUT} '{write_layout(stages.layers)}'"
        if ways is not None:
            line += self._split_arguments(problem, stages)
            world = count * stages.degree * stages.replicas
            lines.append(f"# world size {world}: {stages.replicas} data-parallel replicas")
        line += {"fp16": " --fp16", "bf16": " --bf16"}.get(asked_precision(problem), "")
        notes = (
            *note_other_model(problem, self.info.name),
            *shared_weights(problem, stages.placement.device),
        )
        return Exported({"megatron.sh": "\n".join((*lines, line, ""))}, stages.placement, notes)

    def _split_arguments(self, problem: Problem, stages: Stages) -> str:
        """What else a run of split ops is told: sequence parallelism, batches and recomputation."""
        arguments, batch, ways = "", micro_batch_size(problem), problem.require_ways()
        if problem.constraints.sequence_parallel and stages.degree > 1:
            arguments += " --sequence-parallel"
        if ways.trains:
            arguments += f" --micro-batch-size {batch} --global-batch-size {batch * ways.microbatches}"
        again = max((len(layers) for layers in stages.recomputed_layers(problem)), default=0)
        return arguments + (f" {_RECOMPUTE} full --recompute-method block {_AGAIN} {again}" if again else "")

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        text, size = str(exported.files["megatron.sh"]), 1
        if problem.ways is not None:
            replicas = _WORLD.search(text)
            size = int(read_option(text, _TENSOR)) * (int(replicas[1]) if replicas else 0)
        layers = read_layout(read_option(text, LAYOUT))
        require_stages(text, SIZE, len(layers))
        return read_stages(problem, self.info.name, read_devices(text), entry_bounds(layers), size)


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
