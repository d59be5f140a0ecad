"""Units: layers of a model, which are split, recomputed and moved between stages as one.

Scopes name layers by numbers (``encoder.layer.3``); what lies before, between and after them follows the flow of
tensors. Where no scopes are known, units are stretches of a topological order between narrow cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewise.coarsen.scopes import split_scope
from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.graph import Graph
from placewise.simulate.contiguity import strong_components

MOST_UNITS = 300
DEPTHS = (1, 2, 3)
"""How many numbers of a scope may name a layer."""
LARGEST_SHARE = 0.15
"""Units are divided further if one of them has a larger share of the forward ops."""
MOST_BORDERS = 3.0
"""The most tensors that a unit makes for others, on average, if units are divided further."""
FEWEST_LAYERS = 3
LARGE_WEIGHT = 1e-4
"""Of all weights: ops of a layer that share a larger one are in one unit."""
STRETCHES, SHORTEST = 64, 4
"""The most units of a graph without scopes, and the fewest forward ops of such a unit, on average."""
LONGEST = 3.0
"""The most ops of such a unit, relative to the mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """`unit` [n_ops], numbered in topological order, and a name for each."""

    unit: Ints
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


def group_units(graph: Graph) -> Units:
    """Group ops into at most about `MOST_UNITS` units whose quotient graph is acyclic.

    Forward ops decide: backward ops are in the units of their colocation groups, and phases share units. A colocation
    group is in one unit. Linear in ops and edges.
    """
    if not graph.n_ops:
        return Units(np.zeros(0, np.int32), ())
    tail, head = _forward_edges(graph)
    best: Units | None = None
    for depth in DEPTHS:
        labels = _layer_labels(graph, depth)
        if len({label for label in labels if label}) < FEWEST_LAYERS:
            continue
        attached = _attach(graph, labels, tail, head)
        found = _contract(graph, attached, tail, head, _share_weights(graph))
        if best is None:
            best = found if len(found) <= MOST_UNITS else None
        elif 1.5 * len(best) < len(found) <= MOST_UNITS and _is_narrow(found, tail, head):
            best = found
        if best is not None and _largest_share(graph, best) <= LARGEST_SHARE:
            break
    if best is None or len(best) < FEWEST_LAYERS:
        best = _contract(graph, _cut_order(graph, tail, head), tail, head)
    return best


def _forward_edges(graph: Graph) -> tuple[Longs, Longs]:
    """Edges between forward ops of one phase."""
    maker = graph.tensors.producer[graph.edges.value].astype(np.int64)
    reader = graph.edges.consumer.astype(np.int64)
    backward, phase = graph.ops.backward, graph.ops.phase
    kept = (maker >= 0) & ~backward[maker] & ~backward[reader] & (phase[maker] == phase[reader])
    return maker[kept], reader[kept]


def _layer_labels(graph: Graph, depth: int) -> list[str]:
    """The layer of each op by its scope through its `depth`th number, "" for ops outside layers or backward."""
    layers = []
    for scope in graph.ops.scope.values:
        parts = split_scope(scope)
        places = [k for k, part in enumerate(parts) if part.isdigit()]
        layers.append(".".join(parts[: places[min(depth, len(places)) - 1] + 1]) if places else "")
    return [
        "" if late else layers[code]
        for code, late in zip(graph.ops.scope.codes.tolist(), graph.ops.backward.tolist(), strict=True)
    ]


def _attach(graph: Graph, labels: list[str], tail: Longs, head: Longs) -> list[str]:
    """The unit of every forward op: its layer, or what lies before, between or after the layers."""
    rank: dict[str, int] = {}
    layer = [rank.setdefault(label, len(rank)) if label else -1 for label in labels]
    names = list(rank)
    none, n = len(names), graph.n_ops
    latest, earliest = list(layer), [place if place >= 0 else none for place in layer]
    order = np.argsort(head, kind="stable")
    for a, b in zip(tail[order].tolist(), head[order].tolist(), strict=True):
        if layer[b] < 0:
            latest[b] = max(latest[b], latest[a])
    order = np.argsort(-tail, kind="stable")
    for a, b in zip(tail[order].tolist(), head[order].tolist(), strict=True):
        if layer[a] < 0:
            earliest[a] = min(earliest[a], earliest[b])
    weighs = np.diff(graph.weight_offsets) > 0
    heavy = {earliest[op] for op in range(n) if layer[op] < 0 and latest[op] < 0 and weighs[op]}
    found = []
    for op in range(n):
        first, last = earliest[op], latest[op]
        if layer[op] >= 0:
            found.append(names[layer[op]])
        elif last < 0 and first == none:
            found.append("before 0")
        elif last < 0:
            found.append(f"before {first}" if first == 0 or first in heavy else names[first])
        else:
            found.append("after" if first == none and last == none - 1 else names[last])
    return found


def _share_weights(graph: Graph) -> list[tuple[object, int]]:
    """Pairs of an item and an op, for the forward ops of a layer that use one large weight, as at every step of it.

    Other weights are tied between layers (embeddings), which stay apart.
    """
    size = graph.weights.bytes.astype(np.float64)
    total = float(size[np.unique(graph.weights.storage, return_index=True)[1]].sum()) if len(size) else 0.0
    edges = graph.weight_edges
    large = (size >= LARGE_WEIGHT * total)[edges.value] & ~graph.ops.backward[edges.consumer]
    layer = _layer_labels(graph, 1)
    pairs = zip(graph.weights.storage[edges.value[large]].tolist(), edges.consumer[large].tolist(), strict=True)
    return [((storage, layer[op]), op) for storage, op in pairs if layer[op]]


def _contract(
    graph: Graph, labels: Sequence[str | int], tail: Longs, head: Longs, shared: Sequence[tuple[object, int]] = ()
) -> Units:
    """Number the units topologically; those on a cycle, and those of one colocation group, become one.

    So do ops that have an item of the pairs (item, op) in `shared` in common.
    """
    forward = np.flatnonzero(~graph.ops.backward).tolist()
    number: dict[object, int] = {}
    code = np.full(graph.n_ops, -1, np.int64)
    for op in forward:
        code[op] = number.setdefault(labels[op], len(number))
    group = graph.ops.group
    tied = [op for op in forward if group[op] >= 0]
    first: dict[int, int] = {}
    ties = {(first.setdefault(int(group[op]), int(code[op])), int(code[op])) for op in tied}
    home: dict[object, int] = {}
    ties |= {(home.setdefault(item, int(code[op])), int(code[op])) for item, op in shared}
    pairs = {pair for pair in zip(code[tail].tolist(), code[head].tolist(), strict=True) if pair[0] != pair[1]}
    pairs |= {pair for a, b in ties if a != b for pair in ((a, b), (b, a))}
    edges = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    component, count = strong_components(edges[:, 0].astype(np.int32), edges[:, 1].astype(np.int32), len(number))
    unit = np.where(code >= 0, component[code], -1).astype(np.int32)
    unit = _place_backward(graph, unit, max(count, 1))
    kept, dense = np.unique(unit, return_inverse=True)
    return Units(dense.astype(np.int32), _name_units(graph, dense.astype(np.int64), len(kept)))


def _place_backward(graph: Graph, unit: Ints, count: int) -> Ints:
    """Backward ops join the forward op of their group or name, else the latest unit that they read from."""
    backward = np.flatnonzero(graph.ops.backward).tolist()
    if not backward:
        return unit
    group = graph.ops.group.tolist()
    of_group: dict[int, int] = {}
    for op in np.flatnonzero(unit >= 0).tolist():
        if group[op] >= 0:
            of_group.setdefault(group[op], int(unit[op]))
    producer = graph.tensors.producer
    for op in backward:
        known = of_group.get(group[op])
        if known is None:
            makers = [int(producer[t]) for t in graph.inputs_of(op).tolist()]
            known = max((int(unit[maker]) for maker in makers if maker >= 0), default=count - 1)
            if group[op] >= 0:
                of_group[group[op]] = known
        unit[op] = known
    return unit


def _name_units(graph: Graph, unit: Longs, count: int) -> tuple[str, ...]:
    """The common scope of each unit's forward ops that have one; else the scope or name of the op with most weights."""
    common: list[tuple[str, ...] | None] = [None] * count
    first, heaviest = [""] * count, [-1] * count
    uses = np.zeros(graph.n_ops, np.int64)
    np.add.at(uses, graph.weight_edges.consumer, np.maximum(graph.weights.bytes[graph.weight_edges.value], 0))
    paths = [split_scope(scope) for scope in graph.ops.scope.values]
    codes, backward = graph.ops.scope.codes.tolist(), graph.ops.backward.tolist()
    for op, place in enumerate(unit.tolist()):
        path, known = paths[codes[op]], common[place]
        if not backward[op] and int(uses[op]) > heaviest[place]:
            first[place], heaviest[place] = graph.ops.scope[op] or graph.ops.name[op], int(uses[op])
        if not path or backward[op]:
            continue
        if known is None:
            common[place] = path
        elif known != path[: len(known)]:
            alike = zip(known, path, strict=False)
            shared = next((k for k, (a, b) in enumerate(alike) if a != b), min(len(known), len(path)))
            common[place] = known[:shared]
    return tuple(".".join(path) if path else name for path, name in zip(common, first, strict=True))


def _is_narrow(units: Units, tail: Longs, head: Longs) -> bool:
    """Whether units make few tensors for others."""
    crosses = units.unit[tail] != units.unit[head]
    makers = np.unique(tail[crosses])
    return len(makers) <= MOST_BORDERS * len(units)


def _largest_share(graph: Graph, units: Units) -> float:
    ops = np.bincount(units.unit[~graph.ops.backward], minlength=1)
    return float(ops.max() / max(ops.sum(), 1))


def _cut_order(graph: Graph, tail: Longs, head: Longs) -> list[int]:
    """The stretch of each forward op in topological order; cuts are where few tensors, and few bytes, are live."""
    forward = np.flatnonzero(~graph.ops.backward)
    n = len(forward)
    wanted = int(max(1, min(STRETCHES, n // SHORTEST)))
    live, nbytes = _live_at_cuts(graph, forward, tail, head)
    label, length, start, stretch = np.zeros(graph.n_ops, np.int64), n / wanted, 0, 0
    place = np.zeros(n, np.int64)
    while start + 1.5 * length < n:
        window = np.arange(int(start + max(length / 2, 1)), int(min(start + LONGEST * length, n - 1)) + 1)
        best = window[np.lexsort((np.abs(window - start - length), nbytes[window], live[window]))[0]]
        stretch += 1
        place[best:] = stretch
        start = int(best)
    label[forward] = place
    return list(label.tolist())


def _live_at_cuts(graph: Graph, forward: Longs, tail: Longs, head: Longs) -> tuple[Longs, Floats]:
    """How many makers' results, and bytes, cross the cut before each forward op [n]."""
    position = np.full(graph.n_ops, -1, np.int64)
    position[forward] = np.arange(len(forward))
    last = np.full(graph.n_ops, -1, np.int64)
    np.maximum.at(last, tail, position[head])
    makes: Bools = last >= 0
    size = np.zeros(graph.n_ops)
    made = graph.tensors.producer >= 0
    np.add.at(size, graph.tensors.producer[made], np.maximum(graph.tensors.bytes[made], 0).astype(np.float64))
    change, weight = np.zeros(len(forward) + 2, np.int64), np.zeros(len(forward) + 2)
    for sign, at in ((1, position[makes] + 1), (-1, last[makes] + 1)):
        np.add.at(change, at, sign)
        np.add.at(weight, at, sign * size[makes])
    return np.cumsum(change)[: len(forward)], np.cumsum(weight)[: len(forward)]
