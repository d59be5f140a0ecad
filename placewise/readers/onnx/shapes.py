"""Infer types and shapes of all values: with the onnx package, then node by node, evaluating small constants."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import onnx
import onnx.shape_inference

from placewise.errors import ModelFileError
from placewise.readers.onnx.contrib import has_rule
from placewise.readers.onnx.control_flow import WITH_BODIES, result_types
from placewise.readers.onnx.file import KEPT_ELEMENTS
from placewise.readers.onnx.nodes import describe_mismatch, infer_contrib, infer_node, opsets_of
from placewise.readers.onnx.schemas import is_known, is_sound
from placewise.readers.onnx.sequences import SEQUENCE_OPS, infer_sequences
from placewise.readers.onnx.structure import names_read, sort_topologically
from placewise.readers.onnx.symbols import Sizes
from placewise.readers.onnx.types import InferredValues, Types, Value, is_complete, shape_of, subgraphs

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


_NO_SIZES: Sizes = MappingProxyType({})
MAX_BODY_DEPTH = 4
"""Subgraphs nested deeper are left to the onnx package."""


def infer_values(model: onnx.ModelProto, *, depth: int = 0, sizes: Sizes = _NO_SIZES) -> InferredValues:
    """Types, short constants and sequence elements of all values, as far as they can be inferred.

    The file's value_info may be stale. It is trusted for ops of unknown domains; for other ops only if inference finds
    nothing and does not contradict it. Then the user's `sizes` apply. `depth` is the nesting depth of the graph. Raises
    ModelFileError for a node with known but incompatible inputs.
    """
    nodes = sort_topologically(model.graph.node)
    infos = [*model.graph.value_info, *model.graph.output]
    declared = _loop_declarations(nodes) | {info.name: info.type for info in infos if is_complete(info.type)}
    known = InferredValues(_first_pass(model, nodes, declared), initializer_values(model.graph.initializer))
    unsolved = [
        node for node in nodes if node.op_type in WITH_BODIES | SEQUENCE_OPS or not _is_solved(node, known.types)
    ]
    if unsolved:
        _infer_in_order(model, nodes, unsolved, known, declared, depth, sizes)
    return known


def _loop_declarations(nodes: Sequence[onnx.NodeProto]) -> Types:
    """Types that loop bodies declare for their state outputs; inference assumes that their shapes may change."""
    loops = [(node.output, body.output[1:]) for node in nodes if node.op_type == "Loop" for body in subgraphs(node)]
    return {name: state.type for outputs, states in loops for name, state in zip(outputs, states, strict=False)}


def _first_pass(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], declared: Types) -> Types:
    """The types that the onnx package infers for the whole model, ignoring the declared types of known ops."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.node[:], probe.graph.value_info[:], probe.graph.output[:]
    opsets = opsets_of(model)
    probe.graph.node.extend(node for node in nodes if is_sound(node, opsets))
    for node in probe.graph.node:
        for body in subgraphs(node):
            _drop_declared_types(body)
    for node in nodes:
        if not is_known(node) and not has_rule(node):
            pairs = ((name, declared[name]) for name in node.output if name in declared)
            probe.graph.value_info.extend(onnx.helper.make_value_info(name, kind) for name, kind in pairs)
    with contextlib.suppress(Exception):  # one invalid node fails the whole pass
        probe = onnx.shape_inference.infer_shapes(probe, check_type=False, strict_mode=False, data_prop=False)
    types = {value.name: value.type for value in [*probe.graph.input, *probe.graph.value_info]}
    for tensor in model.graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return types


def _drop_declared_types(body: onnx.GraphProto) -> None:
    del body.value_info[:]
    for node in body.node:
        for inner in subgraphs(node):
            _drop_declared_types(inner)


def _is_solved(node: onnx.NodeProto, types: Types) -> bool:
    return all(is_complete(types.get(name)) for name in node.output if name)


def _infer_in_order(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    unsolved: Sequence[onnx.NodeProto],
    known: InferredValues,
    declared: Types,
    depth: int,
    sizes: Sizes,
) -> None:
    """Infer node by node in topological order, with the constants that the outputs of `unsolved` depend on."""
    opsets, types, values = opsets_of(model), known.types, known.values
    wanted = shape_inputs(nodes, unsolved)
    for node in nodes:
        is_valid, objection = is_sound(node, opsets), ""
        if is_valid and not _is_solved(node, types):
            inferred, objection = infer_node(model, node, types, values)
            types.update(inferred)
        if not is_valid and not _is_solved(node, types) and has_rule(node):
            types.update(infer_contrib(model, node, types, values))
        if is_valid and not _is_solved(node, types) and depth < MAX_BODY_DEPTH:
            types.update(result_types(model, node, known, partial(infer_values, depth=depth + 1)))
        infer_sequences(node, types, values, known.elements)
        if is_valid and not wanted.isdisjoint(node.output):
            for name, value in evaluate_node(node, types, values, model.opset_import).items():
                values[name] = value
                types[name] = _type_of(value)
        for name in node.output:
            if name in declared and _completes(types.get(name), declared[name]):
                types[name] = declared[name]
                known.borrowed.append(name)
            if name in sizes and not is_complete(types.get(name)):
                types[name] = _apply_sizes(types.get(name), sizes[name])
        if (
            objection
            and not _is_solved(node, types)
            and all(is_complete(types.get(name)) for name in names_read(node) if name)
        ):
            raise ModelFileError(
                describe_mismatch(node, types, objection), remedy="check the model and the given dimensions"
            )


def _apply_sizes(kind: onnx.TypeProto | None, sizes: Mapping[int, int]) -> onnx.TypeProto:
    """A type with its open dimensions set to `sizes`; also its rank, if that is unknown."""
    known = shape_of(kind)
    if known is None:
        known = (-1,) * len(sizes) if set(sizes) == set(range(len(sizes))) else ()
    dims = [sizes.get(axis, dim) if dim < 0 else dim for axis, dim in enumerate(known)]
    element_type = onnx.TensorProto.UNDEFINED if kind is None else kind.tensor_type.elem_type
    return onnx.helper.make_tensor_type_proto(element_type, [None if dim < 0 else dim for dim in dims])


def _type_of(value: Value) -> onnx.TypeProto:
    element_type = onnx.helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
    return onnx.helper.make_tensor_type_proto(element_type, list(value.shape))


def _completes(inferred: onnx.TypeProto | None, declared: onnx.TypeProto) -> bool:
    """Whether a declared type completes an inferred one without contradicting it."""
    if is_complete(inferred) or not is_complete(declared) or not declared.HasField("tensor_type"):
        return False
    if inferred is not None and inferred.tensor_type.elem_type not in (0, declared.tensor_type.elem_type):
        return False
    known, stated = shape_of(inferred), shape_of(declared)
    if known is None or stated is None:
        return True
    return len(known) == len(stated) and all(a in (-1, b) for a, b in zip(known, stated, strict=True))
