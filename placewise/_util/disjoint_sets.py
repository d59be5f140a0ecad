"""Disjoint sets of numbers (union-find)."""

from __future__ import annotations


class DisjointSets:
    """A partition of ``range(count)``, at first into single numbers; the smallest member represents a set."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, item: int) -> int:
        """The representative of the set that contains `item`."""
        while self._parent[item] != item:
            self._parent[item] = item = self._parent[self._parent[item]]
        return item

    def join(self, one: int, other: int) -> None:
        """Merge the sets of two numbers."""
        one, other = sorted((self.find(one), self.find(other)))
        self._parent[other] = one

    def labels(self) -> list[int]:
        """Number the sets of two or more members by first member, from 0; −1 marks members of smaller sets."""
        roots = [self.find(item) for item in range(len(self._parent))]
        sizes = [0] * len(roots)
        for root in roots:
            sizes[root] += 1
        number: dict[int, int] = {}
        return [-1 if sizes[root] == 1 else number.setdefault(root, len(number)) for root in roots]
