"""What stages pay at least for tensors between some of the components, the *part*, for `part_bound`.

A chain is a row of other components, each with one predecessor and one successor, between two components of the part.
If these are on different stages, the chain is cut somewhere, and both stages pay for a link of it: at least for the
cheapest one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Floats, Longs
from placewise.placers.pipeline_dp.path_bound import LeastCosts
from placewise.placers.shared.stages.stage_costs import ComponentCosts
from placewise.simulate.contiguity import Contraction

_Pair = tuple[int, int]
_Price = tuple[float, float]
"""To enter and to leave."""


class PartTransfers(NamedTuple):
    """Transfers within a part: each is paid where a stage ends between a first component and later ones."""

    first: Longs  # [n_items] a place in the part
    later: Floats  # [n_items, n_part] 1 for the later components
    began: Floats  # [2, n_items] to enter and leave a stage with a later component and without the first
    ended: Floats  # [2, n_items] to enter and leave a stage with the first component and without all later ones


def list_part_transfers(graph: Contraction, costs: ComponentCosts, least: LeastCosts, part: Longs) -> PartTransfers:
    """The transfers between the components of `part` [n_part]."""
    links = _Links(graph, costs, least, part)
    items = [*links.list_forward(), *links.list_backward()]
    later = np.zeros((len(items), len(part)))
    for row, (_, ends, _, _) in zip(later, items, strict=True):
        row[ends] = 1.0
    return PartTransfers(
        np.array([item[0] for item in items], np.int64),
        later,
        np.array([item[2] for item in items]).reshape(-1, 2).T,
        np.array([item[3] for item in items]).reshape(-1, 2).T,
    )


_Item = tuple[int, list[int], _Price, _Price]


class _Links:
    """The tensors between neighbours in the graph, and the chains between components of a part."""

    def __init__(self, graph: Contraction, costs: ComponentCosts, least: LeastCosts, part: Longs) -> None:
        self._place = np.full(graph.n, -1, np.int64)
        self._place[part] = np.arange(len(part))
        self._next = [ends.tolist() for ends in np.split(graph.successors, graph.successor_offsets[1:-1])]
        series = (np.diff(graph.predecessor_offsets) == 1) & (np.diff(graph.successor_offsets) == 1)
        self._series = series & (self._place < 0)
        self._part = part.tolist()
        self._tensors: dict[int, list[tuple[list[int], _Price]]] = {}  # by producer: successors that read it
        self._forward: dict[_Pair, _Price] = {}
        self._backward: dict[_Pair, _Price] = {}
        edges = {(tail, head) for tail, heads in enumerate(self._next) for head in heads}
        ends = costs.consumer_offsets.tolist()
        for t, producer in enumerate(costs.producer.tolist()):
            readers = costs.consumers[ends[t] : ends[t + 1]].tolist()
            price = float(least.enter[t]), float(least.leave[t])
            later = [reader for reader in readers if (producer, reader) in edges]
            if later:
                self._tensors.setdefault(producer, []).append((later, price))
                for reader in later:
                    _add(self._forward, (producer, reader), price)
                continue
            earlier = [reader for reader in readers if (reader, producer) in edges]
            for reader in earlier:  # a tensor with several such readers is charged in equal shares
                _add(self._backward, (reader, producer), (price[0] / len(earlier), price[1] / len(earlier)))

    def list_forward(self) -> list[_Item]:
        """Tensors that go on to later components."""
        items = list[_Item]()
        for producer in self._part:
            tensors = self._tensors.get(producer, [])
            shares = {reader: sum(reader in readers for readers, _ in tensors) for reader in self._next[producer]}
            for readers, price in tensors:
                ends = list[tuple[int, _Price]]()
                for reader in readers:
                    chain = self._follow(producer, reader)
                    if chain:
                        rest = [self._forward.get(link, _FREE) for link in chain[1:]]
                        own = [(enter / shares[reader], leave / shares[reader]) for enter, leave in rest]
                        ends.append((chain[-1][1], _cheapest([price, *own])))
                items += self._charge(producer, ends, price)
        return items

    def _charge(self, producer: int, ends: list[tuple[int, _Price]], price: _Price) -> list[_Item]:
        """The items of one tensor: each end for itself if they cost no more than the tensor, else any of them once."""
        sums = [sum(cheapest[way] for _, cheapest in ends) for way in (0, 1)]
        if sums[0] <= price[0] and sums[1] <= price[1]:
            groups = [([end], cheapest) for end, cheapest in ends]
        else:
            groups = [([end for end, _ in ends], _cheapest([cheapest for _, cheapest in ends]))]
        first = int(self._place[producer])
        return [
            (first, [int(self._place[end]) for end in group], (enter, 0.0), (0.0, leave))
            for group, (enter, leave) in groups
            if group and enter + leave > 0
        ]

    def list_backward(self) -> list[_Item]:
        """Tensors that go back to earlier components, as gradients do."""
        items = list[_Item]()
        for reader in self._part:
            for begin in self._next[reader]:
                chain = self._follow(reader, begin)
                enter, leave = _cheapest([self._backward.get(link, _FREE) for link in chain]) if chain else _FREE
                if enter + leave > 0:
                    end = int(self._place[chain[-1][1]])
                    items.append((int(self._place[reader]), [end], (0.0, leave), (enter, 0.0)))
        return items

    def _follow(self, begin: int, end: int) -> list[_Pair]:
        """The links of the chain from a component of the part by way of `end` to the next one; none if it has none."""
        chain = [(begin, end)]
        while self._series[end]:
            begin, end = end, self._next[end][0]
            chain.append((begin, end))
        return chain if self._place[end] >= 0 else []


_FREE: _Price = (0.0, 0.0)


def _add(prices: dict[_Pair, _Price], link: _Pair, price: _Price) -> None:
    enter, leave = prices.get(link, _FREE)
    prices[link] = enter + price[0], leave + price[1]


def _cheapest(prices: list[_Price]) -> _Price:
    return min(enter for enter, _ in prices), min(leave for _, leave in prices)
