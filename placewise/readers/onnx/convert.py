"""ONNX nodes, initializers and value types → a Graph with one op per node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph, Source
from placewise.readers.base import unique_name
from placewise.readers.onnx.attributes import attributes_of
from placewise.readers.onnx.names import kind_of, op_names, scope_of
from placewise.readers.onnx.sequences import total_bytes
from placewise.readers.onnx.structure import inner_initializers, names_read, refuse_size
from placewise.readers.onnx.symbols import model_inputs
from placewise.readers.onnx.types import InferredValues, compute_dtype, dtype_name, dtype_of, shape_of


@dataclass(slots=True)
class _OnnxGraphDraft:
    """A graph under construction: the builder, and ids of tensors and weights by ONNX name."""

    known: InferredValues
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    tensors: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    weight_names: set[str] = field(default_factory=set)
    storage: dict[tuple[str, int], int] = field(default_factory=dict)


def build_graph(graph: onnx.GraphProto, known: InferredValues, bodies: Mapping[int, Any], source: Source) -> Graph:
    """The raw view of `graph`. The ids in `origin` and the keys of `bodies` are node indices.

    Raises ModelFileError.
    """
    types, draft = known.types, _OnnxGraphDraft(known)
    for tensor in graph.initializer:
        draft.weights[tensor.name] = _add_weight(draft, tensor, tensor.name)
    for sparse in graph.sparse_initializer:
        draft.weights[sparse.values.name] = _add_sparse(draft, sparse)
    for value in model_inputs(graph):
        _add_tensor(draft, value.name, -1)
    names = op_names(graph.node)
    for index, node in enumerate(graph.node):
        op = draft.builder.add_op(
            names[index],
            kind_of(node),
            scope=scope_of(node),
            attributes=attributes_of(node) | ({"bodies": bodies[index]} if index in bodies else {}),
            dtype=compute_dtype(node, types),
            origin=(index,),
        )
        for name in filter(None, node.output):
            _add_tensor(draft, name, op)
    for op, node in enumerate(graph.node):
        _connect(draft, op, node, names[op])
    for value in graph.output:
        if value.name in draft.tensors:
            draft.builder.set_output(draft.tensors[value.name])
    return draft.builder.build(source)


def _add_tensor(draft: _OnnxGraphDraft, name: str, producer: int) -> None:
    kind = draft.known.types.get(name)
    shape, dtype = shape_of(kind), dtype_of(kind)
    refuse_size(name, shape or (), dtype)
    elements = draft.known.elements.get(name)
    nbytes = None if elements is None else total_bytes(elements)
    draft.tensors[name] = draft.builder.add_tensor(producer, shape=shape, dtype=dtype, nbytes=nbytes, name=name)


def _add_weight(draft: _OnnxGraphDraft, tensor: onnx.TensorProto, name: str, extra_bytes: int = 0) -> int:
    dtype, dims = dtype_name(tensor.data_type), tuple(tensor.dims)
    location, number = _location(tensor), len(draft.weight_names)
    storage = number if location is None else draft.storage.setdefault(location, number)
    nbytes = bytes_of(dims, dtype) + extra_bytes
    return draft.builder.add_weight(
        unique_name(name, draft.weight_names), shape=dims, dtype=dtype, nbytes=nbytes, storage=storage
    )


def _add_sparse(draft: _OnnxGraphDraft, sparse: onnx.SparseTensorProto) -> int:
    """The size of a sparse initializer is that of its stored values and indices."""
    dims, dtype = tuple(sparse.indices.dims), dtype_name(sparse.indices.data_type)
    refuse_size(sparse.values.name, dims, dtype)
    indices = bytes_of(dims, dtype)
    return _add_weight(draft, sparse.values, sparse.values.name, max(indices, 0))


def _location(tensor: onnx.TensorProto) -> tuple[str, int] | None:
    """The external file and offset of a tensor; initializers at the same location are tied weights."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    offset = entries.get("offset", "0")
    if "location" not in entries or not offset.isdecimal():
        return None
    return entries["location"], int(offset)


def _connect(draft: _OnnxGraphDraft, op: int, node: onnx.NodeProto, name: str) -> None:
    arguments = names_read(node)
    for position, value in enumerate(arguments):
        if value in draft.tensors:
            draft.builder.add_edge(draft.tensors[value], op, position)
        elif value in draft.weights:
            draft.builder.use_weight(draft.weights[value], op, position)
    for offset, tensor in enumerate(inner_initializers(node)):
        weight = _add_weight(draft, tensor, f"{name}/{tensor.name}")
        draft.builder.use_weight(weight, op, len(arguments) + offset)
