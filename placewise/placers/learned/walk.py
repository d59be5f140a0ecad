"""The constant inputs of Placeto's walk over a graph: units, edges and neighbourhoods as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from placewise.model.columns import Bools
from placewise.placers.learned.features import Features, link_pace, time_scale, to_single
from placewise.placers.learned.view import View

GROUPS = 3
"""Ancestors, descendants, and parallel units."""


@dataclass(frozen=True, slots=True, eq=False)
class WalkGraph:
    """n units, D devices, E edges, T steps; times are in mean times of a unit.

    `order` [T] is the unit that each step moves, and `turn` [n] the step that moves a unit (T: none). `known` [n, F]
    are features; `allowed` [n, D]; `cost` [n, D] is log(1 + time); `share` [n, D] the time over that of all units on
    their fastest devices. `source`, `target`, `sent` [2E] are edges over 2n nodes, those of the graph and then, between
    n … 2n − 1, the reversed ones, with log(1 + transfer time); `mean` [2n] is one over the in-degree; `hears` [2n] is 1
    for nodes with incoming edges. `group` [n, 3, n] marks ancestors, descendants and parallel units; `flow`
    [2, n, n] is the transfer time to each unit and from it; `pace` [D, D] the time of each link over the mean.
    """

    order: Tensor
    turn: Tensor
    known: Tensor
    allowed: Tensor
    cost: Tensor
    share: Tensor
    source: Tensor
    target: Tensor
    sent: Tensor
    mean: Tensor
    hears: Tensor
    group: Tensor
    flow: Tensor
    pace: Tensor

    @property
    def n(self) -> int:
        return len(self.turn)

    @property
    def n_devices(self) -> int:
        return self.allowed.shape[1]


def walk_graph(view: View, features: Features) -> WalkGraph:
    """Prepare the walk over a view's units in their order, without units that have one device only.

    If all units have one device, the walk visits the first, so that there is a step.
    """
    n, scale = view.n, time_scale(view)
    free = np.flatnonzero(view.allowed.sum(axis=1) > 1)
    order = free if len(free) else np.zeros(1, np.int64)
    turn = np.full(n, len(order))
    turn[order] = np.arange(len(order))
    seconds = np.where(view.allowed, view.seconds, 0.0)
    fastest = float(np.where(view.allowed, view.seconds, np.inf).min(axis=1).sum()) if n else 0.0
    tail, head = view.tail.astype(np.int64), view.head.astype(np.int64)
    target = np.concatenate((head, tail + n))
    arriving = np.bincount(target, minlength=2 * n)
    flow = np.zeros((2, n, n))
    flow[0, head, tail] = flow[1, tail, head] = view.flow / scale
    return WalkGraph(
        order=torch.from_numpy(order), turn=torch.from_numpy(turn),
        known=torch.from_numpy(features.matrix), allowed=torch.from_numpy(view.allowed.copy()),
        cost=to_single(np.log1p(seconds / scale)), share=to_single(seconds / (fastest or 1.0)),
        source=torch.from_numpy(np.concatenate((tail, head + n))), target=torch.from_numpy(target),
        sent=to_single(np.log1p(np.tile(view.flow, 2) / scale)),
        mean=to_single(1.0 / np.maximum(arriving, 1)), hears=to_single(arriving > 0),
        group=to_single(_groups(n, tail, head)), flow=to_single(flow), pace=to_single(link_pace(view.problem)),
    )  # fmt: skip


def _groups(n: int, tail: npt.NDArray[np.integer], head: npt.NDArray[np.integer]) -> Bools:
    """[n, 3, n]: whether u is an ancestor of v, a descendant, or neither, for every v and u ≠ v."""
    leads = np.eye(n, dtype=np.float32)
    leads[head, tail] = 1.0
    reached = 0
    while int(leads.sum()) > reached:
        reached = int(leads.sum())
        leads = (leads @ leads > 0).astype(np.float32)
    before = leads.astype(np.bool_) & ~np.eye(n, dtype=np.bool_)
    return np.stack((before, before.T, ~(before | before.T | np.eye(n, dtype=np.bool_))), axis=1)
