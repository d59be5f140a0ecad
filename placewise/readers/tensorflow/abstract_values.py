"""Abstract values: what is known about a tensor before the model runs, and the call that a shape rule receives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from placewise.readers.tensorflow.nodes import Node
from placewise.readers.tensorflow.types import Array, Shape


class Unknown(Exception):
    """A rule needs something that is not known."""


class ShapeConflict(ValueError):
    """Arguments or attributes of an op contradict each other; the message says how."""


class Type(NamedTuple):
    """Element type and shape of an output: −1 for unknown dimensions, None for an unknown rank."""

    dtype: str
    shape: Shape | None


@dataclass(frozen=True, slots=True)
class AbstractValue:
    """What is known about a value, and the tensor or weight of the new graph that holds it.

    A list of tensors has the shape [length, element …] and `is_list`; a list with known `items` has no tensor of its
    own. `handle` marks a variable whose value is read elsewhere; its shape is that of the value. `backward` marks a
    value of the backward pass, `of_gradient` a TensorArray of gradients or its contents. `maker` is the op that
    computes the value and `shows` the weight that it is, both seen through identities. Readers also wait for the ops
    `after`.
    """

    dtype: str
    shape: Shape | None
    data: Array | None = None
    tensor: int = -1
    weight: int = -1
    handle: bool = False
    is_list: bool = False
    backward: bool = False
    of_gradient: bool = False
    maker: int = -1
    shows: int = -1
    items: Items | None = None
    after: tuple[int, ...] = ()

    @property
    def variable(self) -> int:
        """The weight that holds this value, −1 for none."""
        return max(self.weight, self.shows)


Items = tuple[AbstractValue | None, ...]
"""The values in a list, by index; None where nothing was written."""


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A node with its arguments."""

    node: Node
    args: tuple[AbstractValue, ...]

    def dims(self, position: int) -> Shape:
        """The shape of an argument; raises Unknown if its rank is unknown."""
        shape = self.args[position].shape
        if shape is None:
            raise Unknown
        return shape

    def data(self, position: int) -> Array:
        """The value of an argument; raises Unknown."""
        data = self.args[position].data
        if data is None:
            raise Unknown
        return data

    def numbers(self, position: int) -> tuple[int, ...]:
        """The value of an argument as integers; raises Unknown."""
        return tuple(int(number) for number in self.data(position).reshape(-1).tolist())

    def number(self, position: int) -> int:
        return self.numbers(position)[0]

    def dtype(self, position: int = 0) -> str:
        """The element type in attribute T of the node, or else that of an argument."""
        declared = self.node.dtype("T")
        return self.args[position].dtype if declared == "unknown" and position < len(self.args) else declared


Rule = Callable[[NodeCall], list[Type]]
"""Infers the types of an op's outputs; raises Unknown, ShapeConflict, LookupError or ValueError."""


def count_of(shape: Shape) -> int:
    """Number of elements; −1 if a dimension is unknown."""
    return -1 if min(shape, default=0) < 0 else math.prod(shape)


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an elementwise op's result; raises Misfit."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(map(_broadcast_sizes, zip(*padded, strict=True)))


def _broadcast_sizes(dims: tuple[int, ...]) -> int:
    long = {dim for dim in dims if dim > 1 or dim == 0}
    if len(long) > 1:
        raise ShapeConflict(f"sizes {' and '.join(map(str, sorted(long)))} are in the same place")
    if long:
        return long.pop()
    return -1 if -1 in dims else 1


def agree_shapes(*shapes: Shape) -> Shape:
    """Combine several partial descriptions of one shape; raises ShapeConflict."""
    if len(set(map(len, shapes))) > 1:
        raise ShapeConflict("their ranks differ")
    return tuple(map(_agree_sizes, zip(*shapes, strict=True)))


def _agree_sizes(dims: tuple[int, ...]) -> int:
    known = sorted({dim for dim in dims if dim >= 0})
    if len(known) > 1:
        raise ShapeConflict(f"sizes {known[0]} and {known[1]} are in the same place")
    return known[0] if known else -1


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front; raises Misfit."""
    if not -rank <= axis < rank:
        raise ShapeConflict(f"{rank} dimensions have no axis {axis}")
    return axis % rank
