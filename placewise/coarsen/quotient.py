"""The quotient graph that groupings work on: indivisible components, the flow between them, and their sizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewise import _native
from placewise.coarsen.merging import sums
from placewise.model.columns import Floats, Ints, Longs, distinct
from placewise.model.problem import Problem
from placewise.simulate.blocks import block_bytes
from placewise.simulate.contiguity import contract, strong_components
from placewise.simulate.judge.ranks import mean_op_seconds, mean_transfer_seconds


class Limits(NamedTuple):
    """The most that one group may take: mean seconds of compute, and resident bytes."""

    seconds: float = np.inf
    bytes: float = np.inf


class Quotient(NamedTuple):
    """An acyclic graph of groups in topological order; edges are distinct and sorted by tail, then head.

    Only groups of one `key` may merge.
    """

    tail: Ints  # [n_edges]
    head: Ints  # [n_edges]
    flow: Floats  # [n_edges] mean transfer seconds between two groups, to and fro
    seconds: Floats  # [n]
    bytes: Floats  # [n]
    key: Longs  # [n]

    @property
    def n(self) -> int:
        return len(self.seconds)

    def native(self) -> _native.GroupGraph:
        """The same graph for C++ kernels: checked once, never copied."""
        return _native.GroupGraph(*self)

    def mirrored(self) -> Quotient:
        """The same groups with all edges reversed, numbered from the last to the first."""
        last = self.n - 1
        order = np.lexsort((last - self.tail, last - self.head))
        return Quotient(
            (last - self.head)[order], (last - self.tail)[order], self.flow[order],
            self.seconds[::-1].copy(), self.bytes[::-1].copy(), self.key[::-1].copy(),
        )  # fmt: skip


def build_quotient(problem: Problem, key: npt.NDArray[np.integer] | None = None) -> tuple[Ints, Quotient]:
    """The component [n_ops] of every op, and the graph of components (see `simulate.contract`).

    Components have one key if all their ops do. By default, keys differ if allowed devices differ, and between
    blocks with and without forward ops, since the latter represent mirrored blocks if stages are contiguous. `key`
    [n_ops] separates more of them.
    """
    graph = contract(problem)
    component, n = graph.component, graph.n
    tail, head = graph.edges()
    of_block = np.zeros(problem.n_blocks, np.int64)
    of_block[problem.block] = component
    quotient = Quotient(
        tail, head, _flow(problem, component, n, tail, head), sums(mean_op_seconds(problem), component, n),
        sums(block_bytes(problem), of_block, n), _keys(problem, component, n, key),
    )  # fmt: skip
    return component, quotient


def merge_groups(quotient: Quotient, label: Ints) -> tuple[Ints, Quotient]:
    """Merge groups of one label; return the new number [n] of every group, and the resulting graph.

    Groups on a cycle are merged too.
    """
    n_labels = int(label.max(initial=-1)) + 1
    component, n = strong_components(label[quotient.tail], label[quotient.head], n_labels)
    number: Ints = component[label]
    tail, head = number[quotient.tail].astype(np.int64), number[quotient.head].astype(np.int64)
    kept = tail != head
    edge = tail[kept] * max(n, 1) + head[kept]
    pairs = distinct(edge)
    flow = sums(quotient.flow[kept], np.searchsorted(pairs, edge), len(pairs))
    key = np.zeros(n, np.int64)
    key[number] = quotient.key
    return number, Quotient(
        (pairs // max(n, 1)).astype(np.int32), (pairs % max(n, 1)).astype(np.int32), flow,
        sums(quotient.seconds, number, n), sums(quotient.bytes, number, n), key,
    )  # fmt: skip


def renumber(label: npt.NDArray[np.integer]) -> Ints:
    """The same groups, numbered from 0 without gaps."""
    numbers: Ints = np.unique(label, return_inverse=True)[1].astype(np.int32)
    return numbers


def _flow(problem: Problem, component: Ints, n: int, tail: Ints, head: Ints) -> Floats:
    """Mean transfer seconds per edge [n_edges]: of all tensors between two components, in both directions."""
    graph = problem.graph
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    has_producer = graph.tensors.producer[tensor] >= 0
    source = component[graph.tensors.producer[tensor[has_producer]]].astype(np.int64)
    target = component[graph.consumers[has_producer]].astype(np.int64)
    low, high = np.minimum(source, target), np.maximum(source, target)
    edges = np.minimum(tail, head).astype(np.int64) * max(n, 1) + np.maximum(tail, head)
    pairs = distinct(edges)
    pair = low * max(n, 1) + high
    at = np.minimum(np.searchsorted(pairs, pair), max(len(pairs) - 1, 0))
    known = (low != high) & (pairs[at] == pair) if len(pairs) else np.zeros(len(pair), np.bool_)
    share = mean_transfer_seconds(problem) / np.maximum(np.diff(graph.consumer_offsets), 1)
    flow = sums(share[tensor[has_producer]][known], at[known], len(pairs))
    return flow[np.searchsorted(pairs, edges)]


def _keys(problem: Problem, component: Ints, n: int, key: npt.NDArray[np.integer] | None) -> Longs:
    """A number [n] of each component: equal where they may be grouped."""
    barred = np.zeros((n, problem.n_devices), np.bool_)
    for d in range(problem.n_devices):
        barred[component[~problem.allowed[:, d]], d] = True
    codes = np.zeros(n, np.int64)
    codes[component[~problem.graph.ops.backward]] = 1
    columns = [*barred.T, *([] if key is None else [_component_keys(component, n, key)])]
    for column in columns:
        if len(column) and (column != column[0]).any():
            codes = renumber(codes).astype(np.int64) * (int(column.max()) - int(column.min()) + 1)
            codes += column.astype(np.int64) - int(column.min())
    return renumber(codes).astype(np.int64)


def _component_keys(component: Ints, n: int, key: npt.NDArray[np.integer]) -> Longs:
    """The key of each component [n]; a unique one if its ops differ."""
    keys = np.zeros(n, np.int64)
    keys[component] = key
    torn = np.zeros(n, np.bool_)
    torn[component[keys[component] != key]] = True
    keys[torn] = int(key.max(initial=0)) + 1 + np.arange(int(torn.sum()))
    return keys
