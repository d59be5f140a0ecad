"""vLLM: layers per pipeline stage, as the variable VLLM_PP_LAYER_PARTITION (vllm/envs.py, `get_pp_indices`)."""

from __future__ import annotations

from placewise.export.base import Exported, ExportInfo, OptionValues
from placewise.export.commands import devices_read, heading, numbers, option, visible
from placewise.export.stages import parts_of, shared_weights, stages_of, stages_read
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

PARTITION = "VLLM_PP_LAYER_PARTITION"


class VllmExporter:
    """One command: a stage per accelerator. Embeddings are on the first stage, norm and head on the last."""

    info = ExportInfo(
        "vllm",
        writes="a shell script with one command",
        loaded_by="vLLM 0.33",
        verified="parsed by the tool's own code",
        cannot_say="anything but whole layers, in order, on accelerators",
        takes="transformers whose scopes number their layers",
        suffix=".sh",
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. `MODEL`, a folder or repository with weights, is left to whoever runs the script."""
        stages = stages_of(problem, placement, self.info.name)
        names = [problem.cluster.names[device] for device in stages.devices]
        split = f"{PARTITION}={','.join(map(str, stages.layers))}"
        serve = 'vllm serve "${MODEL:?a folder or a repository}"'
        command = f"{visible(names)}{split} {serve} --tensor-parallel-size 1 --pipeline-parallel-size {len(names)}"
        text = "\n".join((*heading(problem, stages), command, ""))
        said = stages.placement()
        return Exported({"vllm.sh": text}, said, shared_weights(problem, said.device))

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`."""
        text = str(exported.files["vllm.sh"])
        layers = numbers(option(text, PARTITION), PARTITION)
        return stages_read(problem, self.info.name, devices_read(text), parts_of(layers))
