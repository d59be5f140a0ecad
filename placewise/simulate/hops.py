"""The log of hops: what the kernels of latency write down when somebody wants to see a timeline."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats
from placewise.model.result import Timeline
from placewise.simulate.arrays import Arrays
from placewise.simulate.kernels import helper

NO_LOG = np.empty((0, 5))


def new_log(a: Arrays) -> Floats:
    """Room for every hop of one placement; row 0 counts the rows in use."""
    return np.zeros((2 * (len(a.consumers) + len(a.producer)) + 1, 5))


@helper
def note(log, tensor, source, target, sent, arrived):
    """Write a hop into `log`, unless it has no rows at all."""
    if log.shape[0] > 0:
        row = int(log[0, 0]) + 1
        log[0, 0] = row
        log[row, 0], log[row, 1], log[row, 2] = tensor, source, target
        log[row, 3], log[row, 4] = sent, arrived


def logged_timeline(start: Floats, finish: Floats, log: Floats) -> Timeline:
    """A Timeline from op times and a log."""
    rows = log[1 : int(log[0, 0]) + 1]
    tensor, source, target = rows[:, :3].T.astype(np.int32)
    return Timeline(start, finish, tensor, source, target, rows[:, 3].copy(), rows[:, 4].copy())
