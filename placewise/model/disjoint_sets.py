"""Disjoint sets of numbers (union-find, Tarjan 1975), the only one in Python; kernels have `native/common`."""

from __future__ import annotations

from collections import Counter


class DisjointSets:
    """Sets of the numbers 0 … count − 1, each a set of its own at first; the smallest member stands for a set.

    >>> sets = DisjointSets(4)
    >>> sets.join(3, 1)
    >>> sets.roots(), sets.groups()
    ([0, 1, 2, 1], [-1, 0, -1, 0])
    """

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, item: int) -> int:
        """The smallest member of the set of `item`."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = item = parent[parent[item]]
        return item

    def join(self, one: int, other: int) -> None:
        """Make one set of the sets of both."""
        low, high = sorted((self.find(one), self.find(other)))
        self._parent[high] = low

    def roots(self) -> list[int]:
        """The smallest member of the set of each item."""
        return [self.find(item) for item in range(len(self._parent))]

    def groups(self) -> list[int]:
        """The set of each item, numbered from 0 by first member; −1 for items that are alone."""
        roots, numbers = self.roots(), dict[int, int]()
        sizes = Counter(roots)
        return [numbers.setdefault(root, len(numbers)) if sizes[root] > 1 else -1 for root in roots]
