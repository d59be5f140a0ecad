"""Split an ONNX model into submodels that together compute the same; each node is in one of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.numpy_helper

from placewise.errors import ModelFileError
from placewise.model.graph import Graph
from placewise.readers.onnx.structure import names_read, sort_topologically
from placewise.readers.onnx.symbols import sizes_from_dims
from placewise.readers.onnx.types import element_type

ValueTypes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Element type and shape of values by name; −1 is an unknown dimension."""

ANYWHERE = -1
"""The owner of a node that is replicated in every submodel that needs it."""

_OLDEST_IR = 4  # since version 4, weights need not be inputs


@dataclass(frozen=True, slots=True, eq=False)
class Submodel:
    """A submodel, the names of its inputs (`reads`) and outputs (`makes`), and the bytes of its weights."""

    model: onnx.ModelProto
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    weight_bytes: int


def value_types(raw: Graph) -> ValueTypes:
    """The types of all values in a raw view.

    Dimensions that follow from user-given sizes of data-dependent values are open: they are known only at run time.
    """
    tensors, dependent = raw.tensors, _data_dependent(raw)
    return {
        name: (tensors.dtype_name(row), tuple(-1 if row in dependent else int(dim) for dim in tensors.shape[row]))
        for row, name in enumerate(tensors.name)
    }


def _data_dependent(raw: Graph) -> set[int]:
    """The tensors whose sizes the user gave by value and axis, and all tensors computed from them."""
    sizes = sizes_from_dims(raw.source.options.get("dims", {})) if raw.source is not None else {}
    dependent: set[int] = set()
    for op in range(raw.n_ops if sizes else 0):
        outputs = set(raw.outputs_of(op))
        if any(raw.tensors.name[row] in sizes for row in outputs) or not dependent.isdisjoint(
            raw.inputs_of(op).tolist()
        ):
            dependent |= outputs
    return dependent


def split_model(model: onnx.ModelProto, owner: Sequence[int], kinds: ValueTypes) -> list[Submodel]:
    """The submodels of a model; node i belongs to submodel ``owner[i]``, and `kinds` are the types of its values.

    Nodes owned by `ANYWHERE` (constants, arithmetic on weights and shapes, identities) are replicated in the submodels
    that need them. Shapes of tensors in other submodels become constants. A submodel without nodes is empty. Raises
    ModelFileError if submodels would exchange anything but tensors of known types.
    """
    whole = _IndexedModel.of(model, owner, kinds)
    drafts = [_collect_nodes(whole, part) for part in range(max(owner, default=-1) + 1)]
    wanted = {name for draft in drafts for name in draft.reads} | {value.name for value in model.graph.output}
    return [_build_submodel(whole, draft, wanted) for draft in drafts]


@dataclass(frozen=True, slots=True)
class _IndexedModel:
    """The model with its producers and weights by name, and the topological positions of its nodes."""

    model: onnx.ModelProto
    owner: Sequence[int]
    kinds: ValueTypes
    nodes: list[onnx.NodeProto]
    turn: list[int]
    maker: dict[str, int]
    weights: dict[str, onnx.TensorProto | onnx.SparseTensorProto]

    @classmethod
    def of(cls, model: onnx.ModelProto, owner: Sequence[int], kinds: ValueTypes) -> _IndexedModel:
        graph, nodes = model.graph, list(model.graph.node)
        place = {id(node): turn for turn, node in enumerate(sort_topologically(nodes))}
        maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
        weights = {tensor.name: tensor for tensor in graph.initializer}
        weights |= {sparse.values.name: sparse for sparse in graph.sparse_initializer}
        return cls(model, owner, kinds, nodes, [place[id(node)] for node in nodes], maker, weights)


@dataclass(slots=True)
class _SubmodelDraft:
    """The contents of a submodel: own nodes, all nodes, weights, constant shapes, and inputs."""

    own: list[int]
    nodes: set[int]
    weights: dict[str, None]
    shapes: dict[str, onnx.TensorProto]
    reads: dict[str, None]


def _collect_nodes(whole: _IndexedModel, part: int) -> _SubmodelDraft:
    own = [index for index, owner in enumerate(whole.owner) if owner == part]
    draft = _SubmodelDraft(own, set(own), {}, {}, {})
    pending = own[::-1]
    while pending:
        for name in filter(None, names_read(whole.nodes[pending.pop()])):
            index = whole.maker.get(name, -1)
            if name in whole.weights:
                draft.weights[name] = None
            elif index < 0 or whole.owner[index] not in (part, ANYWHERE):
                draft.reads[name] = None
            elif index not in draft.nodes:
                shape = _known_shape(whole, whole.nodes[index])
                if shape is None:
                    draft.nodes.add(index)
                    pending.append(index)
                else:
                    draft.shapes[name] = onnx.numpy_helper.from_array(shape, name)
    return draft


def _known_shape(whole: _IndexedModel, node: onnx.NodeProto) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    """The output of a Shape or Size node, if known."""
    if node.domain or node.op_type not in ("Shape", "Size"):
        return None
    _, shape = whole.kinds.get(node.input[0], ("", (-1,)))
    if node.input[0] in whole.weights or min(shape, default=0) < 0:
        return None
    if node.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    ends = {attribute.name: attribute.i for attribute in node.attribute}
    return np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], np.int64)


def _build_submodel(whole: _IndexedModel, draft: _SubmodelDraft, wanted: set[str]) -> Submodel:
    outputs = [name for index in draft.own for name in whole.nodes[index].output if name in wanted]
    model = onnx.ModelProto(ir_version=max(whole.model.ir_version, _OLDEST_IR), producer_name="placewise")
    model.opset_import.extend(whole.model.opset_import)
    graph = model.graph
    graph.name = whole.model.graph.name or "graph"
    graph.node.extend(whole.nodes[index] for index in sorted(draft.nodes, key=whole.turn.__getitem__))
    for name in draft.weights:
        weight = whole.weights[name]
        is_sparse = isinstance(weight, onnx.SparseTensorProto)
        (graph.sparse_initializer if is_sparse else graph.initializer).append(weight)
    weight_bytes = sum(tensor.ByteSize() for tensor in (*graph.initializer, *graph.sparse_initializer))
    graph.initializer.extend(draft.shapes.values())
    graph.input.extend(_value_infos(draft.reads, whole.kinds))
    graph.output.extend(_value_infos(outputs, whole.kinds))
    return Submodel(model, tuple(draft.reads), tuple(outputs), weight_bytes)


def _value_infos(names: Iterable[str], kinds: ValueTypes) -> Iterable[onnx.ValueInfoProto]:
    for name in names:
        dtype, shape = kinds.get(name, ("unknown", ()))
        if dtype == "unknown":
            raise ModelFileError(
                f"{name!r} would be passed between parts of the model, but is not a tensor of a known type",
                remedy="keep its producer and its readers together",
            )
        dims = [None if dim < 0 else dim for dim in shape]
        yield onnx.helper.make_tensor_value_info(name, element_type(dtype), dims)
