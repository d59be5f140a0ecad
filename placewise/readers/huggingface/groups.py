"""Colocation groups of two phases: what works with the same weights or the same cache stays together."""

from __future__ import annotations

from collections import defaultdict

from placewise.model.graph import Graph
from placewise.readers.huggingface.marks import CACHES


def colocate_phases(first: Graph, second: Graph) -> tuple[list[int], list[int]]:
    """Group ids of the ops of both graphs, −1 for none.

    By scope: the ops of a scope are paired one by one where both graphs have ops of the same kinds there and all of
    them need the input of `first`, else they are one group. What has no such op in `first` belongs to the nearest
    scope around it that has one. Who reads a cache stays with it.
    """
    sets = _Sets(first.n_ops + second.n_ops)
    here, there = _group_by_scope(first), _group_by_scope(second)
    needs = needs_input(first)
    homes = {scope: rows for scope, rows in here.items() if any(needs[op] for op in rows)}
    for scope, rows in there.items():
        home = _find_nearest_scope(scope, homes)
        others = here[home]
        lasting = home == scope and all(needs[op] for op in others)
        if lasting and _kinds(first, others) == _kinds(second, rows):
            for one, other in zip(others, rows, strict=True):
                sets.join(one, first.n_ops + other)
        else:
            for other in (*others[1:], *(first.n_ops + row for row in rows)):
                sets.join(others[0], other)
    for graph, offset in ((first, 0), (second, first.n_ops)):
        for op, kind in enumerate(graph.ops.kind):
            if kind in CACHES:
                for tensor in graph.outputs_of(op):
                    for reader in graph.consumers_of(tensor).tolist():
                        sets.join(offset + op, offset + reader)
    groups = sets.groups()
    return groups[: first.n_ops], groups[first.n_ops :]


def needs_input(graph: Graph) -> list[bool]:
    """Which ops depend on an input of the model [n_ops]: the others may be folded away."""
    late, producer = [False] * graph.n_ops, graph.tensors.producer.tolist()
    for op in range(graph.n_ops):
        makers = [producer[tensor] for tensor in graph.inputs_of(op).tolist()]
        late[op] = any(maker < 0 or late[maker] for maker in makers)
    return late


def _group_by_scope(graph: Graph) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for op, scope in enumerate(graph.ops.scope):
        rows[scope].append(op)
    return rows


def _find_nearest_scope(scope: str, known: dict[str, list[int]]) -> str:
    while scope not in known and scope:
        scope = scope.rpartition(".")[0]
    return scope if scope in known else next(iter(known))


def _kinds(graph: Graph, ops: list[int]) -> list[str]:
    return [graph.ops.kind[op] for op in ops]


class _Sets:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, item: int) -> int:
        while self._parent[item] != item:
            self._parent[item] = item = self._parent[self._parent[item]]
        return item

    def join(self, one: int, other: int) -> None:
        one, other = sorted((self.find(one), self.find(other)))
        self._parent[other] = one

    def groups(self) -> list[int]:
        """Sets of two and more, numbered in order of their first members; −1 for members of no such set."""
        roots = [self.find(item) for item in range(len(self._parent))]
        sizes: dict[int, int] = defaultdict(int)
        for root in roots:
            sizes[root] += 1
        number: dict[int, int] = {}
        return [-1 if sizes[root] == 1 else number.setdefault(root, len(number)) for root in roots]
