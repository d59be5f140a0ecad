"""Types and shapes of every value: onnx's own inference first, then what it leaves open, node by node."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import onnx
import onnx.shape_inference

from placewise.readers.onnx.schemas import is_known, is_sound, schema_of
from placewise.readers.onnx.structure import in_order, reads
from placewise.readers.onnx.types import Types, is_complete, shape_of, subgraphs
from placewise.readers.onnx.values import Value, evaluate, stored_values, wanted_values

_KEEP_SHAPE = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Ops whose output is like their first input, and for which the onnx package has no shape rule of its own."""


def infer_types(model: onnx.ModelProto) -> tuple[Types, list[str]]:
    """The type of every value by name, as far as it can be known, and warnings.

    What the file itself notes about inner values may be stale, so it is trusted only for ops of unknown domains, and
    elsewhere only where inference knows nothing better and does not contradict.
    """
    nodes = in_order(model.graph.node)
    infos = [*model.graph.value_info, *model.graph.output]
    noted = _loop_notes(nodes) | {info.name: info.type for info in infos if is_complete(info.type)}
    types = _first_pass(model, nodes, noted)
    unsolved = [node for node in nodes if not _solved(node, types)]
    borrowed = _walk(model, nodes, unsolved, types, noted) if unsolved else []
    if not borrowed:
        return types, []
    return types, [f"{len(borrowed)} shapes are the file's own notes, not inferred (first: {borrowed[0]!r})"]


def _loop_notes(nodes: Sequence[onnx.NodeProto]) -> Types:
    """What loops note, in their bodies, about the state that they give back (inference fears that it may grow)."""
    loops = [(node.output, body.output[1:]) for node in nodes if node.op_type == "Loop" for body in subgraphs(node)]
    return {name: state.type for outputs, states in loops for name, state in zip(outputs, states, strict=False)}


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    return {opset.domain: opset.version for opset in model.opset_import}


def _first_pass(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], noted: Types) -> Types:
    """What the onnx package infers for the whole model, with the noted types of known ops set aside."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.node[:], probe.graph.value_info[:], probe.graph.output[:]
    opsets = opsets_of(model)
    probe.graph.node.extend(node for node in nodes if is_sound(node, opsets))
    for node in probe.graph.node:
        for body in subgraphs(node):
            _forget(body)
    for node in nodes:
        if not is_known(node):
            pairs = ((name, noted[name]) for name in node.output if name in noted)
            probe.graph.value_info.extend(onnx.helper.make_value_info(name, kind) for name, kind in pairs)
    with contextlib.suppress(Exception):  # one impossible node fails the whole pass; the walk then goes around it
        probe = onnx.shape_inference.infer_shapes(probe, check_type=False, strict_mode=False, data_prop=False)
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
    opsets, values = opsets_of(model), stored_values(model.graph.initializer)
    wanted = wanted_values(nodes, unsolved)
    borrowed: list[str] = []
    for node in nodes:
        sound = is_sound(node, opsets)
        if sound and not _solved(node, types):
            types.update(_infer(model, node, types, values))
        if sound and not wanted.isdisjoint(node.output):
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
    names, opset = [name for name in reads(node) if name], opsets_of(model).get(node.domain, 1)
    schema = schema_of(node.op_type, node.domain, opset)
    if schema is None or not all(name in types for name in names):
        return {}
    try:
        data = {name: onnx.numpy_helper.from_array(values[name], name) for name in names if name in values}
        found = onnx.shape_inference.infer_node_outputs(
            schema, node, {name: types[name] for name in names}, data, None, list(model.opset_import), model.ir_version
        )
    except Exception:  # inference reports through several unrelated C++ error types; the shape stays unknown
        return {}
    if node.op_type in _KEEP_SHAPE:
        found[node.output[0]] = types[node.input[0]]
    if node.op_type == "Dropout" and opset < 12 and len(node.output) == 2:
        found[node.output[1]] = _mask_type(types[node.input[0]], opset)
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
