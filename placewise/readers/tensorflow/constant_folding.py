"""Constant folding of short values: the numbers from which graphs compute shapes and trip counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from placewise.readers.tensorflow.abstract_values import NodeCall, Type, Unknown, axis_of, count_of
from placewise.readers.tensorflow.lists import element_shape, list_length
from placewise.readers.tensorflow.types import KEPT_ELEMENTS, Array, Shape

Evaluator = Callable[[NodeCall], Sequence[Array]]


def evaluate(call: NodeCall, types: Sequence[Type]) -> list[Array | None]:
    """The values of an op's outputs if they are short and follow from known values; else None for each."""
    nothing: list[Array | None] = [None] * len(types)
    if not all(kind.shape is not None and count_of(kind.shape) <= KEPT_ELEMENTS for kind in types):
        return nothing
    values = evaluate_freely(call)
    if len(values) != len(types):
        return nothing
    return [None if value is None else _cast(value, kind.dtype) for value, kind in zip(values, types, strict=True)]


def evaluate_freely(call: NodeCall) -> list[Array | None]:
    """The values of an op's outputs, whatever their types; [] if they are long or unknown."""
    rule = _RULES.get(call.node.op)
    if rule is None:
        return []
    try:
        with np.errstate(all="ignore"):
            values = [np.asarray(value) for value in rule(call)]
    except (Unknown, LookupError, ValueError, TypeError, ArithmeticError, AttributeError):
        return []
    return [] if any(value.size > KEPT_ELEMENTS for value in values) else list(values)


def _cast(value: Array, dtype: str) -> Array | None:
    try:
        return value.astype(dtype)
    except (TypeError, ValueError):  # element types that numpy lacks
        return None


def _dims(call: NodeCall, place: int) -> Shape:
    shape = call.dims(place)
    if min(shape, default=0) < 0:
        raise Unknown
    return shape


def _binary(function: Callable[..., Any]) -> Evaluator:
    return lambda call: [function(call.data(0), call.data(1))]


def _unary(function: Callable[..., Any]) -> Evaluator:
    return lambda call: [function(call.data(0))]


def _reduce(function: Callable[..., Any]) -> Evaluator:
    def rule(call: NodeCall) -> list[Array]:
        data = call.data(0)
        axes = tuple({axis_of(axis, data.ndim) for axis in call.numbers(1)})
        return [function(data, axis=axes, keepdims=call.node.flag("keep_dims"))]

    return rule


def _divide(call: NodeCall) -> list[Array]:
    left, right = call.data(0), call.data(1)
    return [left // right if left.dtype.kind in "iu" else left / right]


def _concat(call: NodeCall) -> list[Array]:
    last = call.node.op == "ConcatV2"
    places = range(len(call.args) - 1) if last else range(1, len(call.args))
    axis = call.number(len(call.args) - 1 if last else 0)
    return [np.concatenate([call.data(place) for place in places], axis)]


def _gather(call: NodeCall) -> list[Array]:
    axis = call.number(2) if len(call.args) > 2 else 0
    if call.node.whole("batch_dims"):
        raise Unknown
    return [np.take(call.data(0), call.data(1), axis)]


def _slice(call: NodeCall) -> list[Array]:
    begin, size = call.numbers(1), call.numbers(2)
    return [call.data(0)[tuple(slice(b, None if n < 0 else b + n) for b, n in zip(begin, size, strict=True))]]


def _strided_slice(call: NodeCall) -> list[Array]:
    begin, end, step = call.numbers(1), call.numbers(2), call.numbers(3)
    masks = {name: call.node.whole(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    places: list[Any] = []
    for place in range(len(begin)):
        masked = {name: mask >> place & 1 for name, mask in masks.items()}
        if masked["ellipsis"]:
            places.append(...)
        elif masked["new_axis"]:
            places.append(None)
        elif masked["shrink_axis"]:
            places.append(begin[place])
        else:
            first, last = (None if masked["begin"] else begin[place]), (None if masked["end"] else end[place])
            places.append(slice(first, last, step[place]))
    return [call.data(0)[tuple(places)]]


def _check_short(shape: Shape) -> Shape:
    if count_of(shape) > KEPT_ELEMENTS:
        raise Unknown
    return shape


def _range(call: NodeCall) -> list[Array]:
    start, limit, delta = (call.data(place).reshape(()) for place in range(3))
    count = math.ceil((limit - start) / delta)
    if count > KEPT_ELEMENTS:
        raise Unknown
    return [start + delta * np.arange(max(count, 0))]


def _gradient_axes(call: NodeCall) -> list[Array]:
    """The axes along which each side of a broadcast repeats and its gradient is summed."""
    shapes = [list(call.numbers(place)) for place in range(2)]
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    both = [axis for axis in range(rank) if padded[0][axis] == padded[1][axis] == 1]
    return [
        np.array([a for a in range(rank) if a in both or (own[a] == 1 and other[a] != 1)], np.int64)
        for own, other in (padded, padded[::-1])
    ]


def _concat_offsets(call: NodeCall) -> list[Array]:
    axis, parts = call.number(0), [call.data(place) for place in range(1, len(call.args))]
    offsets, total = [], 0
    for part in parts:
        offset = np.zeros_like(part)
        offset[axis] = total
        total += int(part[axis])
        offsets.append(offset)
    return offsets


def _dynamic_stitch(call: NodeCall) -> list[Array]:
    half = len(call.args) // 2
    indices = [call.data(place).reshape(-1) for place in range(half)]
    rows = 1 + max(int(part.max(initial=-1)) for part in indices)
    if rows > KEPT_ELEMENTS:
        raise Unknown
    shape = call.data(half).shape[call.data(0).ndim :]
    whole = np.zeros((rows, *shape), call.data(half).dtype)
    for place, part in enumerate(indices):
        whole[part] = call.data(half + place).reshape(len(part), *shape)
    return [whole]


def _unpack(call: NodeCall) -> list[Array]:
    data = call.data(0)
    axis = call.node.whole("axis")
    return [np.take(data, place, axis) for place in range(data.shape[axis])]


_PASSING = "Cast EnsureShape Identity PlaceholderWithDefault PreventGradient Snapshot StopGradient"
_RULES: Mapping[str, Evaluator] = {
    **dict.fromkeys(_PASSING.split(), _unary(np.array)),
    "Shape": lambda call: [np.array(_dims(call, 0), np.int64)],
    "VariableShape": lambda call: [np.array(_dims(call, 0), np.int64)],
    "ShapeN": lambda call: [np.array(_dims(call, place), np.int64) for place in range(len(call.args))],
    "Size": lambda call: [np.array(math.prod(_dims(call, 0)))],
    "Rank": lambda call: [np.array(len(call.dims(0)))],
    **dict.fromkeys(("Add", "AddV2"), _binary(np.add)),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    **dict.fromkeys(("Div", "RealDiv", "FloorDiv"), _divide),
    **dict.fromkeys(("Mod", "FloorMod"), _binary(np.mod)),
    "Maximum": _binary(np.maximum), "Minimum": _binary(np.minimum), "Pow": _binary(np.power),
    "Equal": _binary(np.equal), "NotEqual": _binary(np.not_equal), "Greater": _binary(np.greater),
    "GreaterEqual": _binary(np.greater_equal), "Less": _binary(np.less), "LessEqual": _binary(np.less_equal),
    "LogicalAnd": _binary(np.logical_and), "LogicalOr": _binary(np.logical_or), "LogicalNot": _unary(np.logical_not),
    "Neg": _unary(np.negative), "Abs": _unary(np.abs), "Floor": _unary(np.floor), "Ceil": _unary(np.ceil),
    "Sqrt": _unary(np.sqrt), "ZerosLike": _unary(np.zeros_like), "OnesLike": _unary(np.ones_like),
    "TensorListLength": lambda call: [np.array(list_length(call))],
    "TensorListElementShape": lambda call: [np.array(element_shape(call))],
    "TensorArraySizeV3": lambda call: [np.array(list_length(call))],
    "Reshape": lambda call: [call.data(0).reshape(call.numbers(1))],
    "Squeeze": lambda call: [call.data(0).squeeze(call.node.ints("squeeze_dims") or None)],
    "ExpandDims": lambda call: [np.expand_dims(call.data(0), call.number(1))],
    "Transpose": lambda call: [call.data(0).transpose(call.numbers(1))],
    "Tile": lambda call: [np.tile(call.data(0), _check_short(call.numbers(1)))],
    "Concat": _concat, "ConcatV2": _concat,
    "Pack": lambda call: [np.stack([call.data(p) for p in range(len(call.args))], call.node.whole("axis"))],
    "Unpack": _unpack,
    "Gather": _gather, "GatherV2": _gather, "Slice": _slice, "StridedSlice": _strided_slice, "Range": _range,
    "Fill": lambda call: [np.full(_check_short(call.numbers(0)), call.data(1))],
    "BroadcastTo": lambda call: [np.broadcast_to(call.data(0), call.numbers(1))],
    "Select": lambda call: [np.where(call.data(0), call.data(1), call.data(2))],
    "SelectV2": lambda call: [np.where(call.data(0), call.data(1), call.data(2))],
    "Sum": _reduce(np.sum), "Prod": _reduce(np.prod), "Max": _reduce(np.max), "Min": _reduce(np.min),
    "All": _reduce(np.all), "Any": _reduce(np.any),
    "InvertPermutation": _unary(np.argsort), "BroadcastGradientArgs": _gradient_axes, "ConcatOffset": _concat_offsets,
    "DynamicStitch": _dynamic_stitch, "ParallelDynamicStitch": _dynamic_stitch,
    "Split": lambda call: np.split(call.data(1), call.node.whole("num_split"), call.number(0)),
}  # fmt: skip
