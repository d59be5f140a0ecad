"""TensorFlow: the same graph with the `device` field of every node set (GraphDef, tensorflow/core/framework)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, OptionValues
from placewise.exporters.projection import project_units
from placewise.exporters.space import Space, sets_of, sharing
from placewise.model.columns import Ints
from placewise.model.graph import Graph, Source
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.processes.scratch import scratch_folder
from placewise.readers.tensorflow import read_tensorflow
from placewise.readers.tensorflow.file import detect_binary_kind, resolve_file
from placewise.readers.tensorflow.protos import MESSAGES
from placewise.transform.fold import fold

KINDS = ("GraphDef", "MetaGraphDef", "SavedModel")
FILE = "graph.pb"
_CUDA = re.compile(r"(?:cuda|gpu):(\d{1,4})", re.IGNORECASE)


class TensorflowExporter:
    """A binary graph of the kind that was read; constants and variables are on the device of their first user."""

    info = ExportInfo(
        "tensorflow",
        writes="a GraphDef, MetaGraphDef or SavedModel (.pb)",
        loaded_by="TensorFlow 2.21 (tf.compat.v1.import_graph_def), with allow_soft_placement",
        verified="executed",
        cannot_say="different devices for what one node stands for, or for the ops of a function; the order of ops",
        takes="TensorFlow graphs in binary form, without calls of functions",
        suffix=".pb",
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        message, graph_def = _read_message(problem.graph.source)
        owner, unit = _map_nodes(problem.graph, len(graph_def.node))
        projected = project_units(problem, placement, unit)
        names = device_names(problem)
        homes = _complete_homes(graph_def.node, [-1 if op < 0 else int(projected.device[op]) for op in owner])
        for node, device in zip(graph_def.node, homes, strict=True):
            node.device = names[device] if device >= 0 else ""
        return Exported({FILE: message.SerializeToString(deterministic=True)}, projected)

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`: ops that share a node share a device."""
        return Space(problems=(sharing(problem, sets_of(_node_units(problem.graph))),))

    def project(self, problem: Problem, placement: Placement) -> Placement:
        return project_units(problem, placement, _node_units(problem.graph))

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`. The reader must also find the same model in the file."""
        data = exported.files[FILE]
        assert isinstance(data, bytes)
        message = MESSAGES[detect_binary_kind(memoryview(data))].FromString(data)
        index = {name: device for device, name in enumerate(device_names(problem))}
        places = [index.get(node.device, -1) for node in _graph_def(message).node]
        _require_same_graph(data, problem.graph)
        read = np.full(problem.n_ops, -1, np.int32)
        for op in range(problem.n_ops):
            homes = {places[node] for node in problem.graph.ops.origin[op]}
            if len(homes) != 1:
                raise ExportError(f"the nodes of op {problem.graph.ops.name[op]!r} are on {len(homes)} devices")
            read[op] = homes.pop()
        return read


def device_names(problem: Problem) -> tuple[str, ...]:
    """TensorFlow's name of every device: ``/device:GPU:1`` for cuda:1, else by order; names with a leading / stay."""
    names = problem.cluster.names
    gpus = [name for name, host in zip(names, problem.cluster.is_host.tolist(), strict=True) if not host]
    matches = [_CUDA.fullmatch(name) for name in gpus]
    numbered = all(matches) and len({int(match[1]) for match in matches if match}) == len(gpus)
    names_out, hosts = [], 0
    for name, host in zip(names, problem.cluster.is_host.tolist(), strict=True):
        if name.startswith("/"):
            names_out.append(name)
        elif host:
            names_out.append(f"/device:CPU:{hosts}")
        else:
            match = _CUDA.fullmatch(name)
            names_out.append(f"/device:GPU:{int(match[1]) if numbered and match else gpus.index(name)}")
        hosts += host
    return tuple(names_out)


def _read_message(source: Source | None) -> tuple[Any, Any]:
    """The message in the model's file, and its GraphDef."""
    if source is None or source.format != "tensorflow":
        origin = "nothing" if source is None else source.format
        remedy = "choose a target that takes it: placewise export --list"
        raise ExportError(f"tensorflow takes TensorFlow graphs, and this model was read from {origin}", remedy=remedy)
    path = resolve_file(Path(source.path))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ExportError(f"cannot be read ({error.strerror})", where=str(path), remedy="say --model") from None
    if hashlib.sha256(data).hexdigest() != source.sha256:
        raise ExportError("has changed since it was read", where=str(path), remedy="place the model again")
    kind = detect_binary_kind(memoryview(data))
    if kind not in KINDS:
        raise ExportError("is not a binary graph", where=str(path), remedy="save it as a binary GraphDef (.pb)")
    message = MESSAGES[kind].FromString(data)
    return message, _graph_def(message)


def _node_units(graph: Graph) -> Ints:
    """The unit of every op [n_ops]."""
    return _map_nodes(graph, len(_read_message(graph.source)[1].node))[1]


def _graph_def(message: Any) -> Any:
    kind = message.DESCRIPTOR.name
    if kind == "SavedModel":
        message = message.meta_graphs[0]
    return message if kind == "GraphDef" else message.graph_def


def _map_nodes(graph: Graph, n_nodes: int) -> tuple[list[int], Ints]:
    """The op of every node, −1 for none, and the unit of every op; ops that share a node share a unit."""
    owner, unit = [-1] * n_nodes, np.arange(graph.n_ops, dtype=np.int32)
    for op in range(graph.n_ops):
        if not len(graph.ops.origin[op]):
            raise ExportError(
                f"op {graph.ops.name[op]!r} is not a node of the file's graph",
                remedy="freeze the model, so that functions are written out and nothing is added to it",
            )
        for node in graph.ops.origin[op]:
            if owner[node] < 0:
                owner[node] = op
            else:
                unit[unit == unit[op]] = unit[owner[node]]
    return owner, unit


def _complete_homes(nodes: Sequence[Any], homes: list[int]) -> list[int]:
    """A device for every node: one without goes with the first node that reads it, else with the first it reads."""
    place = {node.name: number for number, node in enumerate(nodes)}
    reads = [[place[name] for name in map(_node_of, node.input) if name in place] for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for number, sources in enumerate(reads):
        for source in sources:
            users[source].append(number)
    for neighbours in (users, reads):
        waiting = [number for number, device in enumerate(homes) if device >= 0]
        backwards: Mapping[int, list[int]] = dict(enumerate(reads if neighbours is users else users))
        for number in waiting:
            for other in backwards[number]:
                if homes[other] < 0:
                    homes[other] = next(homes[user] for user in sorted(neighbours[other]) if homes[user] >= 0)
                    waiting.append(other)
    return homes


def _node_of(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]


def _require_same_graph(data: bytes, graph: Graph) -> None:
    assert graph.source is not None
    with scratch_folder() as folder:
        path = folder / FILE
        path.write_bytes(data)
        again = read_tensorflow(path, dims=graph.source.options.get("dims", {})).graph
    if (again if graph.source.view == "raw" else fold(again)).digest() != graph.digest():
        raise ExportError("the file does not hold the same graph as the model")
