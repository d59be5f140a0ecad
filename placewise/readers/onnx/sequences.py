"""Sequences and optional values: infer the types of their elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from placewise.model.dtypes import bytes_of
from placewise.readers.onnx.types import Elements, Types, Value, dtype_of, is_complete, shape_of

SEQUENCE_OPS = frozenset((
    "ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty",
    "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence",
))  # fmt: skip
MAX_ELEMENTS = 100_000
"""A tensor split into more elements counts as one."""
_HANDLED = SEQUENCE_OPS | {"Identity"}


def assume_single_elements(names: Iterable[str], types: Types, elements: Elements) -> list[str]:
    """Assume one element in sequences of unknown length, and return their names."""
    assumed = []
    for name in names:
        element = _element_type(types.get(name))
        if element is not None and name not in elements and is_complete(element):
            elements[name] = [element]
            assumed.append(name)
    return assumed


def total_bytes(elements: list[onnx.TypeProto]) -> int:
    """Total bytes of the tensors in a sequence; −1 if one is unknown."""
    sizes = [bytes_of(shape_of(kind) or (), dtype_of(kind)) if is_complete(kind) else -1 for kind in elements]
    return -1 if min(sizes, default=0) < 0 else sum(sizes)


def infer_sequences(node: onnx.NodeProto, types: Types, values: dict[str, Value], elements: Elements) -> None:
    """Add the element types and tensor types of a node's outputs to `elements` and `types`."""
    if node.domain or not node.output or node.op_type not in _HANDLED:
        return
    try:
        result = _sequence_elements(node, types, values, elements)
        if result is not None:
            elements.update((name, result) for name in node.output if name)
        element = None if is_complete_tensor(types.get(node.output[0])) else _extract_element(node, values, elements)
        if element is not None:
            types[node.output[0]] = element
    except (LookupError, ValueError, TypeError, ArithmeticError):  # invalid nodes stay unknown
        return


def is_complete_tensor(kind: onnx.TypeProto | None) -> bool:
    return kind is not None and kind.HasField("tensor_type") and is_complete(kind)


def _sequence_elements(
    node: onnx.NodeProto, types: Types, values: dict[str, Value], elements: Elements
) -> list[onnx.TypeProto] | None:
    """The element types of a node's output sequence; None if there is none, or they are unknown."""
    kind, inputs = node.op_type, list(node.input)
    if kind == "SequenceEmpty":
        return []
    if kind == "SequenceConstruct":
        return [types[name] for name in inputs]
    if kind == "SplitToSequence":
        return _split_types(node, types, values)
    if kind in ("Optional", "Identity", "OptionalGetElement") and inputs and inputs[0]:
        whole = elements.get(inputs[0])
        return [types[inputs[0]]] if whole is None and kind == "Optional" else whole
    if kind == "SequenceInsert":
        result = list(elements[inputs[0]])
        result.insert(_index_in(inputs, 2, values, len(result)), types[inputs[1]])
        return result
    if kind == "SequenceErase":
        result = list(elements[inputs[0]])
        del result[_index_in(inputs, 1, values, len(result) - 1)]
        return result
    if kind == "SequenceMap":
        element = _element_type(types.get(node.output[0]))
        return None if element is None else [element] * len(elements[inputs[0]])
    return None


def _extract_element(node: onnx.NodeProto, values: Mapping[str, Value], elements: Elements) -> onnx.TypeProto | None:
    """The type of the tensor that a node reads from a sequence; the largest if the index is unknown."""
    if node.op_type == "SequenceAt":
        candidates = elements[node.input[0]]
        index = values.get(node.input[1])
        return max(candidates, key=lambda kind: total_bytes([kind])) if index is None else candidates[int(index)]
    if node.op_type == "OptionalGetElement" and len(elements.get(node.input[0], ())) == 1:
        return elements[node.input[0]][0]
    if node.op_type == "ConcatFromSequence":
        return _concat_type(node, elements[node.input[0]])
    return None


def _concat_type(node: onnx.NodeProto, parts: list[onnx.TypeProto]) -> onnx.TypeProto:
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    shapes = [list(shape_of(kind) or ()) for kind in parts]
    axis, shape = attributes["axis"], shapes[0]
    if attributes.get("new_axis", 0):
        shape = [*shape]
        shape.insert(axis if axis >= 0 else axis + len(shape) + 1, len(shapes))
    else:
        shape[axis] = sum(other[axis] for other in shapes)
    return onnx.helper.make_tensor_type_proto(parts[0].tensor_type.elem_type, shape)


def _split_types(node: onnx.NodeProto, types: Types, values: Mapping[str, Value]) -> list[onnx.TypeProto] | None:
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    whole = types[node.input[0]]
    shape = list(shape_of(whole) or ())
    if not is_complete_tensor(whole):
        return None
    axis = attributes.get("axis", 0)
    length, wanted = shape[axis], node.input[1] if len(node.input) > 1 else ""
    if wanted and wanted not in values:
        return [whole]  # the split is known only at run time
    step = 1 if not wanted else 0 if values[wanted].ndim else int(values[wanted])
    if step and length // step > MAX_ELEMENTS:
        return [whole]
    if not wanted:
        lengths = [1] * length
    elif values[wanted].ndim:
        lengths = [int(value) for value in values[wanted]]
    else:
        lengths = [min(step, length - start) for start in range(0, length, step)]
    if not wanted and not attributes.get("keepdims", 1):
        del shape[axis]
        return [onnx.helper.make_tensor_type_proto(whole.tensor_type.elem_type, shape)] * length
    axis %= len(shape)
    return [
        onnx.helper.make_tensor_type_proto(whole.tensor_type.elem_type, [*shape[:axis], part, *shape[axis + 1 :]])
        for part in lengths
    ]


def _index_in(inputs: list[str], position: int, values: Mapping[str, Value], last: int) -> int:
    """The index of an insertion or removal: the end unless it is known."""
    name = inputs[position] if position < len(inputs) else ""
    return int(values[name]) if name in values else last


def _element_type(kind: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """The tensor type inside a sequence or optional type, at any depth."""
    which = None if kind is None else kind.WhichOneof("value")
    if kind is None or which not in ("sequence_type", "optional_type"):
        return None
    inner = getattr(kind, which).elem_type
    return inner if inner.HasField("tensor_type") else _element_type(inner)
