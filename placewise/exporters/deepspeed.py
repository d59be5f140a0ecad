"""DeepSpeed: the entries of a PipelineModule's list on each stage (deepspeed/runtime/pipe/module.py).

The methods of `partition_method` (uniform, parameters, type:REGEX) balance stages themselves and take no list, so the
file defines a subclass that uses the stages of the plan.
"""

from __future__ import annotations

import ast
import json
from typing import Any

import numpy as np

from placewise.exporters.base import Exported, ExportInfo, OptionValues
from placewise.exporters.commands import heading
from placewise.exporters.split_stages import find_split_stages, micro_batch_size, read_split_stages, split_heading
from placewise.exporters.stages import LayerExporter, read_stages, shared_weights
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

_PARTITION = """\
    def _partition_layers(self, method="planned"):
        if len(self._layer_specs) != PARTS[-1]:
            raise ValueError(f"the plan has {{PARTS[-1]}} entries, and the pipeline {{len(self._layer_specs)}}")
        self.parts = list(PARTS)
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])
"""

_MODULE = (
    '''\
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
'''
    + _PARTITION
)

_SPLIT_MODULE = (
    '''\
"""A DeepSpeed pipeline with the stages, replicas, splits and recomputation of a plan.

    from {name} import CONFIG, PlannedPipeline

    model = PlannedPipeline(layers, loss_fn=loss)
    engine, *_ = deepspeed.initialize(model=model, config={{**your_config, **CONFIG}})

`layers` has {entries} entries: everything before the first layer, the {count} layers, and everything after the last.
Stage s has the entries from PARTS[s] up to PARTS[s + 1]; process r of its DATA × MODEL processes belongs on
DEVICES[s][r]. Entries split themselves over the group `model.mpu().get_slice_parallel_group()`, as Megatron's layers
do. The entries of RECOMPUTED compute their activations again.
"""

{heading}

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

PARTS = {parts}
DEVICES = {devices}
DATA, MODEL = {replicas}, {degree}
RECOMPUTED = {recomputed}
CONFIG = {config}


class PlannedPipeline(PipelineModule):
    def __init__(self, layers, **options):
        topology = PipeModelDataParallelTopology(num_pp=len(PARTS) - 1, num_mp=MODEL, num_dp=DATA)
        super().__init__(layers, topology=topology, activation_checkpoint_interval=int(bool(RECOMPUTED)), **options)

'''
    + _PARTITION
    + """
    def _is_checkpointable(self, funcs):
        places = (next(k for k, own in enumerate(self.forward_funcs) if own is func) for func in funcs)
        return all(self._local_start + place in RECOMPUTED for place in places)
"""
)


class DeepspeedExporter(LayerExporter):
    """A module with a subclass of PipelineModule; embeddings, or norm and head, may be stages of their own."""

    transformer, ends = False, True
    info = ExportInfo(
        "deepspeed",
        writes="a Python module",
        loaded_by="DeepSpeed 0.19",
        verified="executed",
        cannot_say="anything but whole layers and what comes before or after them all, in order, on accelerators",
        cannot_split="unequal stages",
        takes="models that are one list of layers, numbered in their scopes",
        suffix=".py",
        splits=True,
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`."""
        if placement.stages:
            return self._export_split(problem, placement)
        stages = self.find_stages(problem, placement)
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

    def _export_split(self, problem: Problem, placement: Placement) -> Exported:
        stages = find_split_stages(problem, placement, self.info.name, transformer=False, ends=True)
        ways, names = problem.require_ways(), problem.cluster.names
        again = [layer + 1 for layers in stages.recomputed_layers(problem) for layer in layers]
        batch = micro_batch_size(problem)
        steps = max(ways.microbatches // stages.replicas, 1)
        config = {"train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": steps}
        text = _SPLIT_MODULE.format(
            name="planned_pipeline",
            entries=sum(stages.entries),
            count=stages.stack.count,
            heading="\n".join(split_heading(problem, stages, ends=True)),
            parts=[0, *np.cumsum(stages.entries).tolist()],
            devices=json.dumps([[names[d] for d in group.devices] for group in stages.placement.stages]),
            replicas=stages.replicas,
            degree=stages.degree,
            recomputed=sorted(again),
            config=json.dumps(config if ways.trains else {}),
        )
        return Exported({"planned_pipeline.py": text}, stages.placement)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`."""
        text = str(exported.files["planned_pipeline.py"])
        values: dict[str, Any] = {}
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Assign):
                target, found = statement.targets[0], ast.literal_eval(statement.value)
                several = isinstance(target, ast.Tuple)
                names = [ast.unparse(one) for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
                values |= dict(zip(names, found if several else [found], strict=True))
        if problem.ways is not None:
            entries = np.diff(values["PARTS"]).tolist()
            sizes = values["MODEL"], values["DATA"]
            return read_split_stages(problem, self.info.name, text, entries, *sizes, transformer=False, ends=True)
        return read_stages(problem, self.info.name, values.get("DEVICES", []), tuple(values.get("PARTS", [0])))
