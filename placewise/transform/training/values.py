"""The interface of gradient rules: values, and a forward op with the gradients of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from placewise.model.dtypes import bytes_of
from placewise.model.tables import Attributes


class GraphValue(NamedTuple):
    """A tensor or a weight: its id, dimensions (−1 unknown), element type and bytes (−1 unknown)."""

    is_weight: bool
    number: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    def shaped(self, shape: tuple[int, ...]) -> GraphValue:
        """A value of another shape and the same type, as a template for results."""
        return self._replace(shape=shape, nbytes=bytes_of(shape, self.dtype))


Emit = Callable[[str, Mapping[int, GraphValue], Sequence[GraphValue], Attributes], list[GraphValue]]
"""Adds a backward op: its kind, arguments by position, templates of its results, and attributes."""


@dataclass(frozen=True, slots=True)
class ForwardOp:
    """A forward op as its gradient rule sees it.

    `inputs` and `outputs` are by argument position; `given` holds the known gradients of outputs by position; `wants`
    lists the positions of inputs that need a gradient, ascending.
    """

    kind: str
    attributes: Attributes
    inputs: Mapping[int, GraphValue]
    outputs: Sequence[GraphValue]
    given: Mapping[int, GraphValue]
    wants: tuple[int, ...]
    emit: Emit

    @property
    def gradient(self) -> GraphValue:
        """The gradient of the first output that has one, usually the only one."""
        return next(iter(self.given.values()))

    def make(self, kind: str, *arguments: GraphValue, like: GraphValue, **attributes: Any) -> GraphValue:
        """Add a backward op and return its only result, of the type of `like`."""
        return self.emit(kind, dict(enumerate(arguments)), (like,), attributes)[0]

    def number(self, attribute: str, default: float = 0) -> Any:
        return self.attributes.get(attribute, default)


Gradients = Mapping[int, GraphValue]
"""The result of a rule: the gradients of the wanted inputs by position (missing if there is none)."""

Rule = Callable[[ForwardOp], Gradients]


def positions_of(values: Iterable[int] | None, count: int) -> tuple[int, ...]:
    """The positions; None means all below `count`."""
    return tuple(range(count)) if values is None else tuple(values)


def sum_to(op: ForwardOp, gradient: GraphValue, like: GraphValue) -> GraphValue:
    """Sum the gradient of a broadcast argument over the repeated dimensions."""
    wide, narrow = gradient.shape, like.shape
    extra = len(wide) - len(narrow)
    if extra < 0 or (not narrow and like.nbytes < 0):  # of unknown rank
        return gradient
    stretched = tuple(axis for axis, dim in enumerate(narrow, start=extra) if dim == 1 and wide[axis] != 1)
    if not extra and not stretched:
        return gradient
    axes = (*range(extra), *stretched)
    if not stretched:
        return op.make("ReduceSum", gradient, like=like, axes=axes, keepdims=0)
    kept = like.shaped((*(1,) * extra, *narrow))
    summed = op.make("ReduceSum", gradient, like=kept, axes=axes, keepdims=1)
    return op.make("Reshape", summed, like=like) if extra else summed
