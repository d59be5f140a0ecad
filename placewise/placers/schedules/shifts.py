"""Shifts of blocks that can be taken back, with the bytes, work and ops of every device kept up to date."""

from __future__ import annotations

import numpy as np

from placewise.placers.schedules.desk import MOVED
from placewise.simulate.kernels import lean_helper


@lean_helper
def put(a, g, m, x, block, target):
    """Make `target` the device of `block`."""
    old = x.home[block]
    x.home[block] = target
    x.used[old] -= m.state[block]
    x.used[target] += m.state[block]
    for row in range(g.held_offsets[block], g.held_offsets[block + 1]):
        s = g.held[row]
        x.holders[s, old] -= 1
        if x.holders[s, old] == 0:
            x.used[old] -= m.storage_bytes[s]
        if x.holders[s, target] == 0:
            x.used[target] += m.storage_bytes[s]
        x.holders[s, target] += 1
    for row in range(g.member_offsets[block], g.member_offsets[block + 1]):
        op = g.members[row]
        x.op[op].device, x.op[op].place, x.op[op].seconds = target, a.location[target], a.op_seconds[op, target]
        x.work[old] -= a.op_seconds[op, old]
        x.work[target] += a.op_seconds[op, target]
    x.ops_on[old] -= g.member_offsets[block + 1] - g.member_offsets[block]
    x.ops_on[target] += g.member_offsets[block + 1] - g.member_offsets[block]


@lean_helper
def shift(a, g, m, x, block, target):
    """Move `block`, if it may run there; it can be taken back."""
    if x.home[block] != target and m.allowed[block, target] and x.tally[MOVED] < len(x.moved):
        x.moved[x.tally[MOVED]], x.origin[x.tally[MOVED]] = block, x.home[block]
        x.tally[MOVED] += 1
        put(a, g, m, x, np.int64(block), np.int64(target))


@lean_helper
def take_back(a, g, m, x):
    """Undo every shift since the last placement that was kept."""
    while x.tally[MOVED] > 0:
        x.tally[MOVED] -= 1
        put(a, g, m, x, np.int64(x.moved[x.tally[MOVED]]), np.int64(x.origin[x.tally[MOVED]]))


@lean_helper
def untouched(a, g, x):
    """How many ops end in the schedule before anything that the shifts touch; −1 if they touch its beginning."""
    least = len(x.op)
    for i in range(x.tally[MOVED]):
        block = x.moved[i]
        for row in range(g.member_offsets[block], g.member_offsets[block + 1]):
            op = g.members[row]
            if g.input_offsets[op] == g.input_offsets[op + 1]:
                return -1
            for k in range(g.input_offsets[op], g.input_offsets[op + 1]):
                maker = a.producer[g.input_tensors[k]]
                if maker < 0:
                    return -1
                least = min(least, x.ended[maker])
    return least
