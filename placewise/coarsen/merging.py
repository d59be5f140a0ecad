"""Merge tensors with the same readers, and weights with the same users."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Floats, Ints, Longs, Ragged, distinct, frozen, offsets_of
from placewise.model.graph import Graph
from placewise.model.tables import Edges, Tensors, Weights
from placewise.simulate.blocks import storage_bytes

Hashes = npt.NDArray[np.uint64]


class MergedTensors(NamedTuple):
    """Coarse tensors, the one of each fine tensor (−1: none), and their distinct uses: (tensor, coarse op) pairs."""

    tensors: Tensors
    of: Longs  # [n_tensors]
    value: Longs
    consumer: Longs


class MergedWeights(NamedTuple):
    """Coarse weights and their distinct uses: (weight, coarse op) pairs."""

    weights: Weights
    value: Longs
    consumer: Longs


def sums(values: Floats, row: npt.NDArray[np.integer], n: int) -> Floats:
    """Sums of a column over the rows [n] that its entries belong to."""
    return np.bincount(row, weights=values, minlength=n).astype(np.float64)


def merge_tensors(graph: Graph, op: Ints, n: int) -> MergedTensors:
    """Merge all tensors that a coarse op sends to the same others; `op` [n_ops] is each op's coarse op, of n."""
    tensors, n_fine = graph.tensors, graph.n_tensors
    maker = frozen(np.where(tensors.producer >= 0, op[tensors.producer], -1), np.int32)
    tensor = np.repeat(np.arange(n_fine), np.diff(graph.consumer_offsets))
    reader = op[graph.consumers]
    leaves = reader != maker[tensor]
    pair = distinct(tensor[leaves] * max(n, 1) + reader[leaves])
    offsets = offsets_of(pair // max(n, 1), n_fine)
    readers = pair % max(n, 1)
    kept = np.flatnonzero(tensors.output | (np.diff(offsets) > 0))
    of = np.full(n_fine, -1, np.int64)
    of[kept] = _find_classes((maker[kept], tensors.output[kept]), Ragged(offsets, readers).take(kept))
    first = _find_first_rows(of, int(of.max(initial=-1)) + 1)
    bytes_ = np.zeros(len(first), np.int64)
    np.add.at(bytes_, of[kept], np.maximum(tensors.bytes[kept], 0))
    name = tensors.name
    merged = Tensors(
        name=tuple([name[i] for i in first.tolist()]),
        producer=maker[first],
        bytes=bytes_,
        dtype=tensors.dtype[first],
        shape=Ragged.empty(len(first)),
        output=tensors.output[first],
    )
    uses = Ragged(offsets, readers).take(first)
    return MergedTensors(merged, of, np.repeat(np.arange(len(first)), np.diff(uses.offsets)), uses.values)


def merge_weights(graph: Graph, label: Ints, op: Ints) -> MergedWeights:
    """Merge all storages that the same labels use; the first coarse op of each label uses the result."""
    size = storage_bytes(graph)
    n_labels = int(label.max(initial=-1)) + 1
    reader = np.full(n_labels, len(op), np.int64)
    np.minimum.at(reader, label, op)
    storage = graph.weights.storage[graph.weight_edges.value].astype(np.int64)
    pair = distinct(storage * max(n_labels, 1) + label[graph.weight_edges.consumer])
    offsets, users = offsets_of(pair // max(n_labels, 1), len(size)), pair % max(n_labels, 1)
    used = np.flatnonzero(np.diff(offsets))
    sets = Ragged(offsets, users)
    of = np.full(len(size), -1, np.int64)
    of[used] = _find_classes((), sets.take(used))
    first = _find_first_rows(of, int(of.max(initial=-1)) + 1)
    bytes_ = np.zeros(len(first), np.int64)
    np.add.at(bytes_, of[used], size[used].astype(np.int64))
    example = _find_first_rows(graph.weights.storage.astype(np.int64), len(size))[first]
    name = graph.weights.name
    weights = Weights(
        name=tuple([name[i] for i in example.tolist()]),
        bytes=bytes_,
        dtype=graph.weights.dtype[example],
        shape=Ragged.empty(len(first)),
        storage=frozen(np.arange(len(first)), np.int32),
        trainable=graph.weights.trainable[example],
    )
    uses = sets.take(first)
    return MergedWeights(weights, np.repeat(np.arange(len(first)), np.diff(uses.offsets)), reader[uses.values])


def merge_edges(uses: MergedTensors | MergedWeights) -> Edges:
    """The uses as a table, with arguments sorted by number."""
    order = np.lexsort((uses.value, uses.consumer))
    value, consumer = frozen(uses.value[order], np.int32), frozen(uses.consumer[order], np.int32)
    start = np.searchsorted(consumer, consumer)
    return Edges(value, consumer, frozen(np.arange(len(consumer)) - start, np.int32))


def _find_first_rows(of: Longs, n: int) -> Longs:
    """The first row of each of n classes; rows of class −1 do not count."""
    first = np.full(n, len(of), np.int64)
    kept = np.flatnonzero(of >= 0)
    np.minimum.at(first, of[kept], kept)
    return first


def _find_classes(keys: tuple[npt.NDArray[np.generic], ...], sets: Ragged) -> Longs:
    """The class [rows] of each row: rows with equal keys and equal sets; classes ascend with the first key.

    Sorting by a hash brings equal sets together; then they are compared.
    """
    total = np.concatenate(
        (np.zeros(1, np.uint64), np.cumsum(mix_hash(sets.values.astype(np.uint64)), dtype=np.uint64))
    )
    order = np.lexsort((total[sets.offsets[1:]] - total[sets.offsets[:-1]], *keys[::-1]))
    sets = sets.take(order)
    length = np.diff(sets.offsets)
    row = np.repeat(np.arange(len(sets)), length)
    fresh = np.zeros(len(sets), np.bool_)
    fresh[:1] = True
    for key in keys:
        fresh[1:] |= key[order][1:] != key[order][:-1]
    fresh[1:] |= length[1:] != length[:-1]
    # Rows of equal length: each value is compared with that of the previous row, one row length before it.
    fresh[row[sets.values != sets.values[np.maximum(np.arange(len(row)) - length[row], 0)]]] = True
    of = np.empty(len(sets), np.int64)
    of[order] = np.cumsum(fresh) - 1
    return of


def mix_hash(values: Hashes) -> Hashes:
    """A hash of each number (the finalizer of splitmix64, Steele, Lea and Flood, OOPSLA 2014)."""
    state = values + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
