"""Producers and readers of values: structural checks before any other processing."""

from __future__ import annotations

import graphlib
from collections.abc import Iterator, Sequence

import onnx

from placewise.errors import GraphError, ModelFileError
from placewise.model.dtypes import bytes_of
from placewise.model.topology import describe_cycle
from placewise.readers.onnx.names import op_names
from placewise.readers.onnx.symbols import model_inputs
from placewise.readers.onnx.types import Shape, dtype_name, shape_of, subgraphs

_MAX_BYTES = 2**62


def check_structure(graph: onnx.GraphProto) -> None:
    """Raise ModelFileError unless every value has one producer, every read value exists, and sizes are valid."""
    names = op_names(graph.node)
    makers: dict[str, str] = {}
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        _check_initializer(tensor)
        _define(makers, tensor.name, "an initializer")
    for value in model_inputs(graph):
        refuse_size(value.name, shape_of(value.type) or (), "float64")
        _define(makers, value.name, "an input")
    for name, node in zip(names, graph.node, strict=True):
        for tensor in inner_initializers(node):
            _check_initializer(tensor)
        for output in filter(None, node.output):
            _define(makers, output, f"node {name!r}")
    for name, node in zip(names, graph.node, strict=True):
        for value_name in names_read(node):
            if value_name and value_name not in makers:
                raise ModelFileError(
                    f"node {name!r} reads {value_name!r}, which no node, input or initializer defines",
                    remedy="export the model again",
                )
    for value in graph.output:
        if value.name not in makers:
            raise ModelFileError(f"nothing defines the model's output {value.name!r}", remedy="export the model again")


def sort_topologically(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes in topological order. Raises GraphError for a cycle."""
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    before = [{producer[name] for name in names_read(node) if name in producer} for node in nodes]
    if all(max(needs, default=-1) < index for index, needs in enumerate(before)):
        return list(nodes)
    try:
        return [nodes[index] for index in graphlib.TopologicalSorter(dict(enumerate(before))).static_order()]
    except graphlib.CycleError as error:
        shown = describe_cycle([repr(nodes[index].name or nodes[index].output[0]) for index in error.args[1]])
        raise GraphError(f"the graph has a cycle: {shown}", remedy="a placement needs an acyclic graph") from None


def names_read(node: onnx.NodeProto) -> list[str]:
    """All names that a node reads: its inputs ("" if omitted), then the names captured by its subgraphs."""
    bodies = subgraphs(node)
    if not bodies:
        return list(node.input)
    own = set(node.input)
    return [
        *node.input,
        *(name for name in dict.fromkeys(n for body in bodies for n in captured_names(body)) if name not in own),
    ]


def inner_initializers(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """The initializers in a node's subgraphs, at any depth."""
    for body in subgraphs(node):
        yield from body.initializer
        for inner in body.node:
            yield from inner_initializers(inner)


def refuse_size(name: str, shape: Shape, dtype: str) -> None:
    """Raise ModelFileError for an absurdly large shape."""
    if bytes_of(shape, dtype) > _MAX_BYTES or max(shape, default=0) > _MAX_BYTES:
        raise ModelFileError(f"value {name!r} has the absurd shape {list(shape)}", remedy="check its dimensions")


def captured_names(graph: onnx.GraphProto) -> list[str]:
    """The names that a subgraph reads from the outer graph."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    own |= {sparse.values.name for sparse in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    used = [name for node in graph.node for name in names_read(node)] + [value.name for value in graph.output]
    return [name for name in dict.fromkeys(used) if name not in own]


def _define(makers: dict[str, str], name: str, maker: str) -> None:
    if name in makers:
        raise ModelFileError(
            f"value {name!r} is defined twice, by {makers[name]} and by {maker}", remedy="give every value its own name"
        )
    makers[name] = maker


def _check_initializer(tensor: onnx.TensorProto) -> None:
    dtype, dims = dtype_name(tensor.data_type), tuple(tensor.dims)
    if dtype == "unknown" or min(dims, default=0) < 0:
        raise ModelFileError(
            f"initializer {tensor.name!r} has element type {tensor.data_type} and dimensions {list(dims)}",
            remedy="export the model again, or update the onnx package",
        )
    refuse_size(tensor.name, dims, dtype)
