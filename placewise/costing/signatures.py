"""Signatures: ops of equal kind, attributes, element type and shapes share a code, so each is priced once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Longs, Ragged
from placewise.model.graph import Graph
from placewise.model.tables import Edges, Tensors, Weights

MAX_ARGUMENTS = 256
"""A row with more entries counts as unique."""
_MAX_KEYS = 1 << 62
_MAX_SPREAD = 8


def signatures(graph: Graph) -> Longs:
    """Codes [n_ops]: equal for ops that must cost the same."""
    ops, tensors = graph.ops, graph.tensors
    idle = (np.diff(graph.consumer_offsets) == 0) & ~tensors.output
    tensor_code = pair_columns(_value_codes(tensors), idle & (tensors.bytes < 0))
    weight_code = _value_codes(graph.weights)
    code = pair_columns(pair_columns(ops.kind.codes, ops.attributes.codes), ops.dtype)
    code = fold_rows(code, graph.in_offsets, _entries(graph.edges, tensor_code))
    code = fold_rows(code, graph.weight_offsets, _entries(graph.weight_edges, weight_code))
    return fold_rows(code, graph.out_offsets, tensor_code)


def pair_columns(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Longs:
    """Dense codes of the pairs (first, second), row by row."""
    columns = first, second
    if _span(first) * _span(second) > _MAX_KEYS:
        columns = rank_values(first), rank_values(second)
    a, b = (column.astype(np.int64) - column.min(initial=0) for column in columns)
    return rank_values(a * _span(b) + b)


def rank_values(column: npt.NDArray[Any]) -> Longs:
    """The rank of every entry among the distinct ones; no sorting if these are close together."""
    span, low = _span(column), column.min(initial=0)
    if span > _MAX_SPREAD * len(column) + _MAX_SPREAD:
        return np.unique(column, return_inverse=True)[1]
    place = column - low
    present = np.zeros(span, np.bool_)
    present[place] = True
    ranks: Longs = (np.cumsum(present) - 1)[place]
    return ranks


def _span(column: npt.NDArray[Any]) -> int:
    """The number of integers from min(0, least) to max(0, greatest) of a column."""
    return int(column.max(initial=0)) - int(column.min(initial=0)) + 1


def fold_rows(code: Longs, offsets: Longs, entries: Longs) -> Longs:
    """Dense codes of (code, entries of the row) for rows ``entries[offsets[i]:offsets[i + 1]]``.

    Entry by entry over all rows that have one. Every step takes new codes, so rows of different lengths never coincide.
    """
    lengths = np.diff(offsets)
    longest_first = np.argsort(-lengths, kind="stable")
    alive = np.searchsorted(-lengths[longest_first], -np.arange(MAX_ARGUMENTS + 1))
    code = code.astype(np.int64, copy=True)
    fresh = int(code.max(initial=-1)) + 1
    for step in range(min(int(lengths.max(initial=0)), MAX_ARGUMENTS)):
        rows = longest_first[: alive[step]]
        code[rows] = fresh + pair_columns(code[rows], entries[offsets[rows] + step])
        fresh = int(code.max()) + 1
    wide = longest_first[: alive[MAX_ARGUMENTS]]
    code[wide] = fresh + np.arange(len(wide))
    return rank_values(code)


def _value_codes(values: Tensors | Weights) -> Longs:
    shape: Ragged = values.shape
    return fold_rows(pair_columns(values.dtype, values.bytes), shape.offsets, shape.values)


def _entries(edges: Edges, value_code: Longs) -> Longs:
    if not len(edges):
        return np.zeros(0, np.int64)
    return pair_columns(edges.position, value_code[edges.value])
