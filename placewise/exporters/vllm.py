"""vLLM: layers per pipeline stage, as the variable VLLM_PP_LAYER_PARTITION (vllm/envs.py, `get_pp_indices`)."""

from __future__ import annotations

from collections.abc import Sequence

from placewise.exporters.base import Exported, ExportInfo, OptionValues, asked_precision
from placewise.exporters.commands import (
    count_nodes,
    heading,
    parse_numbers,
    read_devices,
    read_option,
    require_stages,
    set_visible_devices,
)
from placewise.exporters.stages import LayerExporter, entry_bounds, note_other_model, read_stages, shared_weights
from placewise.model.cluster import Cluster
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

PARTITION = "VLLM_PP_LAYER_PARTITION"
_SERVE = 'vllm serve "${MODEL:?a folder or a repository}"'
_TENSOR, _PIPELINE, _DATA = "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"
_FLAGS = {
    "fp32": " --dtype float32",
    "fp16": " --dtype float16",
    "bf16": " --dtype bfloat16",
    "fp8": " --dtype float16 --quantization fp8",
    "int8": " --dtype float16",
    "int4": " --dtype float16",
}
"""By precision (vLLM, engine arguments)."""
_CHECKPOINTS = ("int8", "int4")


class VllmExporter(LayerExporter):
    """One command with a stage per accelerator; embeddings are on the first stage, norm and head on the last."""

    info = ExportInfo(
        "vllm",
        writes="a shell script with one command",
        loaded_by="vLLM 0.33",
        verified="parsed by the tool's own code",
        cannot_say="anything but whole layers, in order, on accelerators",
        cannot_split="unequal stages",
        takes="transformers whose scopes number their layers",
        suffix=".sh",
        precisions=tuple(_FLAGS),
        splits=True,
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. The user of the script sets `MODEL`, a folder or repository with weights."""
        stages = self.find_stages(problem, placement)
        devices = [device for own in stages.devices for device in own]
        split = f"{PARTITION}={','.join(map(str, stages.layers))}"
        sizes = f"{_TENSOR} {stages.degree} {_PIPELINE} {len(stages.devices)}"
        sizes += f" {_DATA} {stages.replicas}" if stages.replicas > 1 else ""
        precision = asked_precision(problem)
        run = f"{set_visible_devices(problem.cluster, devices)}{split} {_SERVE}"
        text = "\n".join((*heading(problem, stages), f"{run} {sizes}{_FLAGS.get(precision, '')}", ""))
        notes = (
            *note_other_model(problem, self.info.name),
            *shared_weights(problem, stages.placement.device),
            *_note_nodes(problem.cluster, devices),
            *_note_file(problem),
        )
        if precision in _CHECKPOINTS:
            notes = (*notes, f"vLLM reads {precision} weights from a checkpoint that was quantized so (GPTQ, AWQ, …)")
        return Exported({"vllm.sh": text}, stages.placement, notes)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        text = str(exported.files["vllm.sh"])
        layers = parse_numbers(read_option(text, PARTITION), PARTITION)
        require_stages(text, _PIPELINE, len(layers))
        size = int(read_option(text, _TENSOR)) * (int(read_option(text, _DATA)) if _DATA in text else 1)
        return read_stages(problem, self.info.name, read_devices(text), entry_bounds(layers), size)


def _note_file(problem: Problem) -> tuple[str, ...]:
    """That a plan of a GGUF file counts its weights, and not those of the repository."""
    source = problem.graph.source
    if source is None or source.format != "gguf":
        return ()
    return (
        "the plan counts the weights of the GGUF file, which vLLM takes in one part, and not those of a repository",
    )


def _note_nodes(cluster: Cluster, devices: Sequence[int]) -> tuple[str, ...]:
    """What a command for several machines leaves to its user."""
    nodes = count_nodes(cluster, devices)
    if nodes < 2:
        return ()
    return (f"the stages are in {nodes} nodes: the command starts on one of them, with vLLM's workers on the others",)
