"""ONNX: a sub-model per piece, a file with the device, inputs and outputs of each, and a script that runs them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import onnx

from placewise.core.split_model import cut, original, sub_models
from placewise.errors import ExportError, InputError
from placewise.exporters.base import Exported, ExportInfo, ExportOption, OptionValues
from placewise.exporters.space import Space
from placewise.model.cluster import Cluster
from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.onnx.submodels import Submodel
from placewise.transform.pieces import Pieces

PIPELINE, SCRIPT = "pipeline.json", "run.py"
HOST, ACCELERATOR = "CPUExecutionProvider", "CUDAExecutionProvider"
PROCESSOR = ("cpu", "core")
"""Kinds of devices that ONNX Runtime treats as the CPU."""
_SCRIPT = f'''\
"""Run the pieces of a model one after the other: python {SCRIPT} INPUTS.npz OUTPUTS.npz, or `from run import load`.

{PIPELINE} lists the device, the inputs and the outputs of every piece; pieces that do not wait for each other may run
at the same time.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).resolve().parent


def load():
    """A function from inputs to outputs, both by name."""
    pipeline = json.loads((HERE / "{PIPELINE}").read_text(encoding="utf-8"))
    options, sessions = onnxruntime.SessionOptions(), []
    options.enable_mem_pattern = False  # it takes memory that the plan does not count
    options.add_session_config_entry("session.force_spinning_stop", "1")  # threads of a piece would slow the next
    for piece in pipeline["pieces"]:
        providers = [tuple(provider) for provider in pipeline["providers"][piece["device"]]]
        sessions.append(onnxruntime.InferenceSession(HERE / piece["file"], options, providers=providers))

    def run(inputs):
        values = dict(inputs)
        for piece, session in zip(pipeline["pieces"], sessions):
            feeds = {{name: values[name] for name in piece["reads"]}}
            values.update(zip(piece["makes"], session.run(piece["makes"], feeds)))
        return {{name: values[name] for name in pipeline["outputs"]}}

    return run


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python {SCRIPT} INPUTS.npz OUTPUTS.npz")
    np.savez(sys.argv[2], **load()(np.load(sys.argv[1])))
'''


class OnnxExporter:
    """The pieces of the runtime `onnxruntime` as files; each node is in one, constants in all that need them."""

    info = ExportInfo(
        "onnx",
        writes=f"a .onnx file per piece, {PIPELINE} (what runs where, what is handed on) and {SCRIPT}",
        loaded_by="ONNX Runtime 1.31, and whatever loads ONNX",
        verified="executed",
        cannot_say="the order of ops inside a piece",
        takes="ONNX models for inference",
        options={
            "pieces": ExportOption("", "how the placement is cut: operator, calls or few (as its objective is judged)"),
            "provider": ExportOption(ACCELERATOR, "the execution provider of devices that are no processors"),
        },
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. Shapes are those of the plan; external weights stay in their files."""
        graph = problem.graph
        try:
            pieces = cut(problem, placement, str(options["pieces"]))
            parts, _ = sub_models(graph, pieces, outside=True)
        except InputError as error:
            raise ExportError(error.problem, where=error.where, remedy=error.remedy) from None
        names = {
            number: f"piece-{number:0{len(str(len(parts)))}d}.onnx" for number, part in enumerate(parts) if part.makes
        }
        document = _document(problem, placement, pieces, parts, names, str(options["provider"]))
        files: dict[str, str | bytes] = {
            name: parts[number].model.SerializeToString() for number, name in names.items()
        }
        files |= {PIPELINE: json.dumps(document, indent=1, ensure_ascii=False), SCRIPT: _SCRIPT}
        return Exported(files, placement, external_weight_notes(part.model for part in parts))

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`: everything."""
        require_onnx(problem.graph)
        return Space(problems=(problem,))

    def project(self, problem: Problem, placement: Placement) -> Placement:
        require_onnx(problem.graph)
        return placement

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`. Every op must be named once, and its node must be in the file of its piece alone."""
        document, graph, cluster = json.loads(str(exported.files[PIPELINE])), problem.graph, problem.cluster
        number = {name: op for op, name in enumerate(graph.ops.name)}
        device, file_of = np.full(problem.n_ops, -1, np.int32), dict[int, str]()
        for home, name, file in _list_ops(document):
            if name not in number or device[number[name]] >= 0:
                raise ExportError(f"{PIPELINE} names the op {name!r} twice, or it is not in the model")
            device[number[name]], file_of[number[name]] = cluster.index(home), file
        where: dict[str, set[str]] = {}
        for piece in document["pieces"]:
            for output in _list_outputs(exported.files[piece["file"]]):
                where.setdefault(output, set()).add(piece["file"])
        for op, file in file_of.items():
            makes = [graph.tensors.name[tensor] for tensor in graph.outputs_of(op)]
            if file and not any(where.get(output) == {file} for output in makes):
                raise ExportError(f"the node of the op {graph.ops.name[op]!r} is not in {file} alone")
        return device


def require_onnx(graph: Graph) -> onnx.ModelProto:
    """The ONNX model that a graph was read from. Raises ExportError if there is none."""
    try:
        return original(graph, outside=True)[1]
    except InputError as error:
        raise ExportError(error.problem, where=error.where, remedy=error.remedy) from None


def external_weight_notes(models: Iterable[onnx.ModelProto]) -> tuple[str, ...]:
    """A note per external file that holds weights of these models."""
    files = {
        entry.value
        for model in models
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return tuple(f"the weights stay in {name}: put it beside the exported files" for name in sorted(files))


def providers_of(cluster: Cluster, device: int, accelerator: str) -> list[tuple[str, dict[str, str]]]:
    """The execution providers of a device with their options; accelerators are numbered in order."""
    if cluster.devices[device].kind in PROCESSOR:
        return [(HOST, {})]
    count = sum(other.kind not in PROCESSOR for other in cluster.devices[:device])
    return [(accelerator, {"device_id": str(count)}), (HOST, {})]


def _document(
    problem: Problem,
    placement: Placement,
    pieces: Pieces,
    parts: Sequence[Submodel],
    names: Mapping[int, str],
    accelerator: str,
) -> dict[str, Any]:
    graph, cluster = problem.graph, problem.cluster
    used = sorted(set(pieces.device.tolist()))
    entries = []
    for number, file in names.items():
        home, part = int(pieces.device[number]), parts[number]
        ops = [graph.ops.name[op] for op in pieces.ops[number] if _has_node(graph, op)]
        entry = {"file": file, "device": cluster.names[home], "reads": part.reads, "makes": part.makes, "ops": ops}
        entries.append({**entry, **_stage_members(placement, cluster, home)})
    written = {name for piece in entries for name in piece["ops"]}
    placed = placement.assignment(graph, cluster)
    return {
        "format": "placewise-onnx",
        "model": PurePath(graph.source.path).name if graph.source else "",
        "outputs": [graph.tensors.name[tensor] for tensor in np.flatnonzero(graph.tensors.output)],
        "providers": {cluster.names[device]: providers_of(cluster, device, accelerator) for device in used},
        "pieces": entries,
        "everywhere": {name: device for name, device in placed.items() if name not in written},
    }


def _stage_members(placement: Placement, cluster: Cluster, home: int) -> dict[str, list[str]]:
    """The devices that share a stage, if it is replicated."""
    if placement.replicas is None:
        return {}
    members = np.flatnonzero(placement.replicas == placement.replicas[home]).tolist()
    return {"members": [cluster.names[device] for device in members]} if len(members) > 1 else {}


def _has_node(graph: Graph, op: int) -> bool:
    """Whether the op has a node of its own, unlike a constant that every piece copies."""
    return graph.ops.kind[op] != "Constant" or any(graph.tensors.output[t] for t in graph.outputs_of(op))


def _list_ops(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(device, op, file) of every op; the file is "" for an op without a node of its own."""
    ops = [(piece["device"], op, piece["file"]) for piece in document["pieces"] for op in piece["ops"]]
    return [*ops, *((device, op, "") for op, device in document["everywhere"].items())]


def _list_outputs(content: str | bytes) -> list[str]:
    model = onnx.ModelProto.FromString(content if isinstance(content, bytes) else content.encode())
    return [name for node in model.graph.node for name in node.output if name]
