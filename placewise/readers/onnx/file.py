"""Load an ONNX file as a ModelProto: large values dropped, functions inlined, names and opset checked."""

from __future__ import annotations

import graphlib
import hashlib
import math
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx.inliner

from placewise._util.safe_open import open_regular
from placewise.errors import ModelFileError
from placewise.readers.onnx.types import dims_of, subgraphs
from placewise.readers.protobuf import DROP, FieldPaths, strip_fields

KEPT_ELEMENTS = 1_000
"""The values of longer tensors are dropped: shapes do not depend on them, and dims give their size."""
MAX_NODES = 5_000_000
VALUE_FIELDS = (
    "raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data",
)  # fmt: skip


_TENSOR: FieldPaths = dict.fromkeys(
    (4, 5, 6, 7, 9, 10, 11), DROP
)  # float, int32, string, int64, raw, double, uint64 data
_MODEL: FieldPaths = {7: {5: _TENSOR}}  # ModelProto.graph, GraphProto.initializer


def load_model(path: Path) -> tuple[onnx.ModelProto, str]:
    """The model in `path` without large values, and the file's sha256. External data is never opened.

    Raises ModelFileError, without the path, if this is not a readable ONNX model.
    """
    model, sha256 = _parse(path)
    if not model.HasField("graph"):
        raise ModelFileError("this is not an ONNX model (no graph in it)", remedy="give a .onnx file")
    check_names(model)
    normalize_domains(model)
    _check_opset(model)
    for tensor in _walk_tensors([*model.graph.node, *(node for function in model.functions for node in function.node)]):
        _drop_values(tensor)
    for tensor in _initializers(model.graph):
        _drop_values(tensor)
    if model.functions:
        model = inline_functions(model)
    if not model.graph.node:
        inputs = {value.name for value in model.graph.input}
        if any(value.name in inputs for value in model.graph.output):
            raise ModelFileError(
                "its inputs are its outputs, with no op between them", remedy="there is nothing to place"
            )
        raise ModelFileError("the graph has no nodes", remedy="export the model again")
    return model, sha256


def _parse(path: Path) -> tuple[onnx.ModelProto, str]:
    model = onnx.ModelProto()
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise ModelFileError("the file is empty", remedy="export or download the model again")
            if size >= 1 << 31:
                raise ModelFileError(
                    "the file is larger than 2 GiB, which no ONNX file can be",
                    remedy="save the model with its weights as external data",
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
                sha256 = hashlib.sha256(data).hexdigest()
                _parse_into(model, without_values(data, longest=16 * KEPT_ELEMENTS))
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror})", remedy="give a .onnx file") from None
    return model, sha256


def _parse_into(model: onnx.ModelProto, data: bytes | memoryview) -> None:
    try:
        model.ParseFromString(data)  # accepts any buffer
    except Exception:  # protobuf's own error type differs between its back ends
        raise ModelFileError(
            "this is not an ONNX model, or the file is cut off", remedy="export or download the model again"
        ) from None


def normalize_domains(model: onnx.ModelProto) -> None:
    """Replace the domain "ai.onnx" by "", its other name."""
    for opset in model.opset_import:
        opset.domain = "" if opset.domain == "ai.onnx" else opset.domain
    for function in model.functions:
        for opset in function.opset_import:
            opset.domain = "" if opset.domain == "ai.onnx" else opset.domain
    for node in _walk_nodes([*model.graph.node, *(node for function in model.functions for node in function.node)]):
        if node.domain == "ai.onnx":
            node.domain = ""


def _check_opset(model: onnx.ModelProto) -> None:
    if not model.opset_import:
        raise ModelFileError("the model names no opset (old, or cut off)", remedy="export it again, opset 13 or later")


def _walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """These nodes and all nodes in their subgraphs."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from _walk_nodes(body.node)


def _initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def _walk_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """All tensors in attributes and subgraphs."""
    for node in _walk_nodes(nodes):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for body in subgraphs(node):
            yield from _initializers(body)


def _drop_values(tensor: onnx.TensorProto) -> None:
    if math.prod(tensor.dims) > KEPT_ELEMENTS:
        for field in VALUE_FIELDS:
            tensor.ClearField(field)


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its local functions inlined. Raises ModelFileError for recursion and excessive expansion."""
    bodies = {(f.domain, f.name, f.overload): Counter(map(_function_key, _walk_nodes(f.node))) for f in model.functions}
    try:
        callees_first = list(graphlib.TopologicalSorter(bodies).static_order())
    except graphlib.CycleError as error:
        name = "::".join(error.args[1][0][:2])
        raise ModelFileError(f"function {name!r} calls itself", remedy="export the model again") from None
    size: dict[tuple[str, str, str], int] = {}
    for key in callees_first:
        size[key] = sum(count * size.get(called, 1) for called, count in bodies.get(key, {}).items()) or 1
    if sum(size.get(_function_key(node), 1) for node in _walk_nodes(model.graph.node)) > MAX_NODES:
        raise ModelFileError(f"its functions unfold to more than {MAX_NODES:,} nodes", remedy="export it again")
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the inliner raises several unrelated C++ error types
        raise ModelFileError(
            f"its functions cannot be inlined ({_first_line(error)})", remedy="export it again"
        ) from None


def _function_key(node: onnx.NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, node.overload


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def without_values(data: memoryview, *, longest: int) -> bytes | memoryview:
    """The serialized model without the values of initializers longer than `longest` bytes."""
    return strip_fields(data, _MODEL, longest=longest)


def check_names(model: onnx.ModelProto) -> None:
    """Raise ModelFileError if a name in the model is not valid text; protobuf returns such names as bytes."""
    if not all(isinstance(name, str) for name in _names(model)):
        raise ModelFileError("a name in the file is not text", remedy="export or download the model again")


def _names(model: onnx.ModelProto) -> Iterator[object]:
    yield from (opset.domain for opset in model.opset_import)
    yield from _graph_names(model.graph)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload, *function.input, *function.output)
        yield from (opset.domain for opset in function.opset_import)
        for node in function.node:
            yield from _node_names(node)


def _graph_names(graph: onnx.GraphProto) -> Iterator[object]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in dims_of(value.type))
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    for node in graph.node:
        yield from _node_names(node)


def _node_names(node: onnx.NodeProto) -> Iterator[object]:
    yield from (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
    yield from (attribute.name for attribute in node.attribute)
    yield from (text for entry in node.metadata_props for text in (entry.key, entry.value))
    for body in subgraphs(node):
        yield from _graph_names(body)
