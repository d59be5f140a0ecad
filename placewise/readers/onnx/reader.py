"""read_onnx: the steps from a file to a reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import onnx

from placewise.errors import InputError
from placewise.model.graph import Source
from placewise.readers.base import ImportedModel
from placewise.readers.onnx.contrib import has_rule
from placewise.readers.onnx.control_flow_work import bodies_described
from placewise.readers.onnx.convert import to_graph
from placewise.readers.onnx.file import load
from placewise.readers.onnx.known import Known
from placewise.readers.onnx.names import kind_of
from placewise.readers.onnx.nodes import opsets_of
from placewise.readers.onnx.schemas import is_known, newest_opset
from placewise.readers.onnx.sequences import one_each
from placewise.readers.onnx.shapes import infer
from placewise.readers.onnx.structure import check_structure
from placewise.readers.onnx.symbols import given_sizes, model_inputs, set_dims
from placewise.readers.unknown import unknown_shapes

_NO_DIMS: Mapping[str, int] = MappingProxyType({})


def read_onnx(path: Path, *, dims: Mapping[str, int] = _NO_DIMS) -> ImportedModel:
    """Read an ONNX file of any opset as the raw view: one op per node, constants included.

    `dims` gives symbolic dimensions their numbers (``{"batch": 8}``), and those that depend on data
    (``{"found:1": 40}``: a value and an axis). Weights count with the bytes that their
    dimensions and element types say, so they may be missing: external data is never opened. The model's own
    functions are inlined first, and `origin` holds indices into the nodes of the inlined graph. If, Loop and Scan
    stay one op, which also reads what their bodies take from around them and uses the weights in their bodies.
    A tensor whose shape stays unknown has −1 bytes, and a warning says so.

    Raises ModelFileError or GraphError, naming the file.
    """
    try:
        model, sha256 = load(path)
        set_dims(model.graph, dims)
        check_structure(model.graph)
        known = infer(model, sizes=given_sizes(dims))
        counted = one_each(_sequences(model.graph), known.types, known.elements)
        bodies = bodies_described(model, list(model.graph.node), known)
        source = Source(str(path), sha256, "onnx", options={"dims": dict(dims)}, view="raw")
        graph = to_graph(model.graph, known, bodies, source)
    except InputError as error:
        raise error.at(str(path)) from None
    warnings = (*_newer_opset(model), *_unknown_ops(model.graph), *_notes(known, counted), *unknown_shapes(graph))
    return ImportedModel(graph, warnings=warnings)


def _sequences(graph: onnx.GraphProto) -> list[str]:
    """Names of all values that the graph is given or makes; those that hold sequences are among them."""
    return [value.name for value in model_inputs(graph)] + [name for node in graph.node for name in node.output]


def _notes(known: Known, counted: list[str]) -> list[str]:
    said = []
    if known.borrowed:
        count = "1 shape is" if len(known.borrowed) == 1 else f"{len(known.borrowed)} shapes are"
        said.append(f"{count} taken from the file's own notes, not inferred (first: {known.borrowed[0]!r})")
    if counted:
        whose, verb = ("1 sequence", "it counts") if len(counted) == 1 else (f"{len(counted)} sequences", "they count")
        said.append(f"the length of {whose} is known only in the run: {verb} with one element (first: {counted[0]!r})")
    return said


def _newer_opset(model: onnx.ModelProto) -> list[str]:
    version, newest = opsets_of(model).get("", 0), newest_opset()
    if version <= newest:
        return []
    return [
        f"the model is of opset {version}, and the installed onnx package knows {newest}: its ops are read as those"
    ]


def _unknown_ops(graph: onnx.GraphProto) -> list[str]:
    count = Counter(kind_of(node) for node in graph.node if not is_known(node) and not has_rule(node))
    return [
        f"{kind} ({times} {'op' if times == 1 else 'ops'}) is no op that onnx defines: shapes after it may stay unknown"
        for kind, times in count.items()
    ]
