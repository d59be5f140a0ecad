"""Loads and memory of a placement of groups, kept up to date while groups move: whole numbers, O(degree) a move.

All sums of a placement stand in one row, so that a move can be tried on a copy: of each phase the compute, send and
receive of every location, then its wires; at the end the memory of every device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Ints, Longs
from placewise.placers.search.costs import Costs
from placewise.simulate.kernels import inlined
from placewise.simulate.kernels import lean_kernel as kernel


class State(NamedTuple):
    """Where groups are, how many readers a tensor has at each location, and what that costs.

    `trial` is a second row of sums: what they would be after the move that is looked at.
    """

    home: Ints  # [n]
    readers: Ints  # [n_tensors, n_devices + 1]
    held: Ints  # [n_storages, n_devices] groups that use a storage
    filled: Longs  # [n_devices] how many groups are there
    sums: Longs  # [width]
    trial: Longs  # [width]


def state_of(c: Costs, home: Ints) -> State:
    """The state of a whole placement [n] of groups on devices."""
    devices = len(c.capacity)
    sums = np.zeros(c.n_phases * (3 * (devices + 1) + c.n_wires) + devices, np.int64)
    state = State(
        np.array(home, np.int32),
        np.zeros((len(c.producer), devices + 1), np.int32),
        np.zeros((len(c.storage_bytes), devices), np.int32),
        np.zeros(devices, np.int64),
        sums,
        np.zeros_like(sums),
    )
    _fill(c, state)
    return state


def loads_of(c: Costs, state: State) -> list[Longs]:
    """Of each phase, the load of every device and then of every wire."""
    found = []
    for phase in range(c.n_phases):
        loads = np.zeros(len(c.capacity) + c.n_wires, np.int64)
        _loads(c, state.sums, phase, loads)
        found.append(loads)
    return found


def value_of(c: Costs, state: State) -> int:
    """The max-load, of all phases together, in the costs' units."""
    return sum(int(loads.max(initial=0)) for loads in loads_of(c, state))


def memory_of(c: Costs, state: State) -> Longs:
    """Resident bytes [n_devices]."""
    return state.sums[len(state.sums) - len(c.capacity) :]


def short_of(c: Costs, state: State) -> int:
    """Bytes that are missing on all devices together."""
    return int(np.maximum(memory_of(c, state) - c.capacity, 0).sum())


@kernel
def _loads(c, sums, phase, loads):
    for d in range(len(c.capacity)):
        loads[d] = load(c, sums, phase, d)
    for wire in range(c.n_wires):
        loads[len(c.capacity) + wire] = sums[wires(c, phase) + wire]


@kernel
def _fill(c, s):
    for group in range(len(s.home)):
        here = s.home[group]
        place = c.location[here]
        _work(c, s.sums, group, here, 1)
        s.sums[len(s.sums) - len(c.capacity) + here] += c.size[group]
        s.filled[here] += 1
        for row in range(c.storage_offsets[group], c.storage_offsets[group + 1]):
            storage = c.storages[row]
            if s.held[storage, here] == 0:
                s.sums[len(s.sums) - len(c.capacity) + here] += c.storage_bytes[storage]
            s.held[storage, here] += 1
        for row in range(c.use_offsets[group], c.use_offsets[group + 1]):
            s.readers[c.uses[row], place] += 1
    host = len(c.capacity)
    for tensor in range(len(c.producer)):
        if c.output[tensor]:
            s.readers[tensor, host] += 1
        maker = c.producer[tensor]
        source = c.location[s.home[maker]] if maker >= 0 else host
        if c.staged and c.readers[tensor] > s.readers[tensor, source]:
            _hop(c, s.sums, tensor, source, host, 1)
        for place in range(host + 1):
            if s.readers[tensor, place] > 0 and place != source:
                _hop(c, s.sums, tensor, host if c.staged else source, place, 1)
    renew(s.sums, s.trial)


@inlined
def renew(source, target):
    """Copy a row of sums."""
    for i in range(len(source)):
        target[i] = source[i]


@inlined
def _stride(c):
    return 3 * (len(c.capacity) + 1) + c.n_wires


@inlined
def wires(c, phase):
    """Where the wires of a phase begin."""
    return phase * _stride(c) + 3 * (len(c.capacity) + 1)


@inlined
def load(c, sums, phase, device):
    """The load of one device, as the communication mode combines it."""
    places = len(c.capacity) + 1
    first = phase * _stride(c) + device
    compute, send, receive = sums[first], sums[first + places], sums[first + 2 * places]
    if c.mode == 0:
        return compute + send + receive
    if c.mode == 1:
        return max(compute, send + receive)
    return max(compute, max(send, receive))


@inlined
def missing(c, sums):
    """Bytes that are missing on all devices together."""
    short, first = np.int64(0), len(sums) - len(c.capacity)
    for device in range(len(c.capacity)):
        short += max(sums[first + device] - c.capacity[device], 0)
    return short


@inlined
def _work(c, sums, group, device, sign):
    kinds = c.seconds.shape[1] // c.n_phases
    for phase in range(c.n_phases):
        sums[phase * _stride(c) + device] += sign * c.seconds[group, phase * kinds + c.kind[device]]


@inlined
def _hop(c, sums, tensor, source, target, sign):
    """Charge a transfer to both ends and its wire, or take the charge back. Inside a location it is free."""
    seconds = sign * c.transfer[tensor, c.link_class[source, target]]
    places, first = len(c.capacity) + 1, c.phase[tensor] * _stride(c)
    sums[first + places + source] += seconds
    sums[first + 2 * places + target] += seconds
    if c.n_wires > 0 and c.wire[source, target] >= 0:
        sums[first + 3 * places + c.wire[source, target]] += seconds


@inlined
def charge(c, s, group, there):
    """What the sums in `trial` become when a group moves elsewhere; counts stay as they are: see `settle`."""
    here, sums = s.home[group], s.trial
    _work(c, sums, group, here, -1)
    _work(c, sums, group, there, 1)
    memory = len(sums) - len(c.capacity)
    sums[memory + here] -= c.size[group]
    sums[memory + there] += c.size[group]
    for row in range(c.storage_offsets[group], c.storage_offsets[group + 1]):
        storage = c.storages[row]
        if s.held[storage, here] == 1:
            sums[memory + here] -= c.storage_bytes[storage]
        if s.held[storage, there] == 0:
            sums[memory + there] += c.storage_bytes[storage]
    old, new = c.location[here], c.location[there]
    if old == new:
        return
    host = len(c.capacity)
    for row in range(c.use_offsets[group], c.use_offsets[group + 1]):
        tensor = c.uses[row]
        maker = c.producer[tensor]
        source = c.location[s.home[maker]] if maker >= 0 else host
        _move_reader(c, s, sums, tensor, source, old, new)
    for row in range(c.make_offsets[group], c.make_offsets[group + 1]):
        _move_maker(c, s, sums, c.makes[row], old, new)


@inlined
def _move_reader(c, s, sums, tensor, source, old, new):
    if c.staged:
        away = c.readers[tensor] - s.readers[tensor, source]
        if old == source and away == 0:
            _hop(c, sums, tensor, source, len(c.capacity), 1)
        elif new == source and away == 1:
            _hop(c, sums, tensor, source, len(c.capacity), -1)
    origin = len(c.capacity) if c.staged else source
    if old != source and s.readers[tensor, old] == 1:
        _hop(c, sums, tensor, origin, old, -1)
    if new != source and s.readers[tensor, new] == 0:
        _hop(c, sums, tensor, origin, new, 1)


@inlined
def _move_maker(c, s, sums, tensor, old, new):
    if not c.staged:
        for place in range(len(c.capacity) + 1):
            if s.readers[tensor, place] > 0:
                if place != old:
                    _hop(c, sums, tensor, old, place, -1)
                if place != new:
                    _hop(c, sums, tensor, new, place, 1)
        return
    host, total = len(c.capacity), c.readers[tensor]
    if total > s.readers[tensor, old]:
        _hop(c, sums, tensor, old, host, -1)
    if total > s.readers[tensor, new]:
        _hop(c, sums, tensor, new, host, 1)
    if s.readers[tensor, old] > 0:
        _hop(c, sums, tensor, host, old, 1)
    if s.readers[tensor, new] > 0:
        _hop(c, sums, tensor, host, new, -1)


@inlined
def settle(c, s, group, there):
    """Move a group in everything but the sums; moving it back restores it."""
    here = s.home[group]
    s.home[group] = there
    s.filled[here] -= 1
    s.filled[there] += 1
    for row in range(c.storage_offsets[group], c.storage_offsets[group + 1]):
        s.held[c.storages[row], here] -= 1
        s.held[c.storages[row], there] += 1
    old, new = c.location[here], c.location[there]
    if old != new:
        for row in range(c.use_offsets[group], c.use_offsets[group + 1]):
            s.readers[c.uses[row], old] -= 1
            s.readers[c.uses[row], new] += 1


@inlined
def shift(c, s, group, there):
    """Move a group in everything, sums in `trial`; whether it may run there is the caller's business."""
    charge(c, s, group, there)
    settle(c, s, group, there)
