"""Orders in which every node follows those that it needs, and what stands in the way of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush


def sort_topologically(after: Sequence[Iterable[int]], first: Sequence[int]) -> list[int]:
    """Nodes such that each follows those that it is `after`, smallest `first` first; nodes on cycles are left out.

    >>> sort_topologically([(), (2,), (), (0, 1)], [3, 0, 1, 2])
    [2, 1, 0, 3]
    """
    needs = [set(nodes) for nodes in after]
    followers: list[list[int]] = [[] for _ in needs]
    for node, others in enumerate(needs):
        for other in others:
            followers[other].append(node)
    missing = [len(others) for others in needs]
    ready = [(first[node], node) for node, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        _, node = heappop(ready)
        order.append(node)
        for follower in followers[node]:
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, (first[follower], follower))
    return order


def find_cycle(before: Mapping[int, int]) -> list[int]:
    """A cycle along a predecessor of each node that no order frees: walk back until one repeats."""
    path, seen = [next(iter(before))], dict[int, int]()
    while path[-1] not in seen:
        seen[path[-1]] = len(path) - 1
        path.append(before[path[-1]])
    return path[seen[path[-1]] :][::-1]


def describe_cycle(names: Sequence[str]) -> str:
    """The nodes of a cycle in words: ``a → b → a``, the first six of many."""
    return " → ".join(names[:6]) + (" → …" if len(names) > 6 else "")
