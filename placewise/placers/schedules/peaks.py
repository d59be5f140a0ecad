"""Live activations in `operator` execution: whether a placement fits under the schedule that it was simulated with.

The same account as `simulate/memory.py`, for one schedule, without making a timeline.
"""

from __future__ import annotations

import numpy as np

from placewise.simulate.kernels import lean_helper, lean_kernel


@lean_helper
def _running(start, order, first, last, moment):
    """The position from `first` to `last` of the last op that has started at a moment, or the first."""
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if start[order[middle]] <= moment:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, first)


@lean_helper
def _in_order(x, start, sequence, order, position):
    """The ops of each device one after the other, by start, then number; and where each is."""
    following = x.found
    for d in range(len(x.ops_on)):
        following[d] = x.base[d]
    for i in range(len(x.op)):
        op = sequence[i]
        d = x.op[op].device
        first, at = x.base[d], following[d]
        while at > first and order[at - 1] > op and start[order[at - 1]] == start[op]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = op
        following[d] += 1
    for at in range(len(order)):
        position[order[at]] = at


@lean_helper
def _hold(change, first, last, nbytes):
    change[first] += nbytes
    change[last + 1] -= nbytes


@lean_kernel
def peaks_fit(a, g, x, start, sequence, capacity):
    """Whether resident bytes and the peak of live activations together stay within every device.

    Ops start at `start` [n_ops], in the order `sequence` [n_ops].
    """
    roomy = True
    for d in range(len(capacity)):
        roomy = roomy and (x.ops_on[d] == 0 or x.used[d] + g.activations <= capacity[d])
    if roomy:
        return True
    n, n_devices = len(x.op), len(capacity)
    order, position, change, last = x.order, x.position, x.change, x.stamp
    for at in range(n + 1):
        change[at] = 0.0
    for op in range(n):
        x.taken[op] = False
    for d in range(n_devices):
        last[d] = -1
    _in_order(x, start, sequence, order, position)
    for tensor in range(len(a.producer)):
        nbytes = g.tensor_bytes[tensor]
        maker = a.producer[tensor]
        home = x.op[maker].device if maker >= 0 else -1
        ready = start[maker] + x.op[maker].seconds if maker >= 0 else 0.0
        begin = position[maker] if maker >= 0 else -1
        end, wanted, leaves = begin, -np.inf, False
        rows = range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1])
        for row in rows:
            reader = a.consumers[row]
            d, at = x.op[reader].device, position[reader]
            last[d] = max(last[d], at)
            if d != home:
                leaves = True
                wanted = max(wanted, start[reader])
        for row in rows:
            d = x.op[a.consumers[row]].device
            if last[d] < 0:
                continue
            if d == home:
                end = max(end, last[d])
            else:
                arrive = _running(start, order, x.base[d], x.base[d + 1], ready)
                _hold(change, min(arrive, last[d]), last[d], nbytes)
            last[d] = -1
        if maker >= 0:
            if a.output[tensor]:
                leaves = leaves or not g.is_host[home]
                wanted = wanted if g.is_host[home] else np.inf
                end = x.base[home + 1] - 1 if g.is_host[home] else end
            if leaves:
                end = max(end, _running(start, order, x.base[home], x.base[home + 1], wanted))
            closer = order[end]
            if end > begin and not leaves and not a.output[tensor] and not x.taken[closer]:
                x.taken[closer] = g.replacing[closer] == nbytes
                end -= int(x.taken[closer])
            _hold(change, begin, end, nbytes)
    held = 0.0
    for d in range(n_devices):
        for at in range(x.base[d], x.base[d + 1]):
            held += change[at]
            if x.used[d] + held > capacity[d]:
                return False
    return True
