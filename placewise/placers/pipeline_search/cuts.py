"""Cuts of a line of components into stages: even ones, all of them, and small changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from placewise.model.columns import Floats, Longs
from placewise.simulate.contiguity import Contraction

Cuts = tuple[int, ...]
"""The first component of every stage but the first, ascending; and in between at least one."""
HALVINGS = 50


def cut_evenly(seconds: Floats, devices: Sequence[int]) -> tuple[Cuts, float] | None:
    """The cut of a line into a stage per entry of `devices` with the least largest load, and that load.

    `seconds` [n_devices, n_components] of each component in the order of the line, inf where it may not run. None if
    there is no such cut.
    """
    n, stages = seconds.shape[1], len(devices)
    if n < stages:
        return None
    finite = np.where(np.isfinite(seconds), seconds, 0.0)
    filled = np.concatenate((np.zeros((len(seconds), 1)), np.cumsum(finite, axis=1)), axis=1)
    banned = [np.append(np.flatnonzero(~np.isfinite(row)), n) for row in seconds]

    def cut(most: float) -> Cuts | None:
        start, found = 0, []
        for s, d in enumerate(devices):
            end = int(np.searchsorted(filled[d], filled[d][start] + most, side="right")) - 1
            end = min(end, int(banned[d][np.searchsorted(banned[d], start)]), n - (stages - 1 - s))
            if end <= start:
                return None
            found.append(end)
            start = end
        return tuple(found[:-1]) if start == n else None

    low, high = 0.0, float(filled[:, -1].max())
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
    return best, high


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
    stage: Longs = np.searchsorted(np.array(cuts, np.int64), np.arange(n), side="right")
    return stage


def list_chains(graph: Contraction, stages: int, most: int) -> list[Longs] | None:
    """Every way to cut the components into a chain of non-empty stages, as stages [n]; None for more than `most`."""
    spans = pairwise(graph.predecessor_offsets.tolist())
    heads = [graph.predecessors[first:last].tolist() for first, last in spans]
    partial: list[list[int]] = [[]]
    for before in heads:
        partial = [[*chain, s] for chain in partial for s in range(max((chain[c] for c in before), default=0), stages)]
        if len(partial) > most:
            return None
    return [np.array(chain, np.int64) for chain in partial if len(set(chain)) == stages]
