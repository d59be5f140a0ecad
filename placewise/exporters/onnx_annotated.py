"""ONNX, annotated: the model as it is, every node with the device that it goes to, for one session of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx

from placewise.core.target_rules import keep_off
from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, ExportOption, OptionValues
from placewise.exporters.onnx import PROCESSOR, external_weight_notes, require_onnx
from placewise.exporters.space import Space
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

KEY, SETTING = "layer_ann", "session.layer_assignment_settings"
FILE = "annotated.onnx"
_METADATA_IR = 10  # the first IR version whose nodes have metadata


class AnnotatedOnnxExporter:
    """Node metadata that ONNX Runtime's layer assignment reads, and the session setting that goes with it.

    The setting is also in the metadata of the model, under its name, and in the notes.
    """

    info = ExportInfo(
        "onnx-annotated",
        writes=f"one .onnx file: the model with {KEY!r} on every node",
        loaded_by=f"ONNX Runtime 1.31 and other versions that know {SETTING}",
        verified="parsed by the tool's own code",
        cannot_say="several accelerators or several processors, replicas, or when what runs",
        takes="ONNX models for inference",
        suffix=".onnx",
        options={
            "accelerator": ExportOption("gpu", "ONNX Runtime's word for the accelerator: gpu, cuda, dml, npu or gpu:1")
        },
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. Raises ExportError for a placement on more than one accelerator, or processor."""
        graph, cluster = problem.graph, problem.cluster
        words = _name_devices(problem, placement, str(options["accelerator"]))
        model = onnx.ModelProto()
        model.CopyFrom(require_onnx(graph))
        model.ir_version = max(model.ir_version, _METADATA_IR)
        home = {node: int(placement.device[op]) for op in range(graph.n_ops) for node in graph.ops.origin[op]}
        for index, node in enumerate(model.graph.node):
            if index in home:
                _annotate(node, cluster.names[home[index]])
        setting = "; ".join(f"{word}(={cluster.names[device]})" for device, word in words.items())
        model.metadata_props.append(onnx.StringStringEntryProto(key=SETTING, value=setting))
        notes = (f"set the session option {SETTING} to {setting!r}", *external_weight_notes([model]))
        return Exported({FILE: model.SerializeToString()}, Placement(placement.device), notes)

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`: a problem for every accelerator with every processor."""
        require_onnx(problem.graph)
        usable = np.flatnonzero(problem.allowed.any(axis=0)).tolist()
        inside = [device for device in usable if problem.cluster.devices[device].kind in PROCESSOR]
        beside = [device for device in usable if device not in inside]
        pairs = [{one, other} for one in inside or [-1] for other in beside or [-1]]
        return Space(problems=tuple(keep_off(problem, [d for d in usable if d not in pair]) for pair in pairs))

    def project(self, problem: Problem, placement: Placement) -> Placement:
        _name_devices(problem, placement, "gpu")
        require_onnx(problem.graph)
        return Placement(placement.device)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`. Each node has at most one annotation, and all nodes of an op have the same one."""
        content = exported.files[FILE]
        model = onnx.ModelProto.FromString(content if isinstance(content, bytes) else content.encode())
        device = np.full(problem.n_ops, -1, np.int32)
        for op in range(problem.n_ops):
            words = [entry for node in problem.graph.ops.origin[op] for entry in _annotations(model.graph.node[node])]
            if len(set(words)) > 1 or len(words) > len(problem.graph.ops.origin[op]):
                raise ExportError(
                    f"the op {problem.graph.ops.name[op]!r} is annotated with {', '.join(sorted(set(words)))}"
                )
            device[op] = problem.cluster.index(words[0]) if words else -1
        return device


def _name_devices(problem: Problem, placement: Placement, accelerator: str) -> dict[int, str]:
    """ONNX Runtime's word for each device in use. Raises ExportError for two devices of one word."""
    devices, used = problem.cluster.devices, np.unique(placement.device).tolist()
    words = {device: "cpu" if devices[device].kind in PROCESSOR else accelerator for device in used}
    if len(set(words.values())) < len(words):
        raise ExportError(
            "a session of ONNX Runtime has one accelerator and one processor, and the placement uses "
            + ", ".join(problem.cluster.names[device] for device in used),
            remedy="export to 'onnx', which has a session per piece",
        )
    return words


def _annotate(node: onnx.NodeProto, word: str) -> None:
    kept = [entry for entry in node.metadata_props if entry.key != KEY]
    del node.metadata_props[:]
    node.metadata_props.extend([*kept, onnx.StringStringEntryProto(key=KEY, value=word)])


def _annotations(node: onnx.NodeProto) -> list[str]:
    return [entry.value for entry in node.metadata_props if entry.key == KEY]
