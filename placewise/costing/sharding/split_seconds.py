"""Seconds of ops that are split over devices, and of the collectives between them."""

from __future__ import annotations

import numpy as np

from placewise.costing.roofline import device_seconds
from placewise.costing.sharding.backward import are_updates
from placewise.costing.sharding.collectives import GroupLink, collective_seconds, find_class_link
from placewise.costing.work import OpWork
from placewise.model.cluster import Cluster
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.sharding import Sharding


class SplitSeconds:
    """Seconds per micro-batch of the ops and units of a graph, by class of devices; arguments as of `make_ways`.

    An op of the optimizer runs once per step of `microbatches`, and counts as its share of a micro-batch.
    """

    def __init__(
        self, graph: Graph, cluster: Cluster, costs: CostTable, work: OpWork, device_class: Ints, node: Ints,
        unit: Longs, microbatches: int,
    ) -> None:  # fmt: skip
        self.graph, self.cluster, self.work, self.unit = graph, cluster, work, unit
        self.device_class, self.node = device_class, node
        self.n_units = int(unit.max(initial=-1)) + 1
        self.n_classes = int(device_class.max(initial=-1)) + 1
        self._costs = costs.op_seconds
        self._whole = device_seconds(graph, cluster, work)[0]
        self._per_step = np.where(are_updates(graph), 1.0 / microbatches, 1.0)

    def compute_ops(self, sharding: Sharding) -> Floats:
        """Seconds [n_ops, n_classes] of each op on each of the devices of a split."""
        seconds = self._costs
        if sharding.degree > 1:
            split = device_seconds(self.graph, self.cluster, self.work, sharding.share, sharding.traffic)[0]
            whole = self._whole
            ratio = np.divide(split, whole, out=np.repeat(sharding.share[:, None], whole.shape[1], 1), where=whole > 0)
            seconds = np.where(np.isfinite(seconds), seconds * ratio, np.inf)
        by_class = np.zeros((self.graph.n_ops, self.n_classes))
        for kind in range(self.n_classes):
            by_class[:, kind] = seconds[:, self.device_class == kind].max(axis=1)
        by_class *= self._per_step[:, None]
        return by_class

    def compute(self, sharding: Sharding) -> tuple[Floats, Floats]:
        """Seconds [n_units, n_classes] of all ops of a unit, and of its forward ops."""
        by_class = self.compute_ops(sharding)
        total, forward = np.zeros((self.n_units, self.n_classes)), np.zeros((self.n_units, self.n_classes))
        np.add.at(total, self.unit, by_class)
        early = ~self.graph.ops.backward
        np.add.at(forward, self.unit[early], by_class[early])
        return total, forward

    def exchange_each(self, sharding: Sharding, kind: int) -> list[float] | None:
        """Seconds of each collective of a split over devices of a class, in order; None if no node has so many."""
        t = sharding.degree
        link: GroupLink | None = GroupLink()
        if t > 1:
            link = find_class_link(self.cluster, self.device_class, self.node, kind, t)
        if link is None:
            return None
        return [each.times * collective_seconds(each.kind, each.nbytes, t, link) for each in sharding.collectives]

    def exchange(self, sharding: Sharding) -> tuple[Floats, Floats]:
        """Seconds [n_units, n_classes] of all collectives of a unit, and of the forward ones."""
        total, forward = np.zeros((self.n_units, self.n_classes)), np.zeros((self.n_units, self.n_classes))
        for kind in range(self.n_classes if sharding.degree > 1 else 0):
            each = self.exchange_each(sharding, kind)
            if each is None:
                total[:, kind] = forward[:, kind] = np.inf
                continue
            for collective, seconds in zip(sharding.collectives, each, strict=True):
                total[self.unit[collective.op], kind] += seconds
                if not collective.backward:
                    forward[self.unit[collective.op], kind] += seconds
        return total, forward
