"""Cuts of a line of components into stages: even ones, all of them, and small changes."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from placewise.model.columns import Floats, Longs
from placewise.simulate.contiguity import Contraction

Cuts = tuple[int, ...]
"""The first component of every stage but the first, ascending; and in between at least one."""
HALVINGS = 50


def cut_evenly(seconds: Floats, devices: Sequence[int]) -> Cuts | None:
    """The cut of a line into a stage per entry of `devices` with the least largest load.

    `seconds` [n_devices, n_components] of each component in the order of the line, inf where it may not run. None if
    there is no such cut.
    """
    n, stages = seconds.shape[1], len(devices)
    if n < stages:
        return None
    used = sorted(set(devices))
    finite = np.where(np.isfinite(seconds), seconds, 0.0)
    filled = {d: [0.0, *np.cumsum(finite[d]).tolist()] for d in used}
    banned = {d: [*np.flatnonzero(~np.isfinite(seconds[d])).tolist(), n] for d in used}

    def cut(most: float) -> Cuts | None:
        start, found = 0, []
        for s, d in enumerate(devices):
            end = bisect_right(filled[d], filled[d][start] + most) - 1
            end = min(end, banned[d][bisect_left(banned[d], start)], n - (stages - 1 - s))
            if end <= start:
                return None
            found.append(end)
            start = end
        return tuple(found[:-1]) if start == n else None

    low, high = 0.0, max(filled[d][-1] for d in used)
    best = cut(high * (1 + 1e-9))
    if best is None:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = cut(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def move_cuts(cuts: Cuts, n: int, by: int) -> Iterator[Cuts]:
    """The cuts with one of them, or all from one on, moved by so many components either way."""
    for k in range(len(cuts)):
        for step in (-by, by):
            for last in {k + 1, len(cuts)}:
                moved = (*cuts[:k], *(c + step for c in cuts[k:last]), *cuts[last:])
                ends = (0, *moved, n)
                if all(a < b for a, b in pairwise(ends)):
                    yield moved


def stages_of(cuts: Cuts, n: int) -> Longs:
    """The stage [n] of each component of a line."""
    return np.searchsorted(np.array(cuts, np.int64), np.arange(n), side="right")


def list_chains(graph: Contraction, stages: int, most: int) -> list[Longs] | None:
    """Every way to cut the components into a chain of non-empty stages, as stages [n]; None for more than `most`."""
    if math.comb(graph.n - 1, stages - 1) > most:  # cuts of one order
        return None
    if stages == 1:
        return [np.zeros(graph.n, np.int64)]
    chains = np.zeros((1, graph.n), np.int16)
    for c, (first, last) in enumerate(pairwise(graph.predecessor_offsets.tolist())):
        least = chains[:, graph.predecessors[first:last]].max(axis=1, initial=0)
        counts = stages - least.astype(np.int64)
        if counts.sum() > most:
            return None
        chains = np.repeat(chains, counts, axis=0)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        chains[:, c] = np.arange(len(chains)) - starts + np.repeat(least, counts)
    distinct = np.sort(chains, axis=1)
    complete = 1 + np.count_nonzero(np.diff(distinct, axis=1), axis=1) == stages
    return [chain.astype(np.int64) for chain in chains[complete]]
