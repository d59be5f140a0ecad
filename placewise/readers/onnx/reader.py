"""read_onnx: from a file to an imported model, with the work in the bodies of control flow as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from placewise.errors import locate_errors
from placewise.model.graph import Source
from placewise.readers.base import NO_DIMS, ImportedModel, describe_unknown_shapes
from placewise.readers.onnx.attributes import attributes_of
from placewise.readers.onnx.contrib import has_rule
from placewise.readers.onnx.control_flow import WITH_BODIES, BodyModel, instantiate_bodies
from placewise.readers.onnx.convert import build_graph
from placewise.readers.onnx.file import load_model
from placewise.readers.onnx.names import kind_of
from placewise.readers.onnx.nodes import opsets_of
from placewise.readers.onnx.schemas import is_known, newest_opset
from placewise.readers.onnx.sequences import assume_single_elements
from placewise.readers.onnx.shapes import MAX_BODY_DEPTH, infer_values
from placewise.readers.onnx.structure import check_structure
from placewise.readers.onnx.symbols import model_inputs, set_dims, sizes_from_dims
from placewise.readers.onnx.types import InferredValues, Types, compute_dtype, dtype_of, shape_of


def read_onnx(path: Path, *, dims: Mapping[str, int] = NO_DIMS) -> ImportedModel:
    """Read an ONNX file of any opset as the raw view: one op per node, constants included.

    `dims` sets symbolic dimensions (``{"batch": 8}``) and data-dependent ones (``{"found:1": 40}``: value and axis).
    Weight sizes follow from dimensions and element types, so weights may be missing: external data is never opened.
    Local functions are inlined, and `origin` holds node indices of the inlined graph. If, Loop and Scan stay one op,
    which reads the values captured by their bodies and uses their weights. A tensor of unknown shape has −1 bytes, and
    a warning reports it.

    Raises ModelFileError or GraphError, naming the file.
    """
    with locate_errors(path):
        model, sha256 = load_model(path)
        set_dims(model.graph, dims)
        check_structure(model.graph)
        known = infer_values(model, sizes=sizes_from_dims(dims))
        assumed = assume_single_elements(_value_names(model.graph), known.types, known.elements)
        bodies = describe_bodies(model, list(model.graph.node), known)
        source = Source(str(path), sha256, "onnx", options={"dims": dict(dims)}, view="raw")
        graph = build_graph(model.graph, known, bodies, source)
    warnings = (
        *_opset_warnings(model),
        *_op_warnings(model.graph),
        *_inference_warnings(known, assumed),
        *describe_unknown_shapes(graph),
    )
    return ImportedModel(graph, warnings=warnings)


def _value_names(graph: onnx.GraphProto) -> list[str]:
    """The names of all inputs and node outputs."""
    return [value.name for value in model_inputs(graph)] + [name for node in graph.node for name in node.output]


def _inference_warnings(known: InferredValues, assumed: list[str]) -> list[str]:
    warnings = []
    if known.borrowed:
        count = "1 shape is" if len(known.borrowed) == 1 else f"{len(known.borrowed)} shapes are"
        warnings.append(f"{count} taken from the file's value_info, not inferred (first: {known.borrowed[0]!r})")
    if assumed:
        whose, verb = ("1 sequence", "it counts") if len(assumed) == 1 else (f"{len(assumed)} sequences", "they count")
        warnings.append(
            f"the length of {whose} is known only at run time: {verb} with one element (first: {assumed[0]!r})"
        )
    return warnings


def _opset_warnings(model: onnx.ModelProto) -> list[str]:
    version, newest = opsets_of(model).get("", 0), newest_opset()
    if version <= newest:
        return []
    return [
        f"the model has opset {version}; its ops are read as opset {newest}, the newest of the installed onnx package"
    ]


def _op_warnings(graph: onnx.GraphProto) -> list[str]:
    count = Counter(kind_of(node) for node in graph.node if not is_known(node) and not has_rule(node))
    return [
        f"{kind} ({times} {'op' if times == 1 else 'ops'}) is not defined by onnx: later shapes may stay unknown"
        for kind, times in count.items()
    ]


def describe_bodies(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], known: InferredValues, depth: int = 0
) -> Mapping[int, tuple[dict[str, Any], ...]]:
    """By index of a node with bodies, a description of each: ``{"rounds": …, "ops": …}``, rounds −1 if unknown.

    An op is ``{"kind", "attributes", "dtype", "inputs", "outputs", "times"}``. Inputs are (position, dimensions,
    element type), outputs (dimensions, element type); dimensions are None if the rank is unknown.
    """
    described = {}
    for index, node in enumerate(nodes):
        if depth < MAX_BODY_DEPTH and node.op_type in WITH_BODIES:
            bodies = instantiate_bodies(model, node, known, partial(infer_values, depth=depth + 1))
            if bodies and all(body.known is not None for body in bodies):
                described[index] = tuple(_describe_body(body, depth) for body in bodies)
    return described


def _describe_body(body: BodyModel, depth: int) -> dict[str, Any]:
    known = body.known or InferredValues({})
    nodes = list(body.model.graph.node)
    inner = describe_bodies(body.model, nodes, known, depth + 1)
    ops = [_describe_op(node, known.types, inner.get(index)) for index, node in enumerate(nodes)]
    times, first = Counter(map(repr, ops)), {repr(op): op for op in ops}
    return {"rounds": body.rounds, "ops": tuple({**op, "times": times[key]} for key, op in first.items())}


def _describe_op(node: onnx.NodeProto, types: Types, bodies: tuple[dict[str, Any], ...] | None) -> dict[str, Any]:
    def kind(name: str) -> tuple[tuple[int, ...] | None, str]:
        return (shape_of(types.get(name)), dtype_of(types.get(name))) if name else ((0,), "bool")

    return {
        "kind": kind_of(node),
        "attributes": attributes_of(node) | ({} if bodies is None else {"bodies": bodies}),
        "dtype": compute_dtype(node, types),
        "inputs": tuple((position, *kind(name)) for position, name in enumerate(node.input) if name),
        "outputs": tuple(kind(name) for name in node.output),
    }
