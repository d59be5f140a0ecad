"""The profiled layer graphs of PipeDream (msr-fiddle/pipedream; Narayanan et al., SOSP 2019): ops and their times.

A line per node, ``node2 -- Conv2d(3, 64, …) -- forward_compute_time=9.7, backward_compute_time=4.6,
activation_size=411041792.0, parameter_size=37632.0``, in milliseconds and bytes of one minibatch, and a line per
edge, ``node1 -- node2``. An ``activation_size`` may be a list, ``[6291456.0; 131072.0]``: one op, several
outputs, which count as one tensor. A suffix from an earlier run of PipeDream (``-- stage_id=0``) is ignored.

The times are those of one accelerator; the user gives devices, memory and links. Nodes called Input cost neither time
nor bytes, as in PipeDream's own optimizer: a loader feeds the stage that reads them.

The `training` graph adds a backward twin to every other op, in the same colocation group. The twin has the backward
time, runs after its op, and sends gradients to the twins of its op's inputs, each as large as the input. Its state is
the activation kept for it, plus a gradient and a momentum (SGD) per parameter: one minibatch in flight, one version of
the parameters.
"""

from __future__ import annotations

import hashlib
import math
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from placewise.errors import CostError, GraphError, ModelFileError, locate_errors
from placewise.model.builder import GraphBuilder
from placewise.model.graph import Source
from placewise.model.topology import describe_cycle
from placewise.readers.base import ImportedModel, read_text_file

BACKWARD = ".backward"
"""The suffix in the name of a twin."""
TRAINING_STATE = 2
"""Values kept per parameter in addition to itself: a gradient and a momentum."""

_MS = 1e-3
_MAX_FIGURE = 2.0**45
"""The largest accepted figure; sums of figures fit into 64-bit integers."""
_LOOKS_LIKE = re.compile(rb"^\s*node\d{1,9} -- ", re.MULTILINE)
_NODE = re.compile(r"node\d{1,9}")
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_KINDS = {
    "Conv2d": "Conv",
    "ReLU": "Relu",
    "BatchNorm2d": "BatchNormalization",
    "MaxPool2d": "MaxPool",
    "AvgPool2d": "AveragePool",
    "Linear": "Gemm",
    "Embedding": "Gather",
    "View": "Reshape",
}
"""PyTorch names → ONNX names."""


class _ProfiledLayer(NamedTuple):
    line: int
    description: str
    forward: float  # seconds
    backward: float
    activation: int  # bytes
    parameters: int

    @property
    def is_input(self) -> bool:
        return re.fullmatch(r"Input\d*", self.description) is not None

    @property
    def kind(self) -> str:
        word = self.description.partition("(")[0].strip()
        return "Input" if self.is_input else _KINDS.get(word, word) or "Op"


def looks_like_pipedream(start: bytes) -> bool:
    """Whether the start of a file looks like a profile: a line starts with a node."""
    return _LOOKS_LIKE.search(start) is not None


def read_pipedream(path: Path, *, graph: str = "inference") -> ImportedModel:
    """A profile as its `inference` or `training` graph, with the seconds of every op on an accelerator.

    Raises ModelFileError, GraphError or CostError with the file, the line and the remedy.
    """
    data = read_text_file(path)
    source = Source(str(path), hashlib.sha256(data).hexdigest(), "pipedream", {"graph": graph}, view="raw")
    with locate_errors(path):
        nodes, edges = _parse(data)
        return _build_model(nodes, edges, graph == "training", source)


def _parse(data: bytes) -> tuple[dict[str, _ProfiledLayer], dict[tuple[str, str], int]]:
    """Nodes by name, and line numbers by edge. Raises for cycles and unknown nodes."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"is not text ({error})", remedy="is it a PipeDream profile?") from None
    nodes: dict[str, _ProfiledLayer] = {}
    edges: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.strip().split(" -- ")
        where = f"line {number}"
        if len(parts) == 2 and all(_NODE.fullmatch(part) for part in parts):
            edges.setdefault((parts[0], parts[1]), number)
        elif len(parts) >= 3 and _NODE.fullmatch(parts[0]):
            if parts[0] in nodes:
                raise GraphError(
                    f"{parts[0]} is on line {nodes[parts[0]].line} already", where=where, remedy="keep one of them"
                )
            nodes[parts[0]] = _parse_node(parts, number, where)
        elif line.strip():
            raise ModelFileError(
                "is neither 'nodeN -- description -- figures' nor 'nodeA -- nodeB'", where=where, remedy="is it whole?"
            )
    _check_graph(nodes, edges)
    return nodes, edges


def _parse_node(parts: list[str], number: int, where: str) -> _ProfiledLayer:
    parts = parts[:-1] if len(parts) > 3 and parts[-1].startswith("stage_id=") else parts
    named = (field.partition("=") for field in parts[-1].split(","))
    figures = {name.strip(): figure for name, _, figure in named}
    missing = next((field for field in _FIELDS if field not in figures), None)
    if missing is not None:
        raise CostError(f"{parts[0]} has no {missing}", where=where, remedy="is the line whole?")
    times = [_parse_figure(figures[field], f"{parts[0]}'s {field}", where) * _MS for field in _FIELDS[:2]]
    sizes = [math.ceil(_parse_figure(figures[field], f"{parts[0]}'s {field}", where)) for field in _FIELDS[2:]]
    return _ProfiledLayer(number, " -- ".join(parts[1:-1]).strip(), times[0], times[1], sizes[0], sizes[1])


def _parse_figure(text: str, what: str, where: str) -> float:
    """A number, or the sum of a list of them."""
    try:
        parts = [float(part) for part in text.strip().strip("[]").split(";")]
    except ValueError:
        parts = [math.nan]
    if not (min(parts) >= 0 and sum(parts) <= _MAX_FIGURE):
        raise CostError(f"{what} is {text.strip()[:40]!r}", where=where, remedy="give a number, zero or more")
    return sum(parts)


def _check_graph(nodes: dict[str, _ProfiledLayer], edges: dict[tuple[str, str], int]) -> None:
    if not nodes:
        raise ModelFileError("has no nodes", remedy="is it a PipeDream profile?")
    if len(nodes) > 1 and not edges:
        raise ModelFileError(f"has {len(nodes)} nodes and no edges", remedy="is the file whole?")
    order: TopologicalSorter[str] = TopologicalSorter()
    for ends, line in edges.items():
        unknown = next((end for end in ends if end not in nodes), None)
        if unknown is not None:
            raise GraphError(f"joins {unknown}, which no line describes", where=f"line {line}", remedy="add its line")
        order.add(ends[1], ends[0])
    try:
        order.prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        where, shown = f"line {edges[cycle[0], cycle[1]]}", describe_cycle(cycle)
        raise GraphError(f"closes a cycle: {shown}", where=where, remedy="a placement needs an acyclic graph") from None


def _build_model(
    nodes: dict[str, _ProfiledLayer], edges: dict[tuple[str, str], int], training: bool, source: Source
) -> ImportedModel:
    builder = GraphBuilder()
    ops, twins, seconds = dict[str, int](), dict[str, int](), dict[str, float]()
    nodes = dict(sorted(nodes.items(), key=lambda item: int(item[0].removeprefix("node"))))
    for group, (name, node) in enumerate(nodes.items()):
        twin = training and not node.is_input
        ops[name] = _add_op(builder, name, node, group=group if twin else -1)
        seconds[name] = 0.0 if node.is_input else node.forward
        if node.parameters and not node.is_input:
            shape = (node.parameters // 4,)
            weight = builder.add_weight(f"{name}.parameters", shape=shape, dtype="float32", nbytes=node.parameters)
            builder.use_weight(weight, ops[name])
        if twin:
            twins[name] = _add_op(builder, name + BACKWARD, node, group=group, backward=True)
            seconds[name + BACKWARD] = node.backward
    tensors = {
        name: builder.add_tensor(ops[name], nbytes=0 if node.is_input else node.activation, name=f"{name}:0")
        for name, node in nodes.items()
    }
    for tail, head in edges:
        builder.add_edge(tensors[tail], ops[head])
    for name, twin_of in twins.items():
        builder.add_edge(builder.add_tensor(ops[name], nbytes=0, name=f"{name}:done"), twin_of)
    for tail, head in edges:
        if tail in twins and head in twins:
            gradient = builder.add_tensor(twins[head], nbytes=nodes[tail].activation, name=f"{head}{BACKWARD}:{tail}")
            builder.add_edge(gradient, twins[tail])
    graph = builder.build(source)
    loaded = sum(node.forward for node in nodes.values() if node.is_input)
    note = (f"{loaded:.4g} s of loading inputs are left out, as PipeDream does",) if loaded else ()
    return ImportedModel(graph, warnings=note, op_seconds=np.array([seconds[name] for name in graph.ops.name]))


def _add_op(builder: GraphBuilder, name: str, node: _ProfiledLayer, *, group: int, backward: bool = False) -> int:
    return builder.add_op(
        name,
        node.kind,
        attributes={"description": node.description},
        backward=backward,
        group=group,
        state_bytes=TRAINING_STATE * node.parameters + node.activation if backward else 0,
        origin=(int(name.removeprefix("node").removesuffix(BACKWARD)),),
    )
