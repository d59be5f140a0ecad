"""The inference context of a contrib node, and helpers for shape rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from placewise.readers.onnx.types import Shape, Value

T = onnx.TensorProto

Output = tuple[Shape, int]
"""The shape of an output and its ONNX element type."""


@dataclass(frozen=True, slots=True)
class InferenceContext:
    """Attributes by name; shapes, ONNX element types and known values by input position."""

    attributes: Mapping[str, Any]
    shapes: Mapping[int, Shape]
    dtypes: Mapping[int, int]
    values: Mapping[int, Value]

    def number(self, attribute: str, default: int = 0) -> int:
        return int(self.attributes.get(attribute, default))

    def numbers(self, attribute: str, default: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(value) for value in self.attributes.get(attribute, default))

    def like(self, position: int, dtype: int | None = None) -> Output:
        """An output with the shape of an input, and with its element type unless `dtype` is given."""
        return self.shapes[position], self.dtypes[position] if dtype is None else dtype

    def value(self, position: int) -> tuple[int, ...]:
        """The integers in an input. Raises KeyError if its value is unknown."""
        return tuple(int(value) for value in self.values[position].reshape(-1))


Rule = Callable[[InferenceContext], Sequence[Output | None]]
"""The outputs of a node in order, None if unknown. Rules raise for invalid inputs; then no output is known."""


def broadcast(shapes: Iterable[Shape]) -> Shape:
    """The broadcast of these shapes. Raises ValueError if they are incompatible."""
    listed = list(shapes)
    rank = max(map(len, listed))
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in listed), strict=True)
    return tuple(_broadcast_dim(sizes) for sizes in columns)


def _broadcast_dim(sizes: tuple[int, ...]) -> int:
    long = set(sizes) - {1}
    if len(long) > 1:
        raise ValueError("the shapes are incompatible")
    return long.pop() if long else 1


def count_windows(space: Shape, kernel: Shape, ctx: InferenceContext) -> Shape:
    """The number of window positions along each spatial dimension, by strides, dilations and padding."""
    rank = len(space)
    strides, dilations = ctx.numbers("strides", (1,) * rank), ctx.numbers("dilations", (1,) * rank)
    pads, mode = ctx.numbers("pads", (0,) * 2 * rank), str(ctx.attributes.get("auto_pad", "NOTSET"))
    counts = []
    for axis, (size, width) in enumerate(zip(space, kernel, strict=True)):
        if mode.startswith("SAME"):
            counts.append(-(-size // strides[axis]))
            continue
        around = 0 if mode == "VALID" else pads[axis] + pads[axis + rank]
        left = size + around - (width - 1) * dilations[axis] - 1
        places = left // strides[axis] + 1
        if ctx.number("ceil_mode") and left % strides[axis] and places * strides[axis] < size + pads[axis]:
            places += 1
        counts.append(places)
    if min(counts, default=1) < 1:
        raise ValueError("the window is larger than the data")
    return tuple(counts)


def size(shape: Shape) -> int:
    return math.prod(shape)
