"""OpenVINO: the static, folded model as IR, the affinity of every op, and a script that loads both.

``openvino.save_model`` drops affinities, so they are in a file of their own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from placewise.core.precision import computing_dtype
from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, ExportOption, OptionValues, asked_precision
from placewise.exporters.openvino_process import MODEL, WEIGHTS, FoldProcess
from placewise.exporters.space import Space, sharing
from placewise.model.columns import Ints
from placewise.model.graph import Graph, Source
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.processes.scratch import scratch_folder
from placewise.readers.openvino.counterparts import device_affinities, find_open_cut, match_ops
from placewise.readers.openvino.folded_model import FORMATS, FoldedModel
from placewise.readers.openvino.parse import parse_ir

AFFINITIES, LOADER = "affinities.json", "load.py"
CPU_PLUGIN = "openvino_intel_cpu_plugin"
_REAL = ("CPU", "GPU", "NPU")
_PROCESSOR = ("cpu", "core")
_NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_PRECISIONS = ("", "f32", "f16", "bf16")
_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
_HINT_OF_DTYPE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_CHOOSES = ("CPU", "GPU")
"""Plugins that compute in a lower precision than the model's by default, where the processor has one."""
_SCRIPT = f'''\
"""Compile {MODEL} for the devices that {AFFINITIES} names: python {LOADER}, or `from load import load`."""

import json
from pathlib import Path

import openvino as ov

HERE = Path(__file__).resolve().parent


def load(core=None):
    """The compiled model; every op has the affinity of the plan."""
    plan = json.loads((HERE / "{AFFINITIES}").read_text())
    core = core or ov.Core()
    for device, plugin in plan["plugins"].items():
        core.register_plugin(plugin, device)
    for device, properties in plan["properties"].items():
        core.set_property(device, properties)
    model = core.read_model(HERE / "{MODEL}")
    for op in model.get_ops():
        op.get_rt_info()["affinity"] = plan["affinity"][op.get_friendly_name()]
    return core.compile_model(model, plan["target"])


if __name__ == "__main__":
    compiled = load()
    print("devices:", ", ".join(compiled.get_property("EXECUTION_DEVICES")))
    for port in (*compiled.inputs, *compiled.outputs):
        print(port.any_name, port.shape, port.element_type)
'''


class OpenvinoExporter:
    """The IR of the placed model (its shapes fixed, its constants folded), and affinities by op name."""

    info = ExportInfo(
        "openvino",
        writes=f"{MODEL}, {WEIGHTS}, {AFFINITIES} and {LOADER}, which loads them",
        loaded_by="OpenVINO 2026.4, through HETERO",
        verified="executed",
        cannot_say="replicas; that pieces of one sample run at the same time (HETERO runs them one after another)",
        takes="OpenVINO IR and ONNX models",
        precisions=tuple(_HINTS),
        library="openvino",
        extra="openvino",
        options={
            "devices": ExportOption("", "OpenVINO's names of the devices, like fast=GPU.0,slow=CPU"),
            "precision": ExportOption(
                "", "INFERENCE_PRECISION_HINT of every device: f32, f16 or bf16 (default: the plan's)"
            ),
        },
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        graph = problem.graph
        source = _require_source(graph)
        used = sorted(set(placement.device.tolist()))
        names = _name_devices(problem, used, str(options["devices"]))
        if options["precision"] not in _PRECISIONS:
            raise ExportError(f"there is no precision {options['precision']!r}", remedy="say f32, f16 or bf16")
        hints = _choose_hints(problem, names, str(options["precision"]))
        with FoldProcess(graph, source) as folded:
            listing = folded.listing
            belongs = match_ops(graph, listing)
            affinity = device_affinities(placement.device, belongs, names)
            _refuse_open_cut(listing, affinity)
            _refuse_characters((*listing.name, *graph.tensors.name, *graph.weights.name))
            files = folded.save()
        document = _document(problem, placement, names, listing, belongs, affinity, hints)
        text = json.dumps(document, indent=1, ensure_ascii=False)
        return Exported({**files, AFFINITIES: text, LOADER: _SCRIPT}, Placement(placement.device), folded.notes)

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`: what a tensor of open shape joins is on one device."""
        source = _require_source(problem.graph)
        _name_devices(problem, np.flatnonzero(problem.allowed.any(axis=0)).tolist(), "")
        with FoldProcess(problem.graph, source) as folded:
            listing = folded.listing
        belongs = match_ops(problem.graph, listing).tolist()
        joined = [
            {belongs[row], belongs[other]} - {-1}
            for row, sources in enumerate(listing.sources)
            for other in sources
            if listing.is_open[other]
        ]
        return Space(problems=(sharing(problem, joined),))

    def project(self, problem: Problem, placement: Placement) -> Placement:
        _require_source(problem.graph)
        _name_devices(problem, np.unique(placement.device).tolist(), "")
        return Placement(placement.device)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`. Every layer of the IR must have one affinity, and all layers of an op the same."""
        document = json.loads(str(exported.files[AFFINITIES]))
        _require_same_layers(_list_layers(exported), document["affinity"])
        number = {name: problem.cluster.index(device) for device, name in document["devices"].items()}
        op_of = {name: op for op, name in enumerate(problem.graph.ops.name)}
        device = np.full(problem.n_ops, -1, np.int32)
        seen: set[str] = set()
        for name, layers in document["ops"].items():
            homes = {number[document["affinity"][layer]] for layer in layers}
            if len(homes) != 1 or seen & set(layers):
                raise ExportError(f"the op {name!r} is on {len(homes)} devices, or shares a layer with another")
            seen |= set(layers)
            device[op_of[name]] = homes.pop()
        for name, home in document["folded"].items():
            device[op_of[name]] = problem.cluster.index(home)
        return device


def _require_source(graph: Graph) -> Source:
    source = graph.source
    if source is None or source.format not in FORMATS:
        kind = "no file" if source is None else f"of the format {source.format!r}"
        raise ExportError(f"the target 'openvino' takes ONNX files and OpenVINO IR, and this model is {kind}")
    if graph.ops.backward.any() or graph.phases:
        raise ExportError("the target 'openvino' takes inference of one pass", remedy="place the inference graph")
    if not os.path.isfile(source.path):
        raise ExportError("the model of this plan is not there", where=source.path, remedy="give its path")
    return source


def _name_devices(problem: Problem, used: list[int], option: str) -> dict[int, str]:
    """OpenVINO's name of each used device: from the option, else its own if OpenVINO knows it, else CPU for hosts."""
    renamed = dict(part.strip().partition("=")[::2] for part in option.split(",") if part.strip())
    unknown = next((name for name in renamed if name not in problem.cluster.names), None)
    if unknown is not None:
        remedy = f"the cluster has {', '.join(problem.cluster.names)}"
        raise ExportError(f"there is no device {unknown!r} to give a name", remedy=remedy)
    names: dict[int, str] = {}
    for device in used:
        own = problem.cluster.names[device]
        is_real = own.upper().split(".")[0] in _REAL and ":" not in own
        is_host = problem.cluster.devices[device].kind in _PROCESSOR
        name = renamed.get(own) or (own.upper() if is_real else "CPU" if is_host else "")
        if not name:
            remedy = f"give it OpenVINO's name in a cluster file, or export with --option devices={own}=GPU.0"
            raise ExportError(f"nothing says which device of OpenVINO {own!r} is", remedy=remedy)
        if name == "CPU" and "CPU" in names.values():
            name = f"CPU{1 + sum(other.startswith('CPU') for other in names.values())}"
        if name in names.values():
            raise ExportError(f"two devices are both called {name}", remedy="give them names of their own")
        names[device] = name
    return names


def _choose_hints(problem: Problem, names: Mapping[int, str], option: str) -> dict[str, str]:
    """The precision of each of OpenVINO's devices: that of the option, else the one that the plan priced.

    Without either being asked for, it is the precision of the model, on the plugins that would choose another.
    """
    asked = option or _HINTS.get(asked_precision(problem), "")
    own = _HINT_OF_DTYPE[computing_dtype(problem.graph)]
    hints = {name: asked or (own if name.startswith(_CHOOSES) else "") for name in names.values()}
    return {name: hint for name, hint in hints.items() if hint}


def _refuse_open_cut(listing: FoldedModel, affinity: list[str]) -> None:
    cut = find_open_cut(listing, affinity)
    if cut is not None:
        raise ExportError(
            f"the shape that {listing.name[cut[0]]!r} makes depends on values, and HETERO cannot hand it to another "
            "device",
            remedy="keep it and what reads it together (--together)",
        )


def _refuse_characters(names: Iterable[str]) -> None:
    name = next((name for name in names if _NO_XML.search(name)), None)
    if name is not None:
        problem = f"the name {name!r} has a character that OpenVINO's IR, which is XML, cannot hold"
        raise ExportError(problem, remedy="rename it in the model, or export to onnx")


def _document(
    problem: Problem, placement: Placement, names: Mapping[int, str], listing: FoldedModel, belongs: Ints,
    affinity: list[str], hints: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    ops: dict[str, list[str]] = {}
    for layer, op in zip(listing.name, belongs.tolist(), strict=True):
        if op >= 0:
            ops.setdefault(problem.graph.ops.name[op], []).append(layer)
    home = placement.assignment(problem.graph, problem.cluster)
    return {
        "format": "placewise-openvino",
        "target": next(iter(names.values())) if len(names) == 1 else "HETERO:" + ",".join(names.values()),
        "devices": {problem.cluster.names[device]: name for device, name in names.items()},
        "plugins": {name: CPU_PLUGIN for name in names.values() if name.startswith("CPU") and name != "CPU"},
        "properties": {name: {"INFERENCE_PRECISION_HINT": hint} for name, hint in hints.items()},
        "affinity": dict(zip(listing.name, affinity, strict=True)),
        "ops": ops,
        "folded": {name: device for name, device in home.items() if name not in ops},
    }


def _list_layers(exported: Exported) -> list[str]:
    """The names of all layers of the IR, read by Placewise's own reader."""
    with scratch_folder() as folder:
        path = folder / MODEL
        content = exported.files[MODEL]
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return [layer.name for layer in parse_ir(path)[0].layers]


def _require_same_layers(layers: list[str], affinity: Mapping[str, str]) -> None:
    if len(set(layers)) < len(layers) or set(layers) != set(affinity):
        raise ExportError(f"{len(set(layers) ^ set(affinity))} layers of {MODEL} have no affinity, or several")
