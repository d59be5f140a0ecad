"""The cheapest way to cut a path of ops into host ops and segments: a shortest path over its positions.

Position j stands before op j of the path. A segment is what one call has of the path. Where two segments meet, at
position k, an op `u` beside the path may cross from the left to the right of k: it is in the left call, or in the
right one, or in neither. If it is in neither, and begins behind the left call and ends before the right one, then
the right call waits for it, and the time of u at its best comes on top. Every placement is one of these cases, so that
the least over them is a bound; `seconds` says what a segment costs with u required, refused, or left open.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Floats, Ints
from placewise.simulate.kernels import helper, kernel

OPEN, REQUIRED, REFUSED = 0, 1, 2
"""What a segment is told about the op that crosses one of its ends."""

_MET, _LEFT, _RIGHT, _NEITHER, _HOST, _RUN = range(6)
"""How a position is reached: by a segment, with the crossing op open, left, right or in neither; by a host op; or,
inside a group, on the accelerator of the segment before."""

_TOLD = (OPEN, REFUSED, REQUIRED, REFUSED, OPEN, OPEN)
"""What a segment is told about its beginning, by how that is reached."""


class Crossings(NamedTuple):
    """For every position [m + 1] the op that crosses it, −1 for none, and where and how long it is."""

    op: Ints
    after: Ints  # the last position of the path that leads to it
    before: Ints  # the first one that it leads to
    delay: Floats  # seconds at its best, in neither call


class Step(NamedTuple):
    """A segment path[first:last], and what it was told about the ops that cross its two ends."""

    first: int
    last: int
    left: int
    right: int


def no_crossings(m: int) -> Crossings:
    """Nothing crosses anywhere."""
    none = np.full(m + 1, -1, np.int32)
    return Crossings(none, none, none, np.zeros(m + 1))


@helper
def _reach(met, came, k, state, value, j, source, i, right):
    if value < met[k, state]:
        met[k, state] = value
        came[k, state, 0], came[k, state, 1], came[k, state, 2], came[k, state, 3] = j, source, i, right


@helper
def _extend(seconds, fits, shares, tied, crossing, j, source, i, reached, met, run, came, came_run):
    """All segments that begin at j, on the accelerator that was entered at i."""
    m, left = len(tied) - 1, _TOLD[source]
    for k in range(j + 1, m + 1):
        if not fits[j, k] or not shares[i, k]:
            break
        begun = reached + (crossing.delay[j] if source == _NEITHER and crossing.before[j] < k else 0.0)
        open_ = begun + seconds[left, OPEN, j, k]
        if tied[k]:
            if open_ < run[i, k]:
                run[i, k], came_run[i, k, 0], came_run[i, k, 1] = open_, j, source
            continue
        _reach(met, came, k, _MET, open_, j, source, i, OPEN)
        if crossing.op[k] >= 0:
            refused = begun + seconds[left, REFUSED, j, k]
            _reach(met, came, k, _LEFT, begun + seconds[left, REQUIRED, j, k], j, source, i, REQUIRED)
            _reach(met, came, k, _RIGHT, refused, j, source, i, REFUSED)
            _reach(met, came, k, _NEITHER if crossing.after[k] >= j else _LEFT, refused, j, source, i, REFUSED)


@kernel
def _shortest(seconds, host, fits, shares, tied, crossing, hosted, met, run, came, came_run, came_host):
    """Fill in what leads where; the least seconds from the path's beginning to its end.

    `hosted` [m + 1] are the seconds to each position behind a host op, `met` [m + 1, 4] those behind a segment,
    `run` [m + 1, m + 1] those to a position inside a group on the accelerator that was entered at position i. A run
    that began earlier than another, and is no quicker, has less room left and is of no use.
    """
    m = len(host)
    hosted[:], met[:], run[:] = np.inf, np.inf, np.inf
    hosted[0] = 0.0
    for j in range(m):
        came_host[j + 1] = _MET if not tied[j] and met[j, _MET] < hosted[j] else _HOST
        hosted[j + 1] = (met[j, _MET] if came_host[j + 1] == _MET else hosted[j]) + host[j]
        if tied[j]:
            least = np.inf
            for i in range(j - 1, -1, -1):
                if run[i, j] < least:
                    least = run[i, j]
                    _extend(seconds, fits, shares, tied, crossing, j, _RUN, i, least, met, run, came, came_run)
            continue
        if hosted[j] < np.inf:
            _extend(seconds, fits, shares, tied, crossing, j, _HOST, j, hosted[j], met, run, came, came_run)
        first, last = (_LEFT, _NEITHER) if crossing.op[j] >= 0 else (_MET, _MET)
        for source in range(first, last + 1):
            if met[j, source] < np.inf:
                _extend(seconds, fits, shares, tied, crossing, j, source, j, met[j, source], met, run, came, came_run)
    return min(hosted[m], met[m, _MET])


class Ways:
    """The room for the shortest path, and how to read its answer. Arrays over the positions [m + 1] of the path.

    `host` [m] are seconds on the host; `fits[i, j]` whether a call on path[i:j] fits on an accelerator, and
    `shares[i, j]` whether path[i:j] does in several calls; `tied` where a group goes on, so that what meets there
    shares an accelerator.
    """

    def __init__(self, host: Floats, fits: Bools, shares: Bools, tied: Bools, crossings: Crossings) -> None:
        m = len(host)
        self.tied, self.crossings = tied, crossings
        self._fixed = host, fits, shares, tied, crossings
        self._hosted, self._met, self._run = np.empty(m + 1), np.empty((m + 1, 4)), np.empty((m + 1, m + 1))
        self._came, self._came_run = np.zeros((m + 1, 4, 4), np.int32), np.zeros((m + 1, m + 1, 2), np.int32)
        self._came_host = np.zeros(m + 1, np.int32)

    def shortest(self, seconds: Floats) -> tuple[float, list[Step]]:
        """The least seconds, and the segments that reach it, the last one first.

        `seconds` [3, 3, m + 1, m + 1]: what path[i:j] costs with what it is told at its left and right end; [1, 1,
        m + 1, m + 1] where nothing crosses.
        """
        m = len(self._hosted) - 1
        rooms = self._hosted, self._met, self._run, self._came, self._came_run, self._came_host
        value = float(_shortest(seconds, *self._fixed, *rooms))
        steps = list[Step]()
        if not np.isfinite(value):
            return value, steps
        k, state, i = m, _MET if self._met[m, _MET] < self._hosted[m] else _HOST, 0
        while k > 0:
            if state == _HOST:
                k, state = k - 1, int(self._came_host[k])
                continue
            right = OPEN
            if state == _RUN:
                j, source = self._came_run[i, k].tolist()
            else:
                j, source, i, right = self._came[k, state].tolist()
            steps.append(Step(j, k, _TOLD[source], right))
            k, state = j, source
        return value, steps
