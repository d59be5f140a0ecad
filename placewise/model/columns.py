"""Read-only columns: the arrays that all data of Placewise is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.errors import GraphError

Bools = npt.NDArray[np.bool_]
Bytes8 = npt.NDArray[np.int8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def frozen(values: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A contiguous read-only array; copies only if it must, and never freezes a caller's own array."""
    array = np.ascontiguousarray(values, dtype=dtype)
    if array.flags.writeable:
        array = array.copy() if array is values or array.base is not None else array
        array.flags.writeable = False
    return array


def sealed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, read-only: for a fresh one that nobody else holds, so that `frozen` need not copy it."""
    array.flags.writeable = False
    return array


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The sorted distinct values of a column (sorting beats numpy's hashing on large integers)."""
    ordered = np.sort(values)
    keep = np.ones(len(ordered), np.bool_)
    keep[1:] = ordered[1:] != ordered[:-1]
    return ordered[keep]


def offsets_of(sorted_ids: npt.NDArray[Any], count: int) -> Longs:
    """CSR offsets [count + 1] of rows given by a sorted id column."""
    return np.searchsorted(sorted_ids, np.arange(count + 1)).astype(np.int64)


def rows_of_labels(label: npt.NDArray[np.integer], count: int) -> list[Longs]:
    """The rows of each label from 0 to `count` − 1, ascending."""
    order = np.argsort(label, kind="stable").astype(np.int64)
    return np.split(order, offsets_of(label[order], count))[1:-1]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of different lengths: row i is ``values[offsets[i]:offsets[i + 1]]``."""

    offsets: Longs
    values: Longs

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", frozen(self.offsets, np.int64))
        object.__setattr__(self, "values", frozen(self.values, np.int64))
        offsets = self.offsets
        if not len(offsets) or offsets[0] or offsets[-1] != len(self.values) or (np.diff(offsets) < 0).any():
            raise GraphError("the offsets of a ragged column do not cover its values")

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Ragged:
        lengths: list[int] = [0]
        flat: list[int] = []
        for row in rows:
            flat.extend(row)
            lengths.append(len(flat))
        return cls(np.array(lengths, np.int64), np.array(flat, np.int64))

    @classmethod
    def empty(cls, rows: int) -> Ragged:
        return cls(np.zeros(rows + 1, np.int64), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> tuple[int, ...]:
        return tuple(self.values[self.offsets[row] : self.offsets[row + 1]].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (self[row] for row in range(len(self)))

    def take(self, rows: npt.NDArray[Any]) -> Ragged:
        """The chosen rows, in the given order (vectorized)."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        index = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[:-1][rows], lengths)
        return Ragged(offsets, self.values[index])


def firsts_of(group: npt.NDArray[np.integer]) -> Longs:
    """The place where every group [n] comes first; groups are numbered from zero, with none left out."""
    first = np.empty(int(group.max(initial=-1)) + 1, np.int64)
    # Of several values for one place the last is kept, so the first places are written last.
    first[group[::-1]] = np.arange(len(group) - 1, -1, -1)
    return first
