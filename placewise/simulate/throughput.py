"""Max-load of a pipeline in its steady state (Tarnawski et al. 2020); docs/judge.md works it by hand.

A tensor crosses to a location at most once. Staged: the producing accelerator sends it to host memory once,
each accelerator that needs it receives it once. Direct: it is sent once per destination, at that link's
speed, and received there. Host devices pay for neither. The load of a device is compute + send + receive
(blocking), max(compute, send + receive) (overlap) or max(compute, send, receive) (duplex); a shared wire
carries the sum of its transfers. The value is the largest load. Stages on several devices: see `replicas`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.simulate.arrays import Arrays
from placewise.simulate.heaps import first_bit
from placewise.simulate.kernels import helper, kernel

MODES = {"blocking": 0, "overlap": 1, "duplex": 2}


class Loads(NamedTuple):
    """Seconds per sample: compute, send, receive [n_devices], traffic of each shared wire, synchronization."""

    compute: Floats
    send: Floats
    receive: Floats
    wires: Floats
    sync: Floats  # [n_devices] what replicas spend on keeping their weights the same


@helper
def _add_compute(a, device, compute):
    """Four sums per device, so that one addition need not wait for the one before."""
    sums = np.zeros((4, len(a.location)))
    for op in range(len(device)):
        sums[op & 3, device[op]] += a.op_seconds[op, device[op]]
    for d in range(len(a.location)):
        compute[d] = sums[0, d] + sums[1, d] + sums[2, d] + sums[3, d]


@helper
def _find_targets(a, place, window, targets):
    """Which of the locations ``64 · window …`` need each tensor, as bits, into `targets` [n_tensors]."""
    targets[:] = 0
    seen, previous = np.uint64(0), -1
    for row in range(len(a.consumers)):
        tensor, there = a.consumed[row], place[a.consumers[row]]
        bit = np.uint64((there >> 6) == window) << np.uint64(there & 63)
        seen = bit | (seen if tensor == previous else np.uint64(0))
        targets[tensor] = seen
        previous = tensor


@helper
def _charge(seconds, wire, source, target, send, receive, wires):
    send[source] += seconds
    receive[target] += seconds
    if wire >= 0:
        wires[wire] += seconds


@helper
def _add_transfers(a, place, window, targets, sent, send, receive, wires):
    """Charge the tensors that go to the locations of `targets`; `sent` remembers those that went to the host."""
    host, one = len(a.location), np.uint64(1)
    for tensor in range(len(a.producer)):
        maker = a.producer[tensor]
        source = host if maker < 0 else place[maker]
        left = targets[tensor]
        if a.output[tensor] and host >> 6 == window:
            left |= one << np.uint64(host & 63)
        if source >> 6 == window:
            left &= ~(one << np.uint64(source & 63))
        if left == 0:
            continue
        origin = source
        if a.staged:
            if source != host and not sent[tensor]:
                seconds = a.transfer[tensor, a.link_class[source, host]]
                _charge(seconds, a.wire[source, host], source, host, send, receive, wires)
                sent[tensor] = True
            if host >> 6 == window:
                left &= ~(one << np.uint64(host & 63))
            origin = host
        while left != 0:
            target = (window << 6) + first_bit(left)
            left &= left - one
            seconds = a.transfer[tensor, a.link_class[origin, target]]
            _charge(seconds, a.wire[origin, target], origin, target, send, receive, wires)


@helper
def _add_loads(a, device, compute, send, receive, wires, place, targets, sent):
    for op in range(len(device)):
        place[op] = a.location[device[op]]
    _add_compute(a, device, compute)
    sent[:] = False
    for window in range((len(a.location) >> 6) + 1):
        _find_targets(a, place, window, targets)
        _add_transfers(a, place, window, targets, sent, send, receive, wires)


@helper
def _load(compute, send, receive, mode):
    if mode == 0:
        return compute + send + receive
    if mode == 1:
        return max(compute, send + receive)
    return max(compute, max(send, receive))


@kernel
def _max_loads(a, placements, mode, first, last, values):
    places, n_tensors = len(a.location), len(a.producer)
    place, targets = np.empty(placements.shape[1], np.int32), np.empty(n_tensors, np.uint64)
    sent = np.empty(n_tensors, np.bool_)
    for k in range(first, last):
        compute, wires = np.zeros(places + 1), np.zeros(a.n_wires)
        send, receive = np.zeros(places + 1), np.zeros(places + 1)
        _add_loads(a, placements[k], compute, send, receive, wires, place, targets, sent)
        worst = 0.0
        for d in range(places):
            worst = max(worst, _load(compute[d], send[d], receive[d], mode))
        for w in range(a.n_wires):
            worst = max(worst, wires[w])
        values[k] = worst


@kernel
def _loads(a, placement, compute, send, receive, wires):
    place, targets = np.empty(len(placement), np.int32), np.empty(len(a.producer), np.uint64)
    _add_loads(a, placement, compute, send, receive, wires, place, targets, np.empty(len(a.producer), np.bool_))


def loads(a: Arrays, device: Ints) -> Loads:
    """The loads of one placement [n_ops], before they are combined by a communication mode."""
    places = len(a.location)
    compute, send, receive, wires = (*np.zeros((3, places + 1)), np.zeros(a.n_wires))
    _loads(a, device, compute, send, receive, wires)
    return Loads(compute[:places], send[:places], receive[:places], wires, np.zeros(places))


def combine(parts: Loads, mode: str) -> Floats:
    """The load of each device [n_devices] under a communication mode."""
    if mode == "blocking":
        return parts.compute + parts.send + parts.receive + parts.sync
    if mode == "overlap":
        return np.maximum(parts.compute, parts.send + parts.receive + parts.sync)
    return np.maximum(parts.compute, np.maximum(parts.send, parts.receive) + parts.sync)


def max_loads(a: Arrays, placements: Ints, mode: str, first: int, last: int, values: Floats) -> None:
    """Max-load of placements [K, n_ops], rows first to last, into `values` [K]."""
    _max_loads(a, placements, MODES[mode], first, last, values)
