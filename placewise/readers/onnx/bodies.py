"""If and Loop: the types of their results, from what their bodies give back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from placewise.errors import InputError
from placewise.model.dtypes import bytes_of
from placewise.readers.onnx.structure import captured
from placewise.readers.onnx.types import Types, dtype_of, is_complete, shape_of, subgraphs
from placewise.readers.onnx.values import Value

Infer = Callable[[onnx.ModelProto], tuple[Types, list[str]]]
"""Types of every value of a model, and warnings."""
Results = list[onnx.TypeProto | None]


def result_types(
    model: onnx.ModelProto, node: onnx.NodeProto, types: Types, values: dict[str, Value], infer: Infer
) -> Types:
    """The complete types of an If's or a Loop's results, as far as its bodies tell; {} for any other op.

    If: the branch that a known condition picks, else the branch with the larger result. Loop: state that the body
    gives back in the shape in which it takes it, and stacks as long as a constant trip count allows.
    """
    if node.domain or node.op_type not in ("If", "Loop"):
        return {}

    def run(body: onnx.GraphProto, given: Sequence[onnx.TypeProto]) -> Results:
        return _results(_as_model(model, body, given, types, values), infer)

    results = _of_if(node, values, run) if node.op_type == "If" else _of_loop(node, types, values, run)
    pairs = zip(node.output, results, strict=False)
    return {name: kind for name, kind in pairs if name and kind is not None and is_complete(kind)}


Run = Callable[[onnx.GraphProto, Sequence[onnx.TypeProto]], Results]
"""The types of a body's outputs, given those of its inputs."""


def _of_if(node: onnx.NodeProto, values: dict[str, Value], run: Run) -> Results:
    branches = {attribute.name: run(attribute.g, ()) for attribute in node.attribute if attribute.HasField("g")}
    condition = values.get(node.input[0])
    if condition is not None and condition.size == 1:
        return branches.get("then_branch" if condition.reshape(-1)[0] else "else_branch", [])
    pairs = zip(branches.get("then_branch", []), branches.get("else_branch", []), strict=False)
    return [max(pair, key=_size) for pair in pairs]


def _of_loop(node: onnx.NodeProto, types: Types, values: dict[str, Value], run: Run) -> Results:
    body = subgraphs(node)[0]
    states = [types.get(name, onnx.TypeProto()) for name in node.input[2:]]
    scalars = [onnx.helper.make_tensor_type_proto(t, []) for t in (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)]
    results = run(body, (*scalars, *states))[1:]
    if not _all_kept(states, results):  # what changes is unknown in the next round, and so is what follows from it
        states = [s if _is_kept(s, r) else _unshaped(s) for s, r in zip(states, results, strict=False)]
        results = run(body, (*scalars, *states))[1:]
        if not _all_kept(states, results):
            return []
    trips = values.get(node.input[0]) if node.input[0] else None
    count = int(trips.reshape(-1)[0]) if trips is not None and trips.size == 1 else -1
    kept: Results = [s if _is_kept(s, r) else None for s, r in zip(states, results, strict=False)]
    return kept + [_stacked(result, count) for result in results[len(states) :]]


def _all_kept(states: Sequence[onnx.TypeProto], results: Results) -> bool:
    return all(_is_kept(s, r) for s, r in zip(states, results, strict=False) if is_complete(s))


def _is_kept(state: onnx.TypeProto, result: onnx.TypeProto | None) -> bool:
    if not state.HasField("tensor_type"):
        return bool(state == result)
    return is_complete(state) and shape_of(state) == shape_of(result) and dtype_of(state) == dtype_of(result)


def _unshaped(kind: onnx.TypeProto) -> onnx.TypeProto:
    bare = onnx.TypeProto()
    bare.CopyFrom(kind)
    if bare.HasField("tensor_type"):
        bare.tensor_type.ClearField("shape")
    return bare


def _stacked(kind: onnx.TypeProto | None, count: int) -> onnx.TypeProto | None:
    shape = shape_of(kind)
    if kind is None or shape is None or min(shape, default=0) < 0 or count < 0:
        return None
    return onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, [count, *shape])


def _size(kind: onnx.TypeProto | None) -> int:
    shape = shape_of(kind)
    return -1 if shape is None else bytes_of(shape, dtype_of(kind))


def _as_model(
    model: onnx.ModelProto,
    body: onnx.GraphProto,
    given: Sequence[onnx.TypeProto],
    types: Types,
    values: dict[str, Value],
) -> onnx.ModelProto:
    """A body as a model of its own: what it takes from around it are inputs, or initializers where it is known."""
    inner = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=body)
    for value, kind in zip(inner.graph.input, given, strict=False):
        value.type.CopyFrom(kind)
    for name in captured(body):
        if name in values:
            inner.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values[name]), name))
        elif name in types:
            inner.graph.input.append(onnx.helper.make_value_info(name, types[name]))
    return inner


def _results(inner: onnx.ModelProto, infer: Infer) -> Results:
    try:
        found, _ = infer(inner)
    except InputError:  # a body that does not fit the shapes tried here says nothing about the model
        return []
    return [found.get(value.name) for value in inner.graph.output]
