"""Max-load of a pipeline in its steady state (Tarnawski et al. 2020); docs/judge.md has a worked example.

A tensor crosses to a location at most once. Staged: the producing accelerator sends it to host memory once,
each accelerator that needs it receives it once. Direct: it is sent once per destination, at that link's
speed, and received there. Host devices pay for neither. The load of a device is compute + send + receive
(blocking), max(compute, send + receive) (overlap) or max(compute, send, receive) (duplex); a shared wire
carries the sum of its transfers. The value is the largest load. Stages on several devices: see `replicas`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints

MODES = {"blocking": 0, "overlap": 1, "duplex": 2}


class Loads(NamedTuple):
    """Seconds per sample: compute, send, receive [n_devices], traffic of each shared wire, synchronization."""

    compute: Floats
    send: Floats
    receive: Floats
    wires: Floats
    sync: Floats  # [n_devices] synchronization of the weights of replicas


def loads(problem: _native.Problem, device: Ints) -> Loads:
    """The loads of one placement [n_ops], before they are combined by a communication mode."""
    places = problem.n_devices
    compute, send, receive, wires = _native.pipeline_loads(problem, device)
    return Loads(compute[:places], send[:places], receive[:places], wires, np.zeros(places))


def combine(parts: Loads, mode: str) -> Floats:
    """The load of each device [n_devices] under a communication mode."""
    if mode == "blocking":
        return parts.compute + parts.send + parts.receive + parts.sync
    if mode == "overlap":
        return np.maximum(parts.compute, parts.send + parts.receive + parts.sync)
    return np.maximum(parts.compute, np.maximum(parts.send, parts.receive) + parts.sync)


def max_loads(problem: _native.Problem, placements: Ints, mode: str, first: int, last: int, values: Floats) -> None:
    """Write the max-loads of placements [K, n_ops], rows first to last, into `values` [K]."""
    _native.max_loads(problem, placements, MODES[mode], first, last, values)
