"""One op as a shape rule sees it: the node and what is known about its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from placewise.readers.tensorflow.nodes import Node
from placewise.readers.tensorflow.types import Array, Shape


class Unknown(Exception):
    """Something that a rule needs is not known."""


class ShapeConflict(ValueError):
    """Arguments or attributes of an op contradict each other; the text says how."""


class Type(NamedTuple):
    """Element type and shape of an output: −1 for unknown dimensions, None for an unknown rank."""

    dtype: str
    shape: Shape | None


@dataclass(frozen=True, slots=True)
class AbstractValue:
    """What is known about a value, and where it is: a tensor or a weight of the graph in the making.

    A list of tensors has the shape [length, element …] and `is_list`; where its `items` are known, it is nowhere
    itself. `handle` marks a variable, whose value is read elsewhere, and has the shape of that value. `backward`: made
    in a backward pass; `of_gradient`: a TensorArray of gradients, or what is in one. Behind
    identities, `maker` is the op that made it and `shows` the weight that it is; who reads it waits for the ops
    `after` too.
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
        """The weight that this is, −1 for none."""
        return max(self.weight, self.shows)


Items = tuple[AbstractValue | None, ...]
"""What is at each place of a list, as far as something was put there."""


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A node with its arguments."""

    node: Node
    args: tuple[AbstractValue, ...]

    def dims(self, position: int) -> Shape:
        """The shape of an argument, whose rank is known; raises Unknown."""
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
        """The value of an argument as whole numbers; raises Unknown."""
        return tuple(int(number) for number in self.data(position).reshape(-1).tolist())

    def number(self, position: int) -> int:
        return self.numbers(position)[0]

    def dtype(self, position: int = 0) -> str:
        """The element type that the node says in T, else that of an argument."""
        declared = self.node.dtype("T")
        return self.args[position].dtype if declared == "unknown" and position < len(self.args) else declared


Rule = Callable[[NodeCall], list[Type]]
"""The types of an op's outputs; raises Unknown, Misfit, or LookupError and ValueError where something is missing."""


def count_of(shape: Shape) -> int:
    """Elements; −1 where a dimension is unknown."""
    return -1 if min(shape, default=0) < 0 else math.prod(shape)


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an elementwise op's result; raises Misfit."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(map(_broadcast_sizes, zip(*padded, strict=True)))


def _broadcast_sizes(dims: tuple[int, ...]) -> int:
    long = {dim for dim in dims if dim > 1 or dim == 0}
    if len(long) > 1:
        raise ShapeConflict(f"sizes {' and '.join(map(str, sorted(long)))} stand at one place")
    if long:
        return long.pop()
    return -1 if -1 in dims else 1


def agree_shapes(*shapes: Shape) -> Shape:
    """The one shape that these are, of which each may know a part; raises Misfit."""
    if len(set(map(len, shapes))) > 1:
        raise ShapeConflict("their ranks differ")
    return tuple(map(_agree_sizes, zip(*shapes, strict=True)))


def _agree_sizes(dims: tuple[int, ...]) -> int:
    known = sorted({dim for dim in dims if dim >= 0})
    if len(known) > 1:
        raise ShapeConflict(f"sizes {known[0]} and {known[1]} stand at one place")
    return known[0] if known else -1


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front; raises Misfit."""
    if not -rank <= axis < rank:
        raise ShapeConflict(f"{rank} dimensions have no axis {axis}")
    return axis % rank
