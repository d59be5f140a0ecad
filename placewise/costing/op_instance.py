"""One op as a cost rule sees it, and the cost that a rule returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from placewise.errors import ModelFileError
from placewise.model.tables import Attributes

CLASSES = ("free", "matmul", "conv", "attention", "reduction", "elementwise", "movement", "control", "unknown")
"""Classes of ops. Those that compute reach a class-specific share of the peak; the others only move bytes."""

WAITED_FOR = 1 << 16
"""From this argument position on, an op waits for values without reading them: earlier writes in place."""


class Cost(NamedTuple):
    """Arithmetic and traffic of one op; `dtype` is the element type of the arithmetic ("" for the op's own)."""

    flops: float
    nbytes: float
    op_class: str
    dtype: str = ""
    known: bool = True


class UnknownSize(ModelFileError):
    """A size that an op's cost depends on is unknown."""


FREE = Cost(0, 0, "free")


@dataclass(frozen=True, slots=True)
class OpValue:
    """A tensor or weight as an argument or result: dimensions (−1 unknown), bytes (−1 unknown), element type."""

    name: str
    dims: tuple[int, ...]
    bytes: int
    dtype: str
    used: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, all known; raises UnknownSize otherwise."""
        if min(self.dims, default=0) < 0 or (not self.dims and self.bytes < 0):
            raise self._unknown("shape")
        return self.dims

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes; 0 for an output of unknown size that no op reads."""
        if self.bytes < 0 and self.used:
            raise self._unknown("size")
        return max(self.bytes, 0)

    def _unknown(self, what: str) -> UnknownSize:
        problem = f"the {what} of tensor {self.name!r} is unknown, and the cost of the op depends on it"
        return UnknownSize(problem, remedy="add its shape to the model")


@dataclass(frozen=True, slots=True)
class OpInstance:
    """An op with its arguments by position and its results in order."""

    kind: str
    attributes: Attributes
    inputs: Mapping[int, OpValue]
    outputs: tuple[OpValue, ...]

    @property
    def bytes_moved(self) -> int:
        """Bytes of all arguments (weights too) and results."""
        return self.bytes_read + self.bytes_written

    @property
    def bytes_read(self) -> int:
        return sum(value.nbytes for value in self.inputs.values())

    @property
    def bytes_written(self) -> int:
        return sum(value.nbytes for value in self.outputs)

    def size(self, position: int) -> int:
        """Elements of an argument; 0 if it is omitted."""
        return self.inputs[position].size if position in self.inputs else 0

    def shape(self, position: int) -> tuple[int, ...]:
        return self.inputs[position].shape

    def number(self, attribute: str, default: int) -> int:
        return int(self.attributes.get(attribute, default))

    def cost(self, flops: float, op_class: str, *, nbytes: float | None = None, dtype: str = "") -> Cost:
        """A cost whose traffic is that of all arguments and results, unless `nbytes` says otherwise."""
        return Cost(flops, self.bytes_moved if nbytes is None else nbytes, op_class, dtype)


Rule = Callable[[OpInstance], Cost]
"""Maps one op of a kind to its cost."""
