"""DeepSpeed: the entries of a PipelineModule's list on each stage (deepspeed/runtime/pipe/module.py).

The methods of `partition_method` (uniform, parameters, type:REGEX) balance stages themselves and take no list, so the
file defines a subclass that uses the stages of the plan.
"""

from __future__ import annotations

import ast
import json

from placewise.exporters.base import Exported, ExportInfo, OptionValues
from placewise.exporters.commands import heading
from placewise.exporters.space import Space
from placewise.exporters.stages import find_stages, read_stages, shared_weights, stage_space
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

_MODULE = '''\
"""A DeepSpeed pipeline with the stages of a plan.

    from {name} import PARTS, PlannedPipeline

    model = PlannedPipeline(layers, num_stages=len(PARTS) - 1, loss_fn=loss)

`layers` has {entries} entries: everything before the first layer, the {count} layers, and everything after the last.
Stage s has the entries from PARTS[s] up to PARTS[s + 1] and belongs on DEVICES[s].
"""

{heading}

from deepspeed.pipe import PipelineModule

PARTS = {parts}
DEVICES = {devices}


class PlannedPipeline(PipelineModule):
    def _partition_layers(self, method="planned"):
        if len(self._layer_specs) != PARTS[-1]:
            raise ValueError(f"the plan has {{PARTS[-1]}} entries, and the pipeline {{len(self._layer_specs)}}")
        self.parts = list(PARTS)
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])
'''


class DeepspeedExporter:
    """A module with a subclass of PipelineModule; embeddings, or norm and head, may be stages of their own."""

    info = ExportInfo(
        "deepspeed",
        writes="a Python module",
        loaded_by="DeepSpeed 0.19",
        verified="executed",
        cannot_say="anything but whole layers and what comes before or after them all, in order, on accelerators",
        takes="models that are one list of layers, numbered in their scopes",
        suffix=".py",
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`."""
        stages = find_stages(problem, placement, self.info.name, transformer=False, ends=True)
        text = _MODULE.format(
            name="planned_pipeline",
            entries=stages.bounds[-1],
            count=stages.stack.count,
            heading="\n".join(heading(problem, stages)),
            parts=list(stages.bounds),
            devices=json.dumps([problem.cluster.names[device] for device in stages.devices]),
        )
        projected = stages.placement()
        shared = shared_weights(problem, projected.device)
        notes = tuple(f"{note}: make such layers with TiedLayerSpec" for note in shared)
        return Exported({"planned_pipeline.py": text}, projected, notes)

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`."""
        return stage_space(problem, self.info.name, transformer=False, ends=True)

    def project(self, problem: Problem, placement: Placement) -> Placement:
        """See `RunningExporter`."""
        return find_stages(problem, placement, self.info.name, transformer=False, ends=True).placement()

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`."""
        values = {
            statement.targets[0].id: ast.literal_eval(statement.value)
            for statement in ast.parse(str(exported.files["planned_pipeline.py"])).body
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        }
        return read_stages(problem, self.info.name, values.get("DEVICES", []), tuple(values.get("PARTS", [0])))
