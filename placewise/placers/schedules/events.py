"""The schedule of `operator` execution, simulated from any checkpoint on: what the judge does, moment by moment.

The rules are those of the judge (`simulate/schedule.py`), and so is every sum, so that values are equal to the last
bit. Upward ranks do not depend on the placement; so nothing differs before the first op ends whose tensors a moved op
reads, and a trial begins at the last checkpoint before. It ends as soon as the placement is too slow: when an op
starts so late that what must follow it, or the rest of its device's work, does not end in time.
"""

from __future__ import annotations

import numpy as np

from placewise.placers.schedules.desk import BEGUN, DONE, EVENTS, LAST, NOW, SLOTS, SPAN, WORK
from placewise.simulate.heaps import bitset_add, bitset_pop_min, pop, push
from placewise.simulate.kernels import lean_helper, lean_kernel, spliced

ROUNDING = 1e-9
"""By how much sums in another order may differ."""


@spliced
def checkpoint_before(x, ended):
    """The last checkpoint that was taken before so many ops had ended; −1 if there is none."""
    k = x.tally[SLOTS] - 1
    while k >= 0 and x.kept_count[k, DONE] > ended:
        k -= 1
    return k


@lean_helper
def _bases(x):
    """Where each device's waiting ops are among all of them."""
    for d in range(len(x.ops_on)):
        x.base[d + 1] = x.base[d] + x.ops_on[d]


@lean_helper
def _copy(target, source, count):
    for i in range(count):
        target[i] = source[i]


@lean_helper
def _fill(target, value):
    for i in range(len(target)):
        target[i] = value


@lean_helper
def _keep(x, k, now, makespan, done, begun, events):
    """Take checkpoint k."""
    for op in range(len(x.op)):
        x.kept_ready[k, op] = x.op[op].ready_at
        x.kept_missing[k, op] = x.op[op].missing
    _copy(x.kept_words[k], x.words, len(x.words))
    _copy(x.kept_free[k], x.free, len(x.free))
    _copy(x.kept_last[k], x.last, len(x.last))
    at = 0
    for d in range(len(x.ops_on)):
        x.kept_size[k, d, 0], x.kept_size[k, d, 1] = x.size[d, 0], x.size[d, 1]
        x.kept_slots[k, d], x.kept_spent[k, d] = x.slots[d], x.spent[d]
        for i in range(x.size[d, 1]):
            x.kept_waiting[k, at], x.kept_waiting_item[k, at] = x.waiting[x.base[d] + i], x.waiting_item[x.base[d] + i]
            at += 1
    _copy(x.kept_event[k], x.event, events)
    _copy(x.kept_event_key[k], x.event_key, events)
    x.kept_time[k, 0], x.kept_time[k, 1] = now, makespan
    x.kept_count[k, DONE], x.kept_count[k, BEGUN], x.kept_count[k, EVENTS] = done, begun, events


@lean_helper
def _restore(x, k):
    """Go back to checkpoint k; devices may have other ops by now, but none of those that had arrived there."""
    _bases(x)
    for op in range(len(x.op)):
        x.op[op].ready_at = x.kept_ready[k, op]
        x.op[op].missing = x.kept_missing[k, op]
    _copy(x.words, x.kept_words[k], len(x.words))
    _copy(x.free, x.kept_free[k], len(x.free))
    _copy(x.last, x.kept_last[k], len(x.last))
    at = 0
    for d in range(len(x.ops_on)):
        x.size[d, 0], x.size[d, 1] = x.kept_size[k, d, 0], x.kept_size[k, d, 1]
        x.slots[d], x.spent[d] = x.kept_slots[k, d], x.kept_spent[k, d]
        for i in range(x.size[d, 1]):
            x.waiting[x.base[d] + i], x.waiting_item[x.base[d] + i] = x.kept_waiting[k, at], x.kept_waiting_item[k, at]
            at += 1
    events = x.kept_count[k, EVENTS]
    _copy(x.event, x.kept_event[k], events)
    _copy(x.event_key, x.kept_event_key[k], events)
    x.flat[NOW], x.flat[SPAN] = x.kept_time[k, 0], x.kept_time[k, 1]


@lean_helper
def _begin(a, g, x):
    """The state at time 0: what reads nothing is ready, model inputs are on their way."""
    _bases(x)
    _fill(x.words, np.uint64(0))
    _fill(x.free, 0.0)
    _fill(x.last, np.int32(-1))
    for d in range(len(x.ops_on)):
        x.size[d, 0] = x.size[d, 1] = 0
        x.slots[d], x.spent[d] = a.streams[d], 0.0
    x.flat[NOW] = x.flat[SPAN] = 0.0
    words, host = x.levels[-1], len(a.location)
    for op in range(len(x.op)):
        x.op[op].ready_at, x.op[op].missing = 0.0, g.inputs[op]
        x.late[op] = -1
        if g.inputs[op] == 0:
            bitset_add(x.words, x.op[op].device * words, x.levels, g.priority[op])
            x.size[x.op[op].device, 0] += 1
    for tensor in range(a.out_offsets[0]):
        count = _targets(a.consumer_offsets, a.consumers, a.output, x.op, x.stamp, x.found, tensor, host, host)
        _fill(x.arrived, -1.0)
        x.arrived[host] = 0.0
        for k in range(count):
            to = x.found[k]
            x.arrived[to] = _send(a.queue, a.link_class, a.transfer, x.free, tensor, host, to, 0.0)
        _wake(a.consumer_offsets, a.consumers, x.op, x.arrived, x.late, x.words, x.levels, x.waiting, x.waiting_item,
              x.base, x.size, tensor, 0.0)  # fmt: skip


@lean_helper
def _send(queue, link_class, transfer, free, tensor, source, target, now):
    """Queue one hop; when it arrives."""
    q = queue[source, target]
    arrival = max(now, free[q]) + transfer[tensor, link_class[source, target]]
    free[q] = arrival
    return arrival


@lean_helper
def _remember(queue, x, tensor, source, target, now, n_devices):
    """Which tensor was sent there before `tensor`, if it is still on its way."""
    q = queue[source, target]
    if x.free[q] > now:
        x.behind[tensor] = x.last[n_devices + q]
    x.last[n_devices + q] = tensor


@lean_helper
def _targets(consumer_offsets, consumers, output, ops, stamp, found, tensor, source, host):
    """The locations other than `source` where `tensor` is needed, ascending, into `found`; their number."""
    _fill(stamp, 0)
    stamp[source] = 1
    count = 0
    for row in range(consumer_offsets[tensor], consumer_offsets[tensor + 1]):
        place = ops[consumers[row]].place
        count += stamp[place] == 0
        stamp[place] = 1
    if output[tensor]:
        count += stamp[host] == 0
        stamp[host] = 1
    stamp[source] = 0
    at, place = 0, 0
    while at < count:
        if stamp[place] == 1:
            found[at] = place
            at += 1
        place += 1
    return count


@lean_helper
def _wake(consumer_offsets, consumers, ops, arrived, late, words, levels, waiting, item, base, size, tensor, now):
    """Tell the readers of `tensor` when it arrived (−1: not yet); queue those that miss nothing."""
    for row in range(consumer_offsets[tensor], consumer_offsets[tensor + 1]):
        reader = consumers[row]
        op = ops[reader]
        there = arrived[op.place]
        if there < 0:
            continue
        if there > op.ready_at:
            op.ready_at = there
            late[reader] = tensor
        op.missing -= 1
        if op.missing == 0:
            d = op.device
            if op.ready_at <= now:
                bitset_add(words, d * levels[-1], levels, op.priority)
                size[d, 0] += 1
            else:
                push(waiting, item, base[d], size[d, 1], op.ready_at, op.priority)
                size[d, 1] += 1


@lean_kernel
def run(a, g, x, k, limit, record):
    """The makespan of the placement of `x`, from checkpoint k on; inf where it is surely above `limit`.

    `record` writes down the schedule, and takes the checkpoints behind k again. Otherwise starts and their sequence
    go into the columns for trials.
    """
    done, begun, events = 0, 0, 0
    ops, work, spent, late = x.op, x.work, x.spent, x.late
    words, levels, waiting, item, base, size = x.words, x.levels, x.waiting, x.waiting_item, x.base, x.size
    slots, free, event, event_key, stamp, found, arrived = (
        x.slots,
        x.free,
        x.event,
        x.event_key,
        x.stamp,
        x.found,
        x.arrived,
    )
    after, by_priority, owner = g.after, g.by_priority, g.owner
    op_offsets, reader_offsets, readers, output, staged, location = (
        a.out_offsets, a.consumer_offsets, a.consumers, a.output, a.staged, a.location
    )  # fmt: skip
    queue, link_class, transfer, streams = a.queue, a.link_class, a.transfer, a.streams
    n_ops, n_devices = len(ops), len(location)
    host, width = n_devices, levels[-1]
    if k < 0:
        _begin(a, g, x)
    else:
        _restore(x, k)
        done, begun, events = x.kept_count[k, DONE], x.kept_count[k, BEGUN], x.kept_count[k, EVENTS]
    now, makespan = x.flat[NOW], x.flat[SPAN]
    start, sequence = (x.start, x.sequence) if record else (x.trial_start, x.trial_sequence)
    if not record and g.live:
        _copy(start, x.start, n_ops)
        _copy(sequence, x.sequence, begun)
    limit *= 1 + ROUNDING
    x.tally[WORK] -= begun
    if record:
        x.tally[SLOTS] = k + 1
    most = len(x.kept_count)
    while now < np.inf:
        if record and x.tally[SLOTS] < most and done >= x.tally[SLOTS] * n_ops // most:
            _keep(x, x.tally[SLOTS], now, makespan, done, begun, events)
            x.tally[SLOTS] += 1
        while events > 0 and event[0] <= now:
            key = event_key[0]
            pop(event, event_key, 0, events)
            events -= 1
            op = owner[key]
            finished = key == op + op_offsets[op]
            d = ops[op].device
            source = location[d]
            first = op_offsets[op] if finished else key - op - 1
            last = op_offsets[op + 1] if finished else key - op
            if finished:
                slots[d] += 1
                if record:
                    x.ended[op] = done
                    x.last[d] = op
                done += 1
            for tensor in range(first, last):
                count = _targets(reader_offsets, readers, output, ops, stamp, found, tensor, source, host)
                _fill(arrived, -1.0)
                home = 0.0
                if record:
                    x.behind[tensor] = -1
                if not finished:
                    for i in range(count):
                        to = found[i]
                        if to == host:
                            arrived[to] = now
                        else:
                            if record:
                                _remember(queue, x, tensor, host, to, now, n_devices)
                            arrived[to] = _send(queue, link_class, transfer, free, tensor, host, to, now)
                elif staged and count > 0 and source != host:
                    arrived[source] = now
                    if record:
                        _remember(queue, x, tensor, source, host, now, n_devices)
                    home = _send(queue, link_class, transfer, free, tensor, source, host, now)
                    push(event, event_key, 0, events, home, op + 1 + tensor)
                    events += 1
                else:
                    arrived[source] = now
                    for i in range(count):
                        to = found[i]
                        if record:
                            _remember(queue, x, tensor, source, to, now, n_devices)
                        arrived[to] = _send(queue, link_class, transfer, free, tensor, source, to, now)
                    home = arrived[host]
                if output[tensor] and home > makespan:
                    makespan = home
                    x.tally[LAST] = op if record else x.tally[LAST]
                _wake(reader_offsets, readers, ops, arrived, late, words, levels, waiting,
                      item, base, size, tensor, now)  # fmt: skip
        upcoming = np.inf
        for d in range(n_devices):
            while size[d, 1] > 0 and waiting[base[d]] <= now:
                bitset_add(words, d * width, levels, item[base[d]])
                size[d, 0] += 1
                pop(waiting, item, base[d], size[d, 1])
                size[d, 1] -= 1
            while slots[d] > 0 and size[d, 0] > 0:
                op = by_priority[bitset_pop_min(words, d * width, levels)]
                size[d, 0] -= 1
                slots[d] -= 1
                start[op] = now
                sequence[begun] = op
                finish = now + ops[op].seconds
                if record:
                    x.turn[op] = begun
                    x.cause[op] = late[op] if ops[op].ready_at >= now else -2 - x.last[d]
                elif finish + after[op] > limit or now + (work[d] - spent[d]) / streams[d] > limit:
                    x.tally[WORK] += begun
                    return np.inf
                begun += 1
                spent[d] += ops[op].seconds
                if finish > makespan:
                    makespan = finish
                    x.tally[LAST] = op if record else x.tally[LAST]
                push(event, event_key, 0, events, finish, op + op_offsets[op])
                events += 1
            if slots[d] > 0 and size[d, 1] > 0:
                upcoming = min(upcoming, waiting[base[d]])
        now = min(upcoming, event[0]) if events > 0 else upcoming
    x.tally[WORK] += begun
    return makespan if done == n_ops else np.inf
