"""Types and shapes of every value: onnx's own inference first, then what it leaves open, node by node."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import onnx
import onnx.shape_inference

from placewise.errors import ModelFileError
from placewise.readers.onnx.contrib import has_rule
from placewise.readers.onnx.control_flow import WITH_BODIES, result_types
from placewise.readers.onnx.known import Known
from placewise.readers.onnx.nodes import infer_contrib, infer_node, opsets_of, unfit
from placewise.readers.onnx.schemas import is_known, is_sound
from placewise.readers.onnx.sequences import SEQUENCE_OPS, follow
from placewise.readers.onnx.structure import in_order, reads
from placewise.readers.onnx.symbols import Sizes
from placewise.readers.onnx.types import Types, is_complete, shape_of, subgraphs
from placewise.readers.onnx.values import Value, evaluate, stored_values, wanted_values

_NO_SIZES: Sizes = MappingProxyType({})
DEEPEST_BODY = 4
"""Bodies in bodies beyond this depth are left to the onnx package."""


def infer(model: onnx.ModelProto, *, depth: int = 0, sizes: Sizes = _NO_SIZES) -> Known:
    """The type of every value by name, as far as it can be known, short constants, and what sequences hold.

    What the file itself notes about inner values may be stale, so it is trusted only for ops of unknown domains, and
    elsewhere only where inference knows nothing better and does not contradict; then come the `sizes` that the user
    gives. `depth` counts the bodies around the graph. Raises ModelFileError for a node whose inputs are known and do
    not fit together.
    """
    nodes = in_order(model.graph.node)
    infos = [*model.graph.value_info, *model.graph.output]
    noted = _loop_notes(nodes) | {info.name: info.type for info in infos if is_complete(info.type)}
    known = Known(_first_pass(model, nodes, noted), stored_values(model.graph.initializer))
    asked = [node for node in nodes if node.op_type in WITH_BODIES | SEQUENCE_OPS or not _solved(node, known.types)]
    if asked:
        _walk(model, nodes, asked, known, noted, depth, sizes)
    return known


def _loop_notes(nodes: Sequence[onnx.NodeProto]) -> Types:
    """What loops note, in their bodies, about the state that they give back (inference fears that it may grow)."""
    loops = [(node.output, body.output[1:]) for node in nodes if node.op_type == "Loop" for body in subgraphs(node)]
    return {name: state.type for outputs, states in loops for name, state in zip(outputs, states, strict=False)}


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
        if not is_known(node) and not has_rule(node):
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
    asked: Sequence[onnx.NodeProto],
    known: Known,
    noted: Types,
    depth: int,
    sizes: Sizes,
) -> None:
    """Complete what is known in topological order, with the constants that the results of `asked` depend on."""
    opsets, types, values = opsets_of(model), known.types, known.values
    wanted = wanted_values(nodes, asked)
    for node in nodes:
        sound, objection = is_sound(node, opsets), ""
        if sound and not _solved(node, types):
            found, objection = infer_node(model, node, types, values)
            types.update(found)
        if not sound and not _solved(node, types) and has_rule(node):
            types.update(infer_contrib(model, node, types, values))
        if sound and not _solved(node, types) and depth < DEEPEST_BODY:
            types.update(result_types(model, node, known, partial(infer, depth=depth + 1)))
        follow(node, types, values, known.elements)
        if sound and not wanted.isdisjoint(node.output):
            for name, value in evaluate(node, types, values, model.opset_import).items():
                values[name] = value
                types[name] = _type_of(value)
        for name in node.output:
            if name in noted and _fits(types.get(name), noted[name]):
                types[name] = noted[name]
                known.borrowed.append(name)
            if name in sizes and not is_complete(types.get(name)):
                types[name] = _sized(types.get(name), sizes[name])
        if objection and not _solved(node, types) and all(is_complete(types.get(name)) for name in reads(node) if name):
            raise ModelFileError(unfit(node, types, objection), remedy="check the model and the dimensions given")


def _sized(kind: onnx.TypeProto | None, sizes: Mapping[int, int]) -> onnx.TypeProto:
    """A type with these dimensions where it is open; all of them, where not even their number is known."""
    known = shape_of(kind)
    if known is None:
        known = (-1,) * len(sizes) if set(sizes) == set(range(len(sizes))) else ()
    dims = [sizes.get(axis, dim) if dim < 0 else dim for axis, dim in enumerate(known)]
    element_type = onnx.TensorProto.UNDEFINED if kind is None else kind.tensor_type.elem_type
    return onnx.helper.make_tensor_type_proto(element_type, [None if dim < 0 else dim for dim in dims])


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
