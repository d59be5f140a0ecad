"""ONNX nodes, initializers and value types → a Graph, one op per node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx

from placewise.errors import ModelFileError
from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph, Source
from placewise.readers.onnx.attributes import attributes_of
from placewise.readers.onnx.names import distinct, kind_of, op_names, scope_of
from placewise.readers.onnx.shapes import reads
from placewise.readers.onnx.symbols import model_inputs
from placewise.readers.onnx.types import Types, dtype_name, dtype_of, shape_of, subgraphs

_MOST_BYTES = 2**62
_FLOATING = ("float", "bfloat", "complex")


@dataclass(slots=True)
class _Draft:
    """A graph in the making: the builder, and who is who by ONNX name."""

    types: Types
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    tensors: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    weight_names: set[str] = field(default_factory=set)
    storage: dict[tuple[str, int], int] = field(default_factory=dict)


def to_graph(graph: onnx.GraphProto, types: Types, source: Source) -> Graph:
    """The raw view of `graph`; ids in `origin` are node indices. Raises ModelFileError and GraphError."""
    draft = _Draft(types)
    for tensor in graph.initializer:
        draft.weights[tensor.name] = _add_weight(draft, tensor, tensor.name)
    for sparse in graph.sparse_initializer:
        draft.weights[sparse.values.name] = _add_sparse(draft, sparse)
    for value in model_inputs(graph):
        _add_tensor(draft, value.name, -1, "the inputs")
    names = op_names(graph.node)
    for index, node in enumerate(graph.node):
        op = draft.builder.add_op(
            names[index],
            kind_of(node),
            scope=scope_of(node),
            attributes=attributes_of(node),
            dtype=_compute_dtype(node, types),
            origin=(index,),
        )
        for name in filter(None, node.output):
            _add_tensor(draft, name, op, f"node {names[index]!r}")
    for op, node in enumerate(graph.node):
        _connect(draft, op, node, names[op])
    for value in graph.output:
        _mark_output(draft, value.name)
    return draft.builder.build(source)


def _add_tensor(draft: _Draft, name: str, producer: int, place: str) -> None:
    if name in draft.tensors or name in draft.weights:
        raise ModelFileError(f"value {name!r} is made twice, again by {place}", remedy="every value needs its own name")
    kind = draft.types.get(name)
    shape, dtype = shape_of(kind), dtype_of(kind)
    if shape is not None:
        _refuse_size(name, shape, dtype)
    draft.tensors[name] = draft.builder.add_tensor(producer, shape=shape, dtype=dtype, name=name)


def _add_weight(draft: _Draft, tensor: onnx.TensorProto, name: str, extra_bytes: int = 0) -> int:
    dtype, dims = dtype_name(tensor.data_type), tuple(tensor.dims)
    if dtype == "unknown" or any(dim < 0 for dim in dims):
        raise ModelFileError(
            f"initializer {name!r} has element type {tensor.data_type} and dimensions {list(dims)}",
            remedy="export the model again, or update the onnx package",
        )
    _refuse_size(name, dims, dtype)
    if name in draft.weight_names:
        raise ModelFileError(f"two initializers are called {name!r}", remedy="every value needs its own name")
    draft.weight_names.add(name)
    storage = (
        draft.storage.setdefault(location, len(draft.weight_names) - 1) if (location := _location(tensor)) else None
    )
    nbytes = bytes_of(dims, dtype) + extra_bytes
    return draft.builder.add_weight(name, shape=dims, dtype=dtype, nbytes=nbytes, storage=storage)


def _add_sparse(draft: _Draft, sparse: onnx.SparseTensorProto) -> int:
    """A sparse initializer counts with its stored values and their indices, not with its dense size."""
    indices = bytes_of(tuple(sparse.indices.dims), dtype_name(sparse.indices.data_type))
    return _add_weight(draft, sparse.values, sparse.values.name, max(indices, 0))


def _location(tensor: onnx.TensorProto) -> tuple[str, int] | None:
    """Where in which external file a tensor lies: two initializers at one place are one weight, tied."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    offset = entries.get("offset", "0")
    if "location" not in entries or not offset.isdecimal():
        return None
    return entries["location"], int(offset)


def _connect(draft: _Draft, op: int, node: onnx.NodeProto, name: str) -> None:
    arguments = reads(node)
    for position, value in enumerate(arguments):
        if value in draft.tensors:
            draft.builder.add_edge(draft.tensors[value], op, position)
        elif value in draft.weights:
            draft.builder.use_weight(draft.weights[value], op, position)
        elif value:
            raise ModelFileError(
                f"node {name!r} reads {value!r}, which no node, input or initializer makes",
                remedy="export the model again",
            )
    for offset, tensor in enumerate(_inner_initializers(node)):
        weight = _add_weight(draft, tensor, distinct(f"{name}/{tensor.name}", set(draft.weight_names)))
        draft.builder.use_weight(weight, op, len(arguments) + offset)


def _inner_initializers(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for body in subgraphs(node):
        yield from body.initializer
        for inner in body.node:
            yield from _inner_initializers(inner)


def _mark_output(draft: _Draft, name: str) -> None:
    if name in draft.tensors:
        draft.builder.set_output(draft.tensors[name])
    elif name not in draft.weights:
        raise ModelFileError(f"nothing makes the model's output {name!r}", remedy="export the model again")


def _refuse_size(name: str, shape: Sequence[int], dtype: str) -> None:
    if bytes_of(tuple(shape), dtype) > _MOST_BYTES or max(shape, default=0) > _MOST_BYTES:
        raise ModelFileError(f"value {name!r} has the absurd shape {list(shape)}", remedy="check its dimensions")


def _compute_dtype(node: onnx.NodeProto, types: Types) -> str:
    """The first floating type among inputs and outputs, else the first output's; of integer kernels, the input's."""
    found = [dtype_of(types.get(name)) for name in [*node.input, *node.output] if name]
    if node.op_type.startswith("QLinear") or node.op_type.endswith("Integer"):
        return found[0] if found else "unknown"
    floating = next((dtype for dtype in found if dtype.startswith(_FLOATING)), None)
    return floating or next((dtype_of(types.get(name)) for name in node.output if name), "unknown")
