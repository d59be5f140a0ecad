"""If, Loop, Scan and SequenceMap: the input types, trip counts and output types of their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import onnx
from onnx.helper import make_tensor_type_proto

from placewise.errors import InputError
from placewise.model.dtypes import bytes_of
from placewise.readers.onnx.structure import captured_names
from placewise.readers.onnx.types import Infer, InferredValues, Types, dtype_of, is_complete, shape_of, subgraphs

Results = list[onnx.TypeProto | None]
WITH_BODIES = frozenset(("If", "Loop", "Scan", "SequenceMap"))


@dataclass(frozen=True, slots=True)
class BodyModel:
    """A body as a separate model, its inferred values (None if inference fails), and its rounds (−1: unknown)."""

    model: onnx.ModelProto
    known: InferredValues | None
    rounds: int

    @property
    def results(self) -> Results:
        """The types of its outputs."""
        outputs = self.model.graph.output
        return [None if self.known is None else self.known.types.get(value.name) for value in outputs]


def instantiate_bodies(
    model: onnx.ModelProto, node: onnx.NodeProto, known: InferredValues, infer: Infer
) -> list[BodyModel]:
    """The bodies of a node that may run, with their input types.

    If: the branch of a known condition, else both. Loop: with loop-carried state of invariant shape. Scan: with one
    slice of each scanned input. SequenceMap: with one element.
    """
    if node.domain or node.op_type not in WITH_BODIES:
        return []
    try:
        return _BODIES[node.op_type](model, node, known, infer)
    except (LookupError, ValueError, TypeError, AttributeError):  # a node that violates its definition
        return []


def result_types(model: onnx.ModelProto, node: onnx.NodeProto, known: InferredValues, infer: Infer) -> Types:
    """The complete output types of a node that follow from its bodies; {} for ops without bodies.

    If: the larger of the branches' outputs. Loop and Scan: states of invariant shape, and stacked outputs with one
    entry per round.
    """
    bodies = instantiate_bodies(model, node, known, infer)
    if not bodies:
        return {}
    results: Results = []
    if node.op_type == "If":
        results = [max(pair, key=_size) for pair in zip(*(body.results for body in bodies), strict=False)]
    elif node.op_type == "Loop":
        results = _loop_results(node, bodies[0])
    elif node.op_type == "Scan":
        results = _scan_results(node, bodies[0])
    pairs = zip(node.output, results, strict=False)
    return {name: kind for name, kind in pairs if name and kind is not None and is_complete(kind)}


def _if_bodies(model: onnx.ModelProto, node: onnx.NodeProto, known: InferredValues, infer: Infer) -> list[BodyModel]:
    graphs = {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}
    condition = known.values.get(node.input[0])
    names = ["then_branch", "else_branch"]
    if condition is not None and condition.size == 1:
        names = ["then_branch" if condition.reshape(-1)[0] else "else_branch"]
    return [_infer_body(model, graphs[name], (), known, 1, infer) for name in names]


def _loop_bodies(model: onnx.ModelProto, node: onnx.NodeProto, known: InferredValues, infer: Infer) -> list[BodyModel]:
    graph = subgraphs(node)[0]
    states = [known.types.get(name, onnx.TypeProto()) for name in node.input[2:]]
    scalars = [make_tensor_type_proto(kind, []) for kind in (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)]
    trips = known.values.get(node.input[0]) if node.input[0] else None
    rounds = int(trips.reshape(-1)[0]) if trips is not None and trips.size == 1 else -1
    body = _infer_body(model, graph, (*scalars, *states), known, rounds, infer)
    if not _all_invariant(states, body.results[1:]):  # changing shapes are unknown in the next round
        pairs = zip(states, body.results[1:], strict=False)
        states = [state if _is_invariant(state, result) else _clear_shape(state) for state, result in pairs]
        body = _infer_body(model, graph, (*scalars, *states), known, rounds, infer)
    return [body]


def _loop_results(node: onnx.NodeProto, body: BodyModel) -> Results:
    """The output types; empty unless the state keeps its shape."""
    inputs = [value.type for value in body.model.graph.input[2 : len(node.input)]]
    results = body.results[1:]
    if not _all_invariant(inputs, results):
        return []
    states_out: Results = [
        state if _is_invariant(state, result) else None for state, result in zip(inputs, results, strict=False)
    ]
    return states_out + [_stack_type(result, body.rounds, 0) for result in results[len(inputs) :]]


def _scan_bodies(model: onnx.ModelProto, node: onnx.NodeProto, known: InferredValues, infer: Infer) -> list[BodyModel]:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    count = attributes["num_scan_inputs"].i
    names = list(node.input)
    first = len(names) - count
    axes = attributes["scan_input_axes"].ints if "scan_input_axes" in attributes else repeat(0, count)
    rounds, slices = -1, []
    for name, axis in zip(names[first:], axes, strict=True):
        kind = known.types[name]
        shape = list(shape_of(kind) or ())
        rounds = shape.pop(axis)
        slices.append(make_tensor_type_proto(kind.tensor_type.elem_type, [None if dim < 0 else dim for dim in shape]))
    states = [known.types[name] for name in names[:first]]
    return [_infer_body(model, subgraphs(node)[0], (*states, *slices), known, rounds, infer)]


def _scan_results(node: onnx.NodeProto, body: BodyModel) -> Results:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    first = len(node.input) - attributes["num_scan_inputs"].i
    inputs = [value.type for value in body.model.graph.input[:first]]
    results = body.results
    states_out: Results = [
        state if _is_invariant(state, result) else None for state, result in zip(inputs, results, strict=False)
    ]
    stacks = results[first:]
    axes = list(attributes["scan_output_axes"].ints) if "scan_output_axes" in attributes else [0] * len(stacks)
    return states_out + [_stack_type(kind, body.rounds, axis) for kind, axis in zip(stacks, axes, strict=False)]


def _map_bodies(model: onnx.ModelProto, node: onnx.NodeProto, known: InferredValues, infer: Infer) -> list[BodyModel]:
    rounds = len(known.elements[node.input[0]])
    inputs = []
    for name in node.input:
        elements = known.elements.get(name)
        inputs.append(known.types[name] if elements is None else max(elements, key=_size))
    return [_infer_body(model, subgraphs(node)[0], inputs, known, rounds, infer)]


_BODIES = {"If": _if_bodies, "Loop": _loop_bodies, "Scan": _scan_bodies, "SequenceMap": _map_bodies}


def _all_invariant(states: Sequence[onnx.TypeProto], results: Results) -> bool:
    return all(_is_invariant(s, r) for s, r in zip(states, results, strict=False) if is_complete(s))


def _is_invariant(state: onnx.TypeProto, result: onnx.TypeProto | None) -> bool:
    if not state.HasField("tensor_type"):
        return bool(state == result)
    return is_complete(state) and shape_of(state) == shape_of(result) and dtype_of(state) == dtype_of(result)


def _clear_shape(kind: onnx.TypeProto) -> onnx.TypeProto:
    bare = onnx.TypeProto()
    bare.CopyFrom(kind)
    if bare.HasField("tensor_type"):
        bare.tensor_type.ClearField("shape")
    return bare


def _stack_type(kind: onnx.TypeProto | None, count: int, axis: int) -> onnx.TypeProto | None:
    shape = shape_of(kind)
    if kind is None or shape is None or min(shape, default=0) < 0 or count < 0:
        return None
    place = axis if axis >= 0 else axis + len(shape) + 1
    return make_tensor_type_proto(kind.tensor_type.elem_type, [*shape[:place], count, *shape[place:]])


def _size(kind: onnx.TypeProto | None) -> int:
    shape = shape_of(kind)
    return -1 if shape is None else bytes_of(shape, dtype_of(kind))


def _infer_body(
    model: onnx.ModelProto,
    body: onnx.GraphProto,
    inputs: Sequence[onnx.TypeProto],
    known: InferredValues,
    rounds: int,
    infer: Infer,
) -> BodyModel:
    """A body as a model: captured values become inputs, or initializers if their values are known."""
    inner = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=body)
    for value, kind in zip(inner.graph.input, inputs, strict=False):
        value.type.CopyFrom(kind)
    for name in captured_names(body):
        if name in known.values:
            inner.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(known.values[name]), name))
        elif name in known.types:
            inner.graph.input.append(onnx.helper.make_value_info(name, known.types[name]))
    try:
        return BodyModel(inner, infer(inner), rounds)
    except InputError:  # the shapes tried here may be wrong, not the model
        return BodyModel(inner, None, rounds)
