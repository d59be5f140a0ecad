"""DeepSpeed: which entries of a PipelineModule's list are on which stage (deepspeed/runtime/pipe/module.py).

The methods that `partition_method` offers (uniform, parameters, type:REGEX) balance by themselves and take no list,
so the file is a class that puts the plan's in their place.
"""

from __future__ import annotations

import ast
import json

from placewise.export.base import Exported, ExportInfo, OptionValues
from placewise.export.commands import heading
from placewise.export.stages import shared_weights, stages_of, stages_read
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

_MODULE = '''\
"""A DeepSpeed pipeline with the stages of a plan.

    from {name} import PARTS, PlannedPipeline

    model = PlannedPipeline(layers, num_stages=len(PARTS) - 1, loss_fn=loss)

`layers` has {entries} entries: all that comes before the first layer, the {count} layers, and all that comes after
the last. Stage s has the entries from PARTS[s] to below PARTS[s + 1] and belongs on DEVICES[s].
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
        stages = stages_of(problem, placement, self.info.name, transformer=False, ends=True)
        text = _MODULE.format(
            name="planned_pipeline",
            entries=stages.parts[-1],
            count=stages.stack.count,
            heading="\n".join(heading(problem, stages)),
            parts=list(stages.parts),
            devices=json.dumps([problem.cluster.names[device] for device in stages.devices]),
        )
        said = stages.placement()
        notes = tuple(f"{note}: make such layers with TiedLayerSpec" for note in shared_weights(problem, said.device))
        return Exported({"planned_pipeline.py": text}, said, notes)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`."""
        found = {
            statement.targets[0].id: ast.literal_eval(statement.value)
            for statement in ast.parse(str(exported.files["planned_pipeline.py"])).body
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        }
        return stages_read(problem, self.info.name, found.get("DEVICES", []), tuple(found.get("PARTS", [0])))
