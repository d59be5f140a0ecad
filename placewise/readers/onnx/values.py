"""Evaluate small constants: the integers from which models compute shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import onnx

from placewise.readers.onnx.file import KEPT_ELEMENTS
from placewise.readers.onnx.structure import names_read
from placewise.readers.onnx.types import Types, Value, shape_of

ARITHMETIC = frozenset({
    "Shape", "Size", "Constant", "ConstantOfShape", "Range", "Identity", "Cast", "CastLike",
    "Gather", "GatherElements", "GatherND", "Concat", "Slice", "Split", "Unsqueeze", "Squeeze", "Reshape", "Flatten",
    "Transpose", "Expand", "Tile", "Where", "NonZero", "ScatterElements", "ScatterND", "Pad", "CumSum",
    "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Sign", "Min", "Max", "Pow", "Sqrt", "Floor", "Ceil", "Round",
    "ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax", "Clip",
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor",
})  # fmt: skip
"""Ops that are evaluated: cheap, deterministic, and used by exporters to compute shapes."""


def initializer_values(tensors: Iterable[onnx.TensorProto]) -> dict[str, Value]:
    """The values of short initializers that are stored in the file."""
    values = {}
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= KEPT_ELEMENTS:
            try:
                values[tensor.name] = onnx.numpy_helper.to_array(tensor)
            except Exception:  # data and dims disagree
                continue
    return values


def shape_inputs(nodes: Sequence[onnx.NodeProto], unsolved: Iterable[onnx.NodeProto]) -> set[str]:
    """The names of values that the shapes of `unsolved` nodes may depend on, through arithmetic alone."""
    producer = {name: node for node in nodes for name in node.output if name}
    wanted: set[str] = set()
    stack = [name for node in unsolved for name in names_read(node) if name]
    while stack:
        name = stack.pop()
        node = producer.get(name)
        if name in wanted or node is None or node.domain or node.op_type not in ARITHMETIC:
            continue
        wanted.add(name)
        if node.op_type not in ("Shape", "Size"):
            stack.extend(filter(None, node.input))
    return wanted


def evaluate_node(
    node: onnx.NodeProto, types: Types, values: dict[str, Value], opsets: Sequence[onnx.OperatorSetIdProto]
) -> dict[str, Value]:
    """The outputs of a node if they are short and its inputs are known; else {}."""
    if node.op_type in ("Shape", "Size"):
        shape = shape_of(types.get(node.input[0]))
        return {} if shape is None or min(shape, default=0) < 0 else {node.output[0]: _shape_value(node, shape)}
    inputs = [name for name in dict.fromkeys(node.input) if name]
    if not all(name in values for name in inputs) or not _is_short(node, types):
        return {}
    outputs = [name for name in node.output if name]
    function = onnx.helper.make_function("placewise", "one_node", inputs, outputs, [node], list(opsets))
    feeds = {name: values[name] for name in inputs}
    try:
        from onnx.reference import ReferenceEvaluator  # slow to import, and few models need it

        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(function).run(None, feeds, {})
    except Exception:  # the value stays unknown
        return {}
    arrays = {name: np.asarray(result) for name, result in zip(outputs, results, strict=True)}
    return {name: value for name, value in arrays.items() if value.size <= KEPT_ELEMENTS}


def _shape_value(node: onnx.NodeProto, shape: tuple[int, ...]) -> Value:
    if node.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)


def _is_short(node: onnx.NodeProto, types: Types) -> bool:
    """Whether all outputs are known to be short; that of NonZero is short because its input is."""
    if node.op_type in ("NonZero", "Constant"):
        return True
    shapes = [shape_of(types.get(name)) for name in node.output if name]
    return all(
        shape is not None and min(shape, default=0) >= 0 and math.prod(shape) <= KEPT_ELEMENTS for shape in shapes
    )
