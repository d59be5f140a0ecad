"""DeepSpeed: the entries of a PipelineModule's list on each stage (deepspeed/runtime/pipe/module.py).

The methods of `partition_method` (uniform, parameters, type:REGEX) balance stages themselves and take no list, so the
file defines a subclass that uses the stages of the plan.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from placewise.exporters.base import Exported, ExportInfo, OptionValues
from placewise.exporters.commands import heading
from placewise.exporters.stages import LayerExporter, micro_batch_size, read_stages, shared_weights
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
        stages, ways, names = self.find_stages(problem, placement), problem.ways, problem.cluster.names
        devices = [[names[device] for device in own] for own in stages.devices]
        values = {
            "name": "planned_pipeline",
            "entries": stages.bounds[-1],
            "count": stages.stack.count,
            "heading": "\n".join(heading(problem, stages)),
            "parts": list(stages.bounds),
        }
        if ways is None:
            text = _MODULE.format(devices=json.dumps([own[0] for own in devices]), **values)
        else:
            steps = max(ways.microbatches // stages.replicas, 1)
            config = {
                "train_micro_batch_size_per_gpu": micro_batch_size(problem), "gradient_accumulation_steps": steps
            }  # fmt: skip
            text = _SPLIT_MODULE.format(
                devices=json.dumps(devices),
                replicas=stages.replicas,
                degree=stages.degree,
                recomputed=sorted(layer + 1 for layers in stages.recomputed_layers(problem) for layer in layers),
                config=json.dumps(config if ways.trains else {}),
                **values,
            )
        shared = shared_weights(problem, stages.placement.device)
        notes = tuple(f"{note}: make such layers with TiedLayerSpec" for note in shared)
        return Exported({"planned_pipeline.py": text}, stages.placement, notes)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        text = str(exported.files["planned_pipeline.py"])
        values: dict[str, Any] = {}
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Assign):
                target, found = statement.targets[0], ast.literal_eval(statement.value)
                several = isinstance(target, ast.Tuple)
                names = [ast.unparse(one) for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
                values |= dict(zip(names, found if several else [found], strict=True))
        size = values.get("MODEL", 1) * values.get("DATA", 1)
        devices = [[names] if isinstance(names, str) else names for names in values.get("DEVICES", [])]
        return read_stages(problem, self.info.name, devices, tuple(values.get("PARTS", [0])), size)
