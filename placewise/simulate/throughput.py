"""Max-load of a pipeline in its steady state (Tarnawski et al. 2020; DESIGN of this judge in docs/judge.md).

A tensor crosses to a location at most once. Staged: the producing accelerator sends it to host memory once,
each accelerator that needs it receives it once. Direct: it is sent once per destination, at that link's
speed, and received there. Host devices pay for neither. The load of a device is compute + send + receive
(blocking), max(compute, send + receive) (overlap) or max(compute, send, receive) (duplex); a shared wire
carries the sum of its transfers. The value is the largest load.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.simulate.arrays import Arrays
from placewise.simulate.kernels import helper, kernel

MODES = {"blocking": 0, "overlap": 1, "duplex": 2}


class Loads(NamedTuple):
    """Seconds per sample: compute, send, receive [n_devices], and the traffic of each shared wire."""

    compute: Floats
    send: Floats
    receive: Floats
    wires: Floats


@helper
def _add_loads(a, device, compute, send, receive, wires, stamp):
    host = len(a.location)
    for op in range(len(device)):
        compute[device[op]] += a.op_seconds[op, device[op]]
    for tensor in range(len(a.producer)):
        maker = a.producer[tensor]
        source = host if maker < 0 else a.location[device[maker]]
        stamp[source] = tensor
        first, last = a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]
        sent = False
        for row in range(first, last + (1 if a.output[tensor] else 0)):
            target = host if row == last else a.location[device[a.consumers[row]]]
            if stamp[target] == tensor:
                continue
            stamp[target] = tensor
            if a.staged:
                if not sent and source != host:
                    seconds = a.transfer[tensor, a.link_class[source, host]]
                    send[source] += seconds
                    if a.wire[source, host] >= 0:
                        wires[a.wire[source, host]] += seconds
                sent = True
                if target != host:
                    seconds = a.transfer[tensor, a.link_class[host, target]]
                    receive[target] += seconds
                    if a.wire[host, target] >= 0:
                        wires[a.wire[host, target]] += seconds
            else:
                seconds = a.transfer[tensor, a.link_class[source, target]]
                send[source] += seconds
                receive[target] += seconds
                if a.wire[source, target] >= 0:
                    wires[a.wire[source, target]] += seconds


@helper
def _load(compute, send, receive, mode):
    if mode == 0:
        return compute + send + receive
    if mode == 1:
        return max(compute, send + receive)
    return max(compute, max(send, receive))


@kernel
def _max_loads(a, placements, mode, first, last, values):
    places = len(a.location)
    for k in range(first, last):
        compute, wires = np.zeros(places + 1), np.zeros(a.n_wires)
        send, receive = np.zeros(places + 1), np.zeros(places + 1)
        _add_loads(a, placements[k], compute, send, receive, wires, np.full(places + 1, -1))
        worst = 0.0
        for d in range(places):
            worst = max(worst, _load(compute[d], send[d], receive[d], mode))
        for w in range(a.n_wires):
            worst = max(worst, wires[w])
        values[k] = worst


@kernel
def _loads(a, placement, compute, send, receive, wires):
    _add_loads(a, placement, compute, send, receive, wires, np.full(len(a.location) + 1, -1))


def loads(a: Arrays, device: Ints) -> Loads:
    """The loads of one placement [n_ops], before they are combined by a communication mode."""
    places = len(a.location)
    result = Loads(np.zeros(places + 1), np.zeros(places + 1), np.zeros(places + 1), np.zeros(a.n_wires))
    _loads(a, device, *result)
    return Loads(result.compute[:places], result.send[:places], result.receive[:places], result.wires)


def combine(parts: Loads, mode: str) -> Floats:
    """The load of each device [n_devices] under a communication mode."""
    if mode == "blocking":
        return parts.compute + parts.send + parts.receive
    if mode == "overlap":
        return np.maximum(parts.compute, parts.send + parts.receive)
    return np.maximum(parts.compute, np.maximum(parts.send, parts.receive))


def max_loads(a: Arrays, placements: Ints, mode: str, first: int, last: int, values: Floats) -> None:
    """Max-load of placements [K, n_ops], rows first to last, into `values` [K]."""
    _max_loads(a, placements, MODES[mode], first, last, values)
