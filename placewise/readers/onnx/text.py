"""A check that names are text: protobuf hands over broken ones as bytes, and nobody expects that later."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from placewise.errors import ModelFileError
from placewise.readers.onnx.types import dims_of, subgraphs


def check_names(model: onnx.ModelProto) -> None:
    """Raise ModelFileError if a name anywhere in the model is not valid text."""
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
