"""Loads and memory of a placement of blocks, kept up to date while blocks move: exact integers, O(degree) a move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Ints, Longs, frozen
from placewise.placers.chains.stages import NEVER, StageCosts
from placewise.simulate.kernels import helper, kernel


class Machines(NamedTuple):
    """Stage costs spread out over single machines m (device m is of class ``kind[m]``, −1 for free storage)."""

    seconds: Longs  # [n, n_machines], NEVER where not allowed
    enter: Longs  # [n_tensors, n_machines]
    leave: Longs  # [n_tensors, n_machines]
    capacity: Longs  # [n_machines]
    size: Longs  # [n] bytes of each block
    producer: Ints  # [n_tensors]
    readers: Ints  # [n_tensors] blocks, and one more if the host wants the tensor
    consumer_offsets: Longs  # [n_tensors + 1]
    consumers: Ints
    use_offsets: Longs  # [n + 1]
    uses: Ints
    make_offsets: Longs  # [n + 1]
    makes: Ints
    storage_offsets: Longs  # [n + 1]
    storages: Ints
    storage_bytes: Longs
    mode: int


class State(NamedTuple):
    """Where blocks are, how many readers a tensor has on each machine, and what that costs there."""

    home: Ints  # [n], −1 before a block is put anywhere
    readers: Ints  # [n_tensors, n_machines]
    compute: Longs  # [n_machines]
    send: Longs
    receive: Longs
    memory: Longs
    held: Ints  # [n_storages, n_machines]


def machines(costs: StageCosts, kinds: list[int]) -> Machines:
    """Machines of the given classes; class −1 runs anything at no cost and holds everything."""
    rows, tensors = len(costs.size), len(costs.producer)
    seconds, capacity = np.zeros((rows, len(kinds)), np.int64), np.full(len(kinds), NEVER)
    enter, leave = np.zeros((tensors, len(kinds)), np.int64), np.zeros((tensors, len(kinds)), np.int64)
    for m, kind in enumerate(kinds):
        if kind >= 0:
            seconds[:, m], capacity[m] = costs.seconds[:, kind], costs.capacity[kind]
            if costs.rate[kind] >= 0:
                enter[:, m], leave[:, m] = costs.enter[:, costs.rate[kind]], costs.leave[:, costs.rate[kind]]
    return Machines(
        frozen(seconds, np.int64), frozen(enter, np.int64), frozen(leave, np.int64), frozen(capacity, np.int64),
        costs.size, costs.producer, costs.readers, costs.consumer_offsets, costs.consumers, costs.use_offsets,
        costs.uses, costs.make_offsets, costs.makes, costs.storage_offsets, costs.storages, costs.storage_bytes,
        costs.mode,
    )  # fmt: skip


def state_of(m: Machines, home: Ints) -> State:
    """The state of a whole placement [n] of blocks on machines."""
    width = len(m.capacity)
    compute, send, receive, memory = (np.zeros(width, np.int64) for _ in range(4))
    readers, held = np.zeros((len(m.producer), width), np.int32), np.zeros((len(m.storage_bytes), width), np.int32)
    state = State(np.array(home, np.int32), readers, compute, send, receive, memory, held)
    _fill(m, state)
    return state


def loads_of(m: Machines, state: State) -> Longs:
    """The load of each machine."""
    if m.mode == 0:
        return state.compute + state.send + state.receive
    traffic = state.send + state.receive if m.mode == 1 else np.maximum(state.send, state.receive)
    return np.maximum(state.compute, traffic)


def fits(m: Machines, state: State) -> bool:
    """Whether memory is kept everywhere."""
    return bool((state.memory <= m.capacity).all())


@kernel
def _fill(m, s):
    for block in range(len(s.home)):
        here = s.home[block]
        s.compute[here] += m.seconds[block, here]
        s.memory[here] += m.size[block]
        for row in range(m.storage_offsets[block], m.storage_offsets[block + 1]):
            if s.held[m.storages[row], here] == 0:
                s.memory[here] += m.storage_bytes[m.storages[row]]
            s.held[m.storages[row], here] += 1
        for row in range(m.use_offsets[block], m.use_offsets[block + 1]):
            s.readers[m.uses[row], here] += 1
    for tensor in range(len(m.producer)):
        maker = m.producer[tensor]
        source = s.home[maker] if maker >= 0 else -1
        for here in range(len(m.capacity)):
            if s.readers[tensor, here] > 0 and here != source:
                s.receive[here] += m.enter[tensor, here]
        if source >= 0 and m.readers[tensor] > s.readers[tensor, source]:
            s.send[source] += m.leave[tensor, source]


@helper
def shift(m, s, block, there):
    """Move a block; whether it may run there is the caller's business. Moving it back restores everything."""
    here = s.home[block]
    s.home[block] = there
    s.compute[here] -= m.seconds[block, here]
    s.compute[there] += m.seconds[block, there]
    s.memory[here] -= m.size[block]
    s.memory[there] += m.size[block]
    for row in range(m.storage_offsets[block], m.storage_offsets[block + 1]):
        storage = m.storages[row]
        s.held[storage, here] -= 1
        if s.held[storage, here] == 0:
            s.memory[here] -= m.storage_bytes[storage]
        if s.held[storage, there] == 0:
            s.memory[there] += m.storage_bytes[storage]
        s.held[storage, there] += 1
    for row in range(m.use_offsets[block], m.use_offsets[block + 1]):
        _move_reader(m, s, m.uses[row], here, there)
    for row in range(m.make_offsets[block], m.make_offsets[block + 1]):
        _move_maker(m, s, m.makes[row], here, there)


@helper
def _move_reader(m, s, tensor, here, there):
    maker = m.producer[tensor]
    source = s.home[maker] if maker >= 0 else -1
    if here == source and m.readers[tensor] == s.readers[tensor, here]:
        s.send[here] += m.leave[tensor, here]
    s.readers[tensor, here] -= 1
    if s.readers[tensor, here] == 0 and here != source:
        s.receive[here] -= m.enter[tensor, here]
    if s.readers[tensor, there] == 0 and there != source:
        s.receive[there] += m.enter[tensor, there]
    s.readers[tensor, there] += 1
    if there == source and m.readers[tensor] == s.readers[tensor, there]:
        s.send[there] -= m.leave[tensor, there]


@helper
def _move_maker(m, s, tensor, here, there):
    if m.readers[tensor] > s.readers[tensor, here]:
        s.send[here] -= m.leave[tensor, here]
    if s.readers[tensor, here] > 0:
        s.receive[here] += m.enter[tensor, here]
    if s.readers[tensor, there] > 0:
        s.receive[there] -= m.enter[tensor, there]
    if m.readers[tensor] > s.readers[tensor, there]:
        s.send[there] += m.leave[tensor, there]


@helper
def load(m, s, machine):
    """The load of one machine, as the communication mode combines it."""
    compute, send, receive = s.compute[machine], s.send[machine], s.receive[machine]
    if m.mode == 0:
        return compute + send + receive
    if m.mode == 1:
        return max(compute, send + receive)
    return max(compute, max(send, receive))


@helper
def missing(m, s):
    """Bytes that are missing on all machines together."""
    short = np.int64(0)
    for machine in range(len(m.capacity)):
        short += max(s.memory[machine] - m.capacity[machine], 0)
    return short
