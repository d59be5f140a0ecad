"""The Pareto front of plans: latency, throughput, memory and price."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise.analysis.sweep.goals import figure_of
from placewise.files.sweep_file import PointRecord
from placewise.model.columns import Bools, Floats

FIGURES = {"latency": 1, "throughput": -1, "memory": 1, "price": 1}
"""1: less is better, −1: more is better."""
CHOICES = ("batch", "batch_size", "sequences")
"""Sizes that a server chooses; plans for other sizes answer other questions and are not compared."""


def pareto_front(costs: Floats) -> Bools:
    """Which rows of `costs` [n, k] are on the front: no other is nowhere greater and somewhere less; [n].

    Rows in ascending order can be dominated by earlier ones alone, so each is compared with the front so far.

    >>> pareto_front(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0]])).tolist()
    [True, True, False]
    """
    on_front = np.zeros(len(costs), np.bool_)
    front: list[int] = []
    for row in np.lexsort(costs.T[::-1]).tolist() if len(costs) else []:
        best = costs[front]
        on_front[row] = not ((best <= costs[row]).all(axis=1) & (best < costs[row]).any(axis=1)).any()
        if on_front[row]:
            front.append(row)
    return on_front


def mark_front(points: Sequence[PointRecord]) -> tuple[PointRecord, ...]:
    """The points with `pareto`: among those with a plan whose sizes differ in `CHOICES` alone.

    A figure that one of them lacks is left out.
    """
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for row, point in enumerate(points):
        if point.fits:
            key = tuple((name, size) for name, size in point.sizes.items() if name not in CHOICES)
            groups.setdefault(key, []).append(row)
    marked = {row for rows in groups.values() for row in _front_rows(points, rows)}
    return tuple(point.model_copy(update={"pareto": row in marked}) for row, point in enumerate(points))


def _front_rows(points: Sequence[PointRecord], rows: Sequence[int]) -> list[int]:
    columns = []
    for figure, sign in FIGURES.items():
        values = [figure_of(points[row], figure) for row in rows]
        if all(value is not None for value in values):
            columns.append([sign * float(value or 0.0) for value in values])
    front = pareto_front(np.array(columns).T) if columns else np.ones(len(rows), np.bool_)
    return [row for row, kept in zip(rows, front.tolist(), strict=True) if kept]
