"""Repeated parts of a graph, such as identical layers, found without names.

Blocks are coloured by their costs and their surroundings (Weisfeiler and Lehman 1968). From pairs of consecutive blocks
of one colour, the map block → same block of the next part grows along tensors. It need not be an isomorphism: callers
compute the load of a moved set of blocks anew.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from placewise.model.columns import Ints, Longs, frozen
from placewise.placers.shared.stages.stage_costs import ComponentCosts

_ROUNDS = 3
_STRIDES = (1, 2, 3, 4, 6)
_MAX_COLOURS = 60
_MAX_SHIFTS = 64
_MIN_SHARE = 0.2
"""The least share of blocks that a map must cover."""


class _CostView(NamedTuple):
    """Stage costs as plain lists: numbers for the costs of blocks and tensors, and their incidence."""

    cost: list[int]  # [n]
    price: list[int]  # [n_tensors]
    producer: list[int]  # [n_tensors]
    consumers: list[list[int]]  # [n_tensors]
    used: list[list[int]]  # [n] tensors
    made: list[list[int]]  # [n] tensors


def shifts(costs: ComponentCosts, go_on: Callable[[], bool] = lambda: True) -> tuple[Ints, ...]:
    """Maps [n] of blocks to those one, two, … parts later and earlier, −1 where there is none; () if few repeat.

    Once `go_on` says no, the best of the maps tried so far counts.
    """
    forward = _next_part(_view_costs(costs), go_on)
    if forward is None:
        return ()
    powers: list[Ints] = []
    images = forward
    while (images >= 0).any() and len(powers) < _MAX_SHIFTS:
        powers.append(images)
        images = np.where(images >= 0, forward[images], -1)
    return tuple(frozen(one, np.int32) for images in powers for one in (images, _inverse(images)))


def _view_costs(costs: ComponentCosts) -> _CostView:
    whole = np.hstack([costs.seconds, costs.size[:, None]]).tolist()
    price = np.hstack([costs.enter, costs.leave, costs.readers[:, None]]).tolist()
    return _CostView(
        _number_keys(tuple(row) for row in whole),
        _number_keys(tuple(row) for row in price),
        costs.producer.tolist(),
        _rows(costs.consumer_offsets, costs.consumers),
        _rows(costs.use_offsets, costs.uses),
        _rows(costs.make_offsets, costs.makes),
    )


def _rows(offsets: Longs, members: Ints) -> list[list[int]]:
    flat = members.tolist()
    return [flat[first:last] for first, last in pairwise(offsets.tolist())]


def _inverse(images: Ints) -> Ints:
    back = np.full(len(images), -1)
    back[images[images >= 0]] = np.flatnonzero(images >= 0)
    return back


def _next_part(view: _CostView, go_on: Callable[[], bool]) -> Ints | None:
    """The map [n] to the next part that covers the most blocks; None if it covers too few."""
    n = len(view.cost)
    alike: dict[int, list[int]] = defaultdict(list)
    for block, colour in enumerate(_colours(view)):
        alike[colour].append(block)
    best, best_count = None, max(_MIN_SHARE * n, 2)
    for blocks in sorted((b for b in alike.values() if len(b) > 2), key=len)[:_MAX_COLOURS]:
        for stride in _STRIDES:
            if not go_on():
                return best
            images = _drop_cycles(_grow_map(view, zip(blocks, blocks[stride:], strict=False)))
            count = int((images >= 0).sum())
            if count > best_count:
                best, best_count = images, count
    return best


def _colours(view: _CostView) -> list[int]:
    """A number per block [n], equal for blocks whose costs and surroundings of a few steps are equal."""
    colour = view.cost
    for _ in range(_ROUNDS):
        tensor = _number_keys(
            (price, colour[maker] if maker >= 0 else -1, tuple(sorted(colour[b] for b in readers)))
            for price, maker, readers in zip(view.price, view.producer, view.consumers, strict=True)
        )
        colour = _number_keys(
            (colour[b], tuple(sorted(tensor[t] for t in used)), tuple(sorted(tensor[t] for t in made)))
            for b, (used, made) in enumerate(zip(view.used, view.made, strict=True))
        )
    return colour


def _number_keys(keys: Iterable[Hashable]) -> list[int]:
    """Number the keys; equal keys get equal numbers."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _grow_map(view: _CostView, pairs: Iterable[tuple[int, int]]) -> Ints:
    """The map that starts with `pairs` and grows to neighbours of equal cost over tensors of equal cost."""
    n = len(view.cost)
    images, taken, queue = [-1] * n, [False] * n, deque[tuple[int, int]]()

    def match(block: int, image: int) -> None:
        if block != image and images[block] < 0 and not taken[image] and view.cost[block] == view.cost[image]:
            images[block], taken[image] = image, True
            queue.append((block, image))

    def looks(tensor: int) -> Hashable:
        maker = view.producer[tensor]
        return view.price[tensor], view.cost[maker] if maker >= 0 else -1

    for pair in pairs:
        match(*pair)
    while queue:
        block, image = queue.popleft()
        touched = (
            _match_pairs(view.used[block], view.used[image], looks),
            _match_pairs(view.made[block], view.made[image], looks),
        )
        for t, u in chain(*touched):
            if t != u:
                if view.producer[t] >= 0:
                    match(view.producer[t], view.producer[u])
                for reader, other in _match_pairs(view.consumers[t], view.consumers[u], view.cost.__getitem__):
                    match(reader, other)
    return np.array(images, np.int32)


def _match_pairs(ones: list[int], others: list[int], key: Callable[[int], Hashable]) -> list[tuple[int, int]]:
    """Pairs of members of both lists with equal keys, in order."""
    waiting: dict[Hashable, deque[int]] = defaultdict(deque)
    for other in others:
        waiting[key(other)].append(other)
    return [(one, waiting[key(one)].popleft()) for one in ones if waiting[key(one)]]


def _drop_cycles(images: Ints) -> Ints:
    """The map without blocks that return to themselves: these define no order of parts."""
    reached = images
    for _ in range(len(images)):
        further = np.where(reached >= 0, images[reached], -1)
        if ((further >= 0) == (reached >= 0)).all():
            break
        reached = further
    return np.where(reached >= 0, -1, images)
