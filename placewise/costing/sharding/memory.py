"""What the devices of a split hold for each unit: weights, what training keeps, activations, and workspace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewise.costing.sharding.backward import are_updates
from placewise.model.columns import Bools, Floats, Longs
from placewise.model.graph import Graph
from placewise.model.sharding import SUMMAND, Sharding

PARTS = ("weights", "gradients", "optimizer", "state", "workspace")


@dataclass(frozen=True, slots=True, eq=False)
class UnitMemory:
    """Bytes of each unit [n_units] on each device of a split.

    `weights` once per storage; `gradients` and `optimizer` of the weights that train; `state` (KV caches); `inputs`,
    what forward ops of the unit read from elsewhere; `kept`, what backward ops read of a micro-batch; `transient`, the
    most that is live besides, one op after the other, and the largest tensor that sequence parallelism gathers.
    """

    weights: Floats
    gradients: Floats
    optimizer: Floats
    state: Floats
    inputs: Floats
    kept: Floats
    transient: Floats


class MemoryTable:
    """What the memory of units depends on besides the sharding: read once for all degrees."""

    def __init__(self, graph: Graph, unit: Longs, free: Bools) -> None:
        self.graph, self.n_units = graph, int(unit.max(initial=-1)) + 1
        self._unit = unit.astype(np.int64)
        self._root = _find_roots(graph, free)
        self._updates = self._find_updates()

    def measure(self, sharding: Sharding) -> UnitMemory:
        """The memory of all units under one sharding."""
        graph, unit = self.graph, self._unit
        of_weight = _weight_factors(graph, sharding)
        of_tensor, root = self._tensor_factors(sharding)
        size = np.maximum(graph.tensors.bytes, 0) * of_tensor
        kept = self._pairs_read(root, by_backward=True)
        inputs = self._pairs_read(root, by_backward=False)
        trained, home = self._updates
        gradients = np.maximum(graph.weights.bytes, 0) * of_weight
        late, state = graph.ops.backward, graph.ops.state_bytes * sharding.share
        return UnitMemory(
            self._weights(of_weight),
            self._sum(home, gradients[trained]),
            self._sum(unit, np.where(late, state, 0.0)),
            self._sum(unit, np.where(late, 0.0, state)),
            self._sum(inputs // graph.n_tensors, size[inputs % graph.n_tensors]) if len(inputs) else self._zero(),
            self._sum(kept // graph.n_tensors, size[kept % graph.n_tensors]) if len(kept) else self._zero(),
            self._peaks(root, size, kept) + self._largest_gathered(sharding),
        )

    def _largest_gathered(self, sharding: Sharding) -> Floats:
        """Bytes [n_units] that the largest tensor which a unit gathers from tokens takes beyond the device's part."""
        most = self._zero()
        for each in sharding.collectives if sharding.sequence_parallel else ():
            if each.kind == "all-gather" and sharding.split[each.tensor] >= 0:
                unit = self._unit[each.op]
                most[unit] = max(most[unit], each.nbytes * (1 - 1 / sharding.degree))
        return most

    def _zero(self) -> Floats:
        return np.zeros(self.n_units)

    def _sum(self, unit: Longs, amount: Floats) -> Floats:
        return np.bincount(unit, weights=amount, minlength=self.n_units).astype(np.float64)

    def _weights(self, factor: Floats) -> Floats:
        """Bytes of the distinct storages that the forward ops of each unit use."""
        edges, weights = self.graph.weight_edges, self.graph.weights
        if not len(edges):
            return self._zero()
        span = int(weights.storage.max()) + 1
        key = self._unit[edges.consumer] * span + weights.storage[edges.value]
        size = np.maximum(weights.bytes, 0)[edges.value] * factor[edges.value]
        order = np.lexsort((-size, key))
        first = np.ones(len(order), np.bool_)
        first[1:] = key[order][1:] != key[order][:-1]
        return self._sum(key[order][first] // span, size[order][first])

    def _find_updates(self) -> tuple[Longs, Longs]:
        """The weights that train, and the unit of the update of each; without updates, of the first op that uses it."""
        graph, edges = self.graph, self.graph.weight_edges
        rows = np.flatnonzero(are_updates(graph)[edges.consumer])
        if not len(rows) and graph.ops.backward.any():
            rows = np.flatnonzero(graph.weights.trainable[edges.value] & ~graph.ops.backward[edges.consumer])
            _, first = np.unique(graph.weights.storage[edges.value[rows]], return_index=True)
            rows = rows[first]
        return edges.value[rows].astype(np.int64), self._unit[edges.consumer[rows]]

    def _tensor_factors(self, sharding: Sharding) -> tuple[Floats, Longs]:
        """The part [n_tensors] of each tensor that a device has, and the tensor whose memory each one shares."""
        graph = self.graph
        split = sharding.split.astype(np.int64)
        factor = np.where(split >= 0, 1 / sharding.degree, 1.0)
        producer = graph.tensors.producer
        late = (producer >= 0) & graph.ops.backward[producer]
        factor[late] = sharding.share[producer[late]]
        root = self._root
        own = (split == SUMMAND) | (split[root] == SUMMAND) | ((split >= 0) != (split[root] >= 0))
        return factor, np.where(own, np.arange(len(root)), root)

    def _pairs_read(self, root: Longs, *, by_backward: bool) -> Longs:
        """Distinct unit · n_tensors + tensor, of forward tensors: read by backward ops, or from other units."""
        graph = self.graph
        value, reader = root[graph.edges.value], graph.edges.consumer
        maker = graph.tensors.producer[value]
        made_forward = (maker < 0) | ~graph.ops.backward[np.maximum(maker, 0)]
        late = graph.ops.backward[reader]
        if by_backward:
            chosen = made_forward & late
        else:
            outside = (maker < 0) | (self._unit[np.maximum(maker, 0)] != self._unit[reader])
            chosen = made_forward & ~late & outside
        return np.unique(self._unit[reader[chosen]] * graph.n_tensors + value[chosen])

    def _peaks(self, root: Longs, size: Floats, kept: Longs) -> Floats:
        """The most bytes that are live in each unit at once: in the order of its ops, each phase by itself.

        What is kept for the backward pass, and the gradients of weights, count elsewhere.
        """
        graph, n = self.graph, self.graph.n_tensors
        if not n or not graph.n_ops:
            return self._zero()
        phases = max(len(graph.phases), 1)
        value, reader = root[graph.edges.value], graph.edges.consumer.astype(np.int64)
        part = self._unit * phases + graph.ops.phase
        place = part[reader]
        maker = graph.tensors.producer.astype(np.int64)
        made = np.flatnonzero((maker >= 0) & (root == np.arange(n)))
        place = np.concatenate((place, part[maker[made]]))
        tensor = np.concatenate((value, made))
        last = np.concatenate((reader, maker[made]))
        key = place * n + tensor
        order = np.lexsort((last, key))
        final = np.ones(len(order), np.bool_)
        final[:-1] = key[order][1:] != key[order][:-1]
        place, tensor, last = place[order][final], tensor[order][final], last[order][final]
        own = (maker[tensor] >= 0) & (part[np.maximum(maker[tensor], 0)] == place)
        first = np.where(own, maker[tensor], -1)
        counted = ~np.isin(place // phases * n + tensor, kept)
        of_weight = np.zeros(n, np.bool_)
        of_weight[root[graph.edges.value[are_updates(graph)[graph.edges.consumer]]]] = True
        counted &= ~of_weight[tensor]
        place, tensor, first, last = place[counted], tensor[counted], first[counted], last[counted]
        amount = size[tensor]
        where, when = np.concatenate((place, place)), np.concatenate((first, last + 0.5))
        change = np.concatenate((amount, -amount))
        order = np.lexsort((when, where))
        live, where = np.cumsum(change[order]), where[order]
        peak = np.zeros(self.n_units * phases)
        base = np.zeros(self.n_units * phases)
        starts = np.flatnonzero(np.diff(where, prepend=-1))
        base[where[starts]] = live[starts] - change[order][starts]
        np.maximum.at(peak, where, live - base[where])
        return np.asarray(peak.reshape(self.n_units, phases).max(axis=1), np.float64)


def _weight_factors(graph: Graph, sharding: Sharding) -> Floats:
    """The part [n_weights] of each weight that a device holds."""
    factor = np.ones(len(graph.weights))
    t = sharding.degree
    for weight in np.flatnonzero(sharding.weight_split >= 0).tolist():
        length = graph.weights.shape[weight][int(sharding.weight_split[weight])]
        factor[weight] = -(-length // t) / length if length > 0 else 1.0
    return factor


def _find_roots(graph: Graph, free: Bools) -> Longs:
    """The tensor [n_tensors] whose memory each one shares: results of free ops are views of the first argument."""
    root = np.arange(graph.n_tensors, dtype=np.int64)
    for op in np.flatnonzero(free & (np.diff(graph.in_offsets) > 0)).tolist():
        source = int(graph.edges.value[graph.in_offsets[op]])
        for tensor in graph.outputs_of(op):
            root[tensor] = root[source]
    return root
