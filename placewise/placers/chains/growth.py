"""The kernel of the dynamic program over ideals: it grows stages from every ideal, one component at a time.

``value[I, s]`` is the least max-load of any way to run the ideal I on the devices that state s counts; a
stage from I to J on one more device, or on several that share it, leads to ``max(value[I, s], load(J − I))``. Only
what can still beat the best known value is grown: stages whose compute and unavoidable communication stay below it,
from states whose devices that are left can do the work that is left. Where costs have a second half, the forward
phase, it is the backward loads that are minimized, among stages whose forward load keeps a limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.placers.chains.ideals import Ideals
from placewise.placers.chains.replicas import shared_load
from placewise.placers.chains.stages import NEVER, StageCosts
from placewise.simulate.kernels import helper, kernel

SLACK = 1 + 1e-9
"""Floating point must not prune what is only just good enough."""


class Table(NamedTuple):
    """The states of every ideal. State s counts ``digits[s, k]`` devices of class k; one more is `stride[k]` on.

    Where stages follow the order of the devices, it counts those that are used or left out, the first s of them.
    `work_left` [n_ideals] and `work_room` [n_states] are in a common measure: at a max-load T, the devices
    that a state leaves do at most ``work_room · T`` of the work, and in `blocking` mode of the transfers across
    its edge, that an ideal leaves. `fore_left` and `fore_room` say the same of forward loads within a limit,
    `both_left` and `both_room` of all loads within a total.
    """

    digits: Ints  # [n_states, n_classes]
    stride: Longs  # [n_classes]
    work_left: Longs
    work_room: Floats
    value: Longs  # [n_ideals, n_states], NEVER where there is no way
    parent: Ints  # [n_ideals, n_states] the ideal before the last stage
    via: npt.NDArray[np.uint16]  # [n_ideals, n_states] the state before the last stage
    best: Longs  # [2] the value to beat, and the state of the full ideal that has it (−1: none yet)
    unfinished: Bools  # [n_states] what cannot be the state of the full ideal
    spare: Bools  # [n_classes] whether one device of a class less in use is never worse
    limit: Longs  # [3] most of a forward load; the next such limit that could find more; what both phases stay below
    fore_left: Longs
    fore_room: Floats
    both_left: Longs
    both_room: Floats


class Stage(NamedTuple):
    """Room to work in: the stage under growth; what can be restored from a stack is kept per depth."""

    inside: Ints  # [n] 1: in the ideal before the stage, 2: in the stage
    readers_in: Ints  # [n_tensors] consumers in the stage
    holders_in: Ints  # [n_storages]
    seconds: Longs  # [n + 1, n_classes]
    size: Longs  # [n + 1]
    weight: Longs  # [n + 1]
    enter: Longs  # [n + 1, n_rates]
    leave: Longs  # [n + 1, n_rates]
    enter_always: Longs  # [n + 1, n_rates] what no further component can save
    leave_always: Longs  # [n + 1, n_rates]
    node: Ints  # [n + 1] the ideal at each depth
    edge: Longs  # [n + 1] the next way to grow it
    picked: Ints  # [n + 1] the component that led to it
    seen: Ints  # [n_ideals] the last base from which an ideal was reached
    live: Ints  # [n_states] the states of the base worth growing from
    usable: Ints  # [n_classes] the most devices of a class that any of them leaves to a stage


def room(costs: StageCosts, n_ideals: int, n_states: int) -> Stage:
    """Empty working space for `grow`."""
    n, n_classes, n_rates = len(costs.size), len(costs.rate), costs.enter.shape[1]
    return Stage(
        inside=np.zeros(n, np.int32),
        readers_in=np.zeros(len(costs.producer), np.int32),
        holders_in=np.zeros(len(costs.storage_bytes), np.int32),
        seconds=np.zeros((n + 1, n_classes), np.int64),
        size=np.zeros(n + 1, np.int64),
        weight=np.zeros(n + 1, np.int64),
        enter=np.zeros((n + 1, n_rates), np.int64),
        leave=np.zeros((n + 1, n_rates), np.int64),
        enter_always=np.zeros((n + 1, n_rates), np.int64),
        leave_always=np.zeros((n + 1, n_rates), np.int64),
        node=np.zeros(n + 1, np.int32),
        edge=np.zeros(n + 1, np.int64),
        picked=np.zeros(n + 1, np.int32),
        seen=np.full(n_ideals, -1, np.int32),
        live=np.zeros(n_states, np.int32),
        usable=np.zeros(n_classes, np.int32),
    )


@helper
def _add(c, stage, part, depth):
    """Put `part` into the stage; row depth + 1 gets the new sums."""
    up = depth + 1
    for r in range(c.enter.shape[1]):
        stage.enter[up, r], stage.leave[up, r] = stage.enter[depth, r], stage.leave[depth, r]
        stage.enter_always[up, r] = stage.enter_always[depth, r]
        stage.leave_always[up, r] = stage.leave_always[depth, r]
    stage.inside[part] = 2
    for row in range(c.use_offsets[part], c.use_offsets[part + 1]):
        t = c.uses[row]
        stage.readers_in[t] += 1
        maker = 1 if c.producer[t] < 0 else stage.inside[c.producer[t]]
        for r in range(c.enter.shape[1]):
            if maker == 2:
                if stage.readers_in[t] == c.readers[t]:
                    stage.leave[up, r] -= c.leave[t, r]
            elif stage.readers_in[t] == 1:
                stage.enter[up, r] += c.enter[t, r]
                if maker == 1:
                    stage.enter_always[up, r] += c.enter[t, r]
    for row in range(c.make_offsets[part], c.make_offsets[part + 1]):
        t = c.makes[row]
        always = c.output[t]
        if c.mirrored[t]:
            for reader in range(c.consumer_offsets[t], c.consumer_offsets[t + 1]):
                always |= stage.inside[c.consumers[reader]] == 1
        for r in range(c.enter.shape[1]):
            if stage.readers_in[t] > 0:
                stage.enter[up, r] -= c.enter[t, r]
            if stage.readers_in[t] < c.readers[t]:
                stage.leave[up, r] += c.leave[t, r]
            if always:
                stage.leave_always[up, r] += c.leave[t, r]
    for row in range(c.storage_offsets[part], c.storage_offsets[part + 1]):
        s = c.storages[row]
        stage.holders_in[s] += 1
        if stage.holders_in[s] == 1:
            stage.size[up] += c.storage_bytes[s]
            stage.weight[up] += c.storage_bytes[s]


@helper
def _remove(c, stage, part):
    stage.inside[part] = 0
    for row in range(c.use_offsets[part], c.use_offsets[part + 1]):
        stage.readers_in[c.uses[row]] -= 1
    for row in range(c.storage_offsets[part], c.storage_offsets[part + 1]):
        stage.holders_in[c.storages[row]] -= 1


@helper
def _load(seconds, enter, leave, mode):
    if mode == 0:
        return seconds + enter + leave
    if mode == 1:
        return max(seconds, enter + leave)
    return max(seconds, max(enter, leave))


@helper
def _share(seconds, members):
    """What each of the members of a stage does of it; a division costs more than all the rest."""
    return seconds if members == 1 else seconds // members


@helper
def _member_load(seconds, enter, leave, sync, members, mode):
    """The load of each device of a stage, of one or of several that share it."""
    if members == 1:
        return _load(seconds, enter, leave, mode)
    return shared_load(seconds, enter, leave, sync, members, mode)


@helper
def _forward_loads(c, stage, depth, k, members):
    """The forward load of each member of the stage, and what no further component can take from it."""
    seconds, r = stage.seconds[depth, k], c.rate[k]
    if r < 0:
        return _share(seconds, members), _share(seconds, members)
    load = _member_load(seconds, stage.enter[depth, r], stage.leave[depth, r], 0, members, c.mode)
    return load, _member_load(seconds, stage.enter_always[depth, r], stage.leave_always[depth, r], 0, members, c.mode)


@helper
def _phases_fit(t, ideal, s):
    """Whether the devices that state s leaves can do what an ideal leaves, within the limits of both phases."""
    if t.both_left[ideal] > t.both_room[s] * SLACK * t.limit[2]:
        return False
    room = t.fore_room[s] * SLACK
    if t.fore_left[ideal] <= room * t.limit[0]:
        return True
    if room > 0 and t.fore_left[ideal] < room * t.limit[1]:
        t.limit[1] = max(t.limit[0] + 1, np.int64(t.fore_left[ideal] / room))
    return False


@kernel
def grow(c: StageCosts, ideals: Ideals, t: Table, stage: Stage, base: int, fuel: int) -> int:
    """Process ideals from number `base` on until about `fuel` stages were tried; returns the next number."""
    n_classes, full = len(t.stride), len(ideals.offsets) - 2
    two = len(c.rate) > n_classes
    while base < full and fuel > 0:
        n_live = _live_states(c, t, stage, base)
        if n_live == 0:
            base += 1
            continue
        most, roomiest = int(stage.usable.max()), _roomiest(t, stage, n_live)
        for part in range(len(c.size)):
            stage.inside[part] = (ideals.words[base, part >> 6] >> (part & 63)) & 1
        depth = np.int64(0)
        stage.node[0], stage.edge[0] = base, ideals.offsets[base]
        while depth >= 0:
            if stage.edge[depth] == ideals.offsets[stage.node[depth] + 1]:
                if depth > 0:
                    _remove(c, stage, stage.picked[depth])
                depth -= 1
                continue
            target, part = ideals.target[stage.edge[depth]], ideals.added[stage.edge[depth]]
            stage.edge[depth] += 1
            if stage.seen[target] == base:
                continue
            stage.seen[target] = base
            fuel -= 1 + most * n_live // 16
            possible = False
            stage.size[depth + 1] = stage.size[depth] + c.size[part]
            stage.weight[depth + 1] = stage.weight[depth] + c.weight[part]
            for k in range(len(c.rate)):
                stage.seconds[depth + 1, k] = min(stage.seconds[depth, k] + c.seconds[part, k], NEVER)
            for k in range(n_classes):
                seconds = stage.seconds[depth + 1, k]
                if seconds < NEVER and stage.usable[k] > 0 and stage.size[depth + 1] <= c.capacity[k]:
                    possible |= _share(seconds, stage.usable[k]) < t.best[0]
            if not possible:
                continue
            _add(c, stage, part, depth)
            depth += 1
            growing = False
            for k in range(n_classes):
                if stage.seconds[depth, k] >= NEVER or stage.size[depth] > c.capacity[k]:
                    continue
                seconds, r = stage.seconds[depth, k], c.rate[k]
                enter = leave = enter_always = leave_always = 0
                if r >= 0:
                    enter, leave = stage.enter[depth, r], stage.leave[depth, r]
                    enter_always, leave_always = stage.enter_always[depth, r], stage.leave_always[depth, r]
                least = _load(seconds, enter_always, leave_always, c.mode)
                first = 1 if least < t.best[0] else least // max(t.best[0], 1) + 1
                last = stage.usable[k]
                if last > 1 and not two:
                    last = _most_in_room(t, target, k, last, roomiest)
                    for members in range(stage.usable[k], first - 1, -1):
                        if growing:
                            break
                        sync = np.int64(stage.weight[depth] * c.pace[k, members])
                        growing = _member_load(seconds, enter_always, leave_always, sync, members, c.mode) < t.best[0]
                for members in range(first, last + 1):
                    sync = np.int64(0 if members == 1 else stage.weight[depth] * c.pace[k, members])
                    load = _member_load(seconds, enter, leave, sync, members, c.mode)
                    least = _member_load(seconds, enter_always, leave_always, sync, members, c.mode)
                    if two and least < t.best[0]:
                        fore, always = _forward_loads(c, stage, depth, k + n_classes, members)
                        if least + always >= t.limit[2]:
                            continue
                        growing |= always <= t.limit[0]
                        if load >= t.best[0] or fore > t.limit[0] or load + fore >= t.limit[2]:
                            if always > t.limit[0] or (load < t.best[0] and load + fore < t.limit[2]):
                                t.limit[1] = min(t.limit[1], always if always > t.limit[0] else fore)
                            continue
                    growing |= least < t.best[0]
                    for i in range(n_live if load < t.best[0] else 0):
                        s = stage.live[i]
                        if t.digits[s, k] + members > c.n_devices[k]:
                            continue
                        value, after = max(t.value[base, s], load), k + 1 if c.ordered else s + members * t.stride[k]
                        if value >= min(t.best[0], t.value[target, after]):
                            continue
                        if target == full and t.unfinished[after]:
                            continue
                        if two and not _phases_fit(t, target, after):
                            continue
                        if t.work_left[target] <= t.work_room[after] * t.best[0] * SLACK:
                            t.value[target, after], t.parent[target, after], t.via[target, after] = value, base, s
                            if target == full:
                                t.best[0], t.best[1] = value, after
            if growing:
                stage.node[depth], stage.edge[depth], stage.picked[depth] = target, ideals.offsets[target], part
            else:
                _remove(c, stage, part)
                depth -= 1
        base += 1
    return base


@helper
def _live_states(c, t, stage, base):
    """List the states of `base` worth growing from in `stage.live`; returns how many there are."""
    stage.usable[:] = 0
    n_live = 0
    for s in range(len(t.digits)):
        dominated = False
        for k in range(len(t.stride)):
            if t.spare[k] and t.digits[s, k] > 0 and t.value[base, s - t.stride[k]] <= t.value[base, s]:
                t.value[base, s] = t.value[base, s - t.stride[k]]
                dominated = True
        if dominated or t.value[base, s] >= t.best[0]:
            continue
        if t.work_left[base] <= t.work_room[s] * t.best[0] * SLACK:
            stage.live[n_live] = s
            n_live += 1
            for k in range(len(t.stride)):
                stage.usable[k] = max(stage.usable[k], min(c.n_devices[k] - t.digits[s, k], c.most[k]))
    return n_live


@helper
def _roomiest(t, stage, n_live):
    """The room of the live state with most of it."""
    room = 0.0
    for i in range(n_live):
        room = max(room, t.work_room[stage.live[i]])
    return room


@helper
def _most_in_room(t, target, k, usable, roomiest):
    """The most devices of class k that a stage up to an ideal may have, so that the others can do what is left."""
    price = t.work_room[0] - t.work_room[t.stride[k]]
    if price <= 0:
        return usable
    return min(usable, int((roomiest - t.work_left[target] / (max(t.best[0], 1) * SLACK)) / price + 1e-6))


@kernel
def work_left(ideals: Ideals, work: Longs) -> Longs:
    """The work [n_ideals] of the components outside each ideal."""
    left = np.zeros(len(ideals.offsets) - 1, np.int64)
    for part in range(len(work)):
        left[0] += work[part]
    for ideal in range(len(left)):
        for e in range(ideals.offsets[ideal], ideals.offsets[ideal + 1]):
            left[ideals.target[e]] = left[ideal] - work[ideals.added[e]]
    return left


@kernel
def cut_left(c: StageCosts, ideals: Ideals, enter: Longs, leave: Longs) -> Longs:
    """What the devices that run the rest pay at least for the tensors between each ideal and the rest [n_ideals].

    `enter` and `leave` [n_tensors] are what a tensor costs at least where it is needed and where it is made.
    """
    cut = np.full(len(ideals.offsets) - 1, -1, np.int64)
    cut[0] = 0
    for t in range(len(c.producer)):
        if c.producer[t] < 0:
            cut[0] += enter[t]
        elif c.output[t]:
            cut[0] += leave[t]
    for ideal in range(len(cut)):
        words = ideals.words[ideal]
        for e in range(ideals.offsets[ideal], ideals.offsets[ideal + 1]):
            part, target = ideals.added[e], ideals.target[e]
            if cut[target] >= 0:
                continue
            cut[target] = cut[ideal]
            for row in range(c.use_offsets[part], c.use_offsets[part + 1]):
                t = c.uses[row]
                inside, readers = _readers_in(c, words, t)
                if c.producer[t] < 0 or _holds(words, c.producer[t]):
                    cut[target] -= enter[t] if inside + 1 == readers else 0
                elif inside == 0 and not c.output[t]:
                    cut[target] += leave[t]
            for row in range(c.make_offsets[part], c.make_offsets[part + 1]):
                t = c.makes[row]
                inside, readers = _readers_in(c, words, t)
                cut[target] += enter[t] if inside < readers else 0
                cut[target] -= leave[t] if inside > 0 or c.output[t] else 0
    return cut


@helper
def _readers_in(c, words, t):
    """How many components that read a tensor are in a set, and how many there are."""
    inside = 0
    for row in range(c.consumer_offsets[t], c.consumer_offsets[t + 1]):
        inside += _holds(words, c.consumers[row])
    return inside, c.consumer_offsets[t + 1] - c.consumer_offsets[t]


@helper
def _holds(words, component):
    return (words[component >> 6] >> (component & 63)) & 1 == 1
