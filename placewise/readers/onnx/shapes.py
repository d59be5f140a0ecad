"""Types and shapes of every value: onnx's own inference first, then what it leaves open, node by node."""

from __future__ import annotations

import contextlib
import graphlib
from collections.abc import Sequence

import numpy as np
import onnx
import onnx.shape_inference

from placewise.errors import GraphError
from placewise.readers.onnx.types import Types, is_complete, shape_of, subgraphs
from placewise.readers.onnx.values import Value, evaluate, stored_values, wanted_values


def infer_types(model: onnx.ModelProto) -> tuple[Types, list[str]]:
    """The type of every value by name, as far as it can be known, and warnings.

    What the file itself notes about inner values may be stale, so it is trusted only for ops of unknown domains, and
    elsewhere only where inference knows nothing better and does not contradict.
    """
    nodes = in_order(model.graph.node)
    noted = {value.name: value.type for value in [*model.graph.value_info, *model.graph.output]}
    types = _first_pass(model, nodes, noted)
    unsolved = [node for node in nodes if not _solved(node, types)]
    borrowed = _walk(model, nodes, unsolved, types, noted) if unsolved else []
    if not borrowed:
        return types, []
    return types, [f"{len(borrowed)} shapes are the file's own notes, not inferred (first: {borrowed[0]!r})"]


def in_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes in topological order; raises GraphError for a cycle."""
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    before = [{producer[name] for name in reads(node) if name in producer} for node in nodes]
    if all(max(needs, default=-1) < index for index, needs in enumerate(before)):
        return list(nodes)
    try:
        return [nodes[index] for index in graphlib.TopologicalSorter(dict(enumerate(before))).static_order()]
    except graphlib.CycleError as error:
        cycle = [nodes[index].name or nodes[index].output[0] for index in error.args[1]]
        shown = " → ".join(map(repr, cycle[:6])) + (" → …" if len(cycle) > 6 else "")
        raise GraphError(f"the graph has a cycle: {shown}", remedy="a placement needs an acyclic graph") from None


def reads(node: onnx.NodeProto) -> list[str]:
    """Every name that a node reads: its inputs (with gaps as ""), then what its bodies take from around them."""
    captured = dict.fromkeys(name for body in subgraphs(node) for name in _free(body))
    return [*node.input, *(name for name in captured if name not in set(node.input))]


def _free(graph: onnx.GraphProto) -> list[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    own |= {sparse.values.name for sparse in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    used = [name for node in graph.node for name in reads(node)] + [value.name for value in graph.output]
    return [name for name in dict.fromkeys(used) if name not in own]


def is_known(node: onnx.NodeProto) -> bool:
    """Whether this onnx package has a definition of the op."""
    return bool(onnx.defs.has(node.op_type, node.domain))


def _first_pass(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], noted: Types) -> Types:
    """Onnx's inference over the whole model, with the noted types of known ops set aside."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.node[:], probe.graph.value_info[:], probe.graph.output[:]
    probe.graph.node.extend(nodes)
    for node in probe.graph.node:
        for body in subgraphs(node):
            _forget(body)
        if not is_known(node):
            pairs = ((name, noted[name]) for name in node.output if name in noted)
            probe.graph.value_info.extend(onnx.helper.make_value_info(name, kind) for name, kind in pairs)
    with contextlib.suppress(Exception):  # one impossible node fails the whole pass; the walk then goes around it
        probe = onnx.shape_inference.infer_shapes(probe, check_type=False, strict_mode=False, data_prop=True)
    types = {value.name: value.type for value in [*probe.graph.input, *probe.graph.value_info]}
    for tensor in model.graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return types


def _forget(body: onnx.GraphProto) -> None:
    del body.value_info[:]
    for node in body.node:
        for inner in subgraphs(node):
            _forget(inner)


def _solved(node: onnx.NodeProto, types: Types) -> bool:
    return all(is_complete(types.get(name)) for name in node.output if name)


def _walk(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    unsolved: Sequence[onnx.NodeProto],
    types: Types,
    noted: Types,
) -> list[str]:
    """Complete `types` in topological order with evaluated constants; returns the names taken from notes."""
    values = stored_values(model.graph.initializer)
    wanted = wanted_values(nodes, unsolved)
    borrowed: list[str] = []
    for node in nodes:
        if not _solved(node, types):
            types.update(_infer(model, node, types, values))
        if not wanted.isdisjoint(node.output):
            for name, value in evaluate(node, types, values, model.opset_import).items():
                values[name] = value
                types[name] = _type_of(value)
        for name in node.output:
            if name in noted and _fits(types.get(name), noted[name]):
                types[name] = noted[name]
                borrowed.append(name)
    return borrowed


def _infer(model: onnx.ModelProto, node: onnx.NodeProto, types: Types, values: dict[str, Value]) -> Types:
    """What onnx says about one node, given the types and values that its inputs have by now."""
    names = [name for name in reads(node) if name]
    if not is_known(node) or not all(name in types for name in names):
        return {}
    opset = next((o.version for o in model.opset_import if o.domain == node.domain), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        data = {name: onnx.numpy_helper.from_array(values[name], name) for name in names if name in values}
        found = onnx.shape_inference.infer_node_outputs(
            schema, node, {name: types[name] for name in names}, data, None, list(model.opset_import), model.ir_version
        )
    except Exception:  # inference reports through several unrelated C++ error types; the shape stays unknown
        return {}
    if node.op_type == "Dropout" and len(node.output) == 2:
        found.setdefault(node.output[1], _mask_type(types[node.input[0]], opset))
    return {name: kind for name, kind in found.items() if name and not is_complete(types.get(name))}


def _mask_type(data: onnx.TypeProto, opset: int) -> onnx.TypeProto:
    """Dropout's second output, which onnx leaves open before opset 12: as long as the first, boolean from opset 10."""
    mask = onnx.TypeProto()
    mask.CopyFrom(data)
    if opset >= 10:
        mask.tensor_type.elem_type = onnx.TensorProto.BOOL
    return mask


def _type_of(value: Value) -> onnx.TypeProto:
    element_type = onnx.helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
    return onnx.helper.make_tensor_type_proto(element_type, list(value.shape))


def _fits(inferred: onnx.TypeProto | None, noted: onnx.TypeProto) -> bool:
    """Whether a noted type says all that is missing and contradicts nothing that is known."""
    if is_complete(inferred) or not is_complete(noted) or not noted.HasField("tensor_type"):
        return False
    if inferred is not None and inferred.tensor_type.elem_type not in (0, noted.tensor_type.elem_type):
        return False
    known, said = shape_of(inferred), shape_of(noted)
    if known is None or said is None:
        return True
    return len(known) == len(said) and all(a in (-1, b) for a, b in zip(known, said, strict=True))
