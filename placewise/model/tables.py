"""The four tables of a graph: ops, tensors, weights and edges, as read-only columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np

from placewise.errors import GraphError
from placewise.model.columns import Bools, Bytes8, Ints, Longs, Ragged, frozen
from placewise.model.dtypes import DTYPES

T = TypeVar("T")
Attributes = Mapping[str, Any]

MAX_REPEATS = 1 << 32
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Kinds of ops whose result has the elements of its argument in another shape."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a model that runs `repeats` times for every sample, after the phases before it (prefill, decode)."""

    name: str
    repeats: int = 1

    def __post_init__(self) -> None:
        if not self.name or not 1 <= self.repeats <= MAX_REPEATS:
            raise GraphError(
                f"phase {self.name!r} is repeated {self.repeats} times", remedy=f"name it, and say 1 to {MAX_REPEATS}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Interned(Generic[T]):
    """A column with few distinct values: row i is ``values[codes[i]]``."""

    values: tuple[T, ...]
    codes: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "codes", frozen(self.codes, np.int32))
        if len(self.codes) and not 0 <= self.codes.min() <= self.codes.max() < len(self.values):
            raise GraphError("a column holds a code outside its vocabulary")

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> T:
        return self.values[int(self.codes[row])]

    def __iter__(self) -> Iterator[T]:
        return (self.values[code] for code in self.codes.tolist())

    def equals(self, value: T) -> Bools:
        """A mask [rows] of the rows that hold `value`."""
        if value not in self.values:
            return np.zeros(len(self.codes), np.bool_)
        return np.asarray(self.codes == self.values.index(value))

    def equals_any(self, values: Collection[T]) -> Bools:
        """A mask [rows] of the rows that hold one of `values`."""
        codes = [code for code, value in enumerate(self.values) if value in values]
        return np.isin(self.codes, codes)


class _Table:
    """Shows itself by its number of rows: columns may be long."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows)"  # type: ignore[arg-type]


def _freeze(table: Any, dtypes: Mapping[str, Any], rows: int, what: str) -> None:
    for name, dtype in dtypes.items():
        object.__setattr__(table, name, frozen(getattr(table, name), dtype))
    for column in fields(table):
        length = len(getattr(table, column.name))
        if length != rows:
            raise GraphError(f"the {what} column {column.name!r} has {length} rows instead of {rows}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ops(_Table):
    """One row per op, in topological order.

    `kind` is one vocabulary over all formats (ONNX names where ONNX has the op); `scope` a module path
    such as ``encoder.layer.3.attention``; `dtype` the compute type's code in `DTYPES`; `group` a
    colocation group (−1 for none); `state_bytes` what stays resident wherever the op runs besides its
    weights (KV cache, the published `size`); `origin` the ids of its nodes in the source file; `phase` indexes
    the graph's phases (0 where it has none).
    """

    name: tuple[str, ...]
    kind: Interned[str]
    scope: Interned[str]
    attributes: Interned[Attributes]
    dtype: Bytes8
    backward: Bools
    group: Ints
    state_bytes: Longs
    origin: Ragged
    phase: Bytes8

    def __post_init__(self) -> None:
        dtypes = {
            "dtype": np.int8, "backward": np.bool_, "group": np.int32, "state_bytes": np.int64, "phase": np.int8,
        }  # fmt: skip
        _freeze(self, dtypes, len(self.name), "op")
        for what, words in (("kinds", self.kind.values), ("scopes", self.scope.values)):
            if len(set(words)) < len(words):
                raise GraphError(f"the vocabulary of {what} holds a word twice")

    def __len__(self) -> int:
        return len(self.name)

    def dtype_name(self, op: int) -> str:
        return DTYPES[int(self.dtype[op])]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensors(_Table):
    """One row per tensor, sorted by producer (−1, the model's inputs, first).

    `bytes` is −1 where a shape or type is unknown; a dimension is −1 where it is unknown; `output`
    marks the model's outputs.
    """

    name: tuple[str, ...]
    producer: Ints
    bytes: Longs
    dtype: Bytes8
    shape: Ragged
    output: Bools

    def __post_init__(self) -> None:
        dtypes = {"producer": np.int32, "bytes": np.int64, "dtype": np.int8, "output": np.bool_}
        _freeze(self, dtypes, len(self.name), "tensor")

    def __len__(self) -> int:
        return len(self.name)

    def dtype_name(self, tensor: int) -> str:
        return DTYPES[int(self.dtype[tensor])]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Weights(_Table):
    """One row per weight; tied weights share a `storage` id and are held once per device.

    `trainable` is false for what training leaves as it is: buffers, constants, parameters that the model freezes.
    """

    name: tuple[str, ...]
    bytes: Longs
    dtype: Bytes8
    shape: Ragged
    storage: Ints
    trainable: Bools

    def __post_init__(self) -> None:
        dtypes = {"bytes": np.int64, "dtype": np.int8, "storage": np.int32, "trainable": np.bool_}
        _freeze(self, dtypes, len(self.name), "weight")

    def __len__(self) -> int:
        return len(self.name)

    def dtype_name(self, weight: int) -> str:
        return DTYPES[int(self.dtype[weight])]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Edges(_Table):
    """Uses of a value (tensor or weight) by an op, sorted by (consumer, position)."""

    value: Ints
    consumer: Ints
    position: Ints

    def __post_init__(self) -> None:
        _freeze(self, dict.fromkeys(("value", "consumer", "position"), np.int32), len(self.value), "edge")

    def __len__(self) -> int:
        return len(self.value)
