"""The order in which devices stand where stages form a chain."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Ints
from placewise.placers.shared.throughput_search.pipeline_costs import Costs


def chain_order(c: Costs, home: Ints, rng: np.random.Generator) -> Ints | None:
    """A position [n_devices] for each device such that no group needs a later one; None where they form no chain.

    Devices without groups, and those that may stand either way round, are put at random.
    """
    count = len(c.capacity)
    if not c.shaped:
        return np.arange(count, dtype=np.int32)
    tail = np.repeat(home, np.diff(c.after_offsets))
    head = home[c.after]
    if c.ordered:
        return None if (tail > head).any() else np.arange(count, dtype=np.int32)
    needs = np.zeros((count, count), np.bool_)
    needs[head, tail] = True
    np.fill_diagonal(needs, False)
    order, left = np.full(count, -1, np.int32), list(range(count))
    for place in range(count):
        free = [d for d in left if not needs[d, left].any()]
        if not free:
            return None
        chosen = free[int(rng.integers(len(free)))]
        order[chosen] = place
        left.remove(chosen)
    return order
