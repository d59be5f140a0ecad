"""Which op of a graph each op of a folded OpenVINO model stands for, or follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.readers.openvino.folded_model import FoldedModel


def match_ops(graph: Graph, model: FoldedModel) -> Ints:
    """The op of `graph` [n ops of the listing] that each op belongs to.

    By the nodes of the file that both came from; a node of the graph's own before one that was folded into it. What
    a node was taken apart into, and what nobody knows, follows its first consumer that belongs somewhere, else the
    first op that it reads (−1 only if nothing is known at all).
    """
    own = {int(graph.ops.origin[op][0]): op for op in range(graph.n_ops) if len(graph.ops.origin[op])}
    folded = {int(node): op for op in range(graph.n_ops) for node in graph.ops.origin[op]}
    matched = np.full(len(model), -1, np.int32)
    for row, ids in enumerate(model.origin):
        known = [own[node] for node in ids if node in own] or [folded[node] for node in ids if node in folded]
        if known:
            matched[row] = known[0]
    return _follow_neighbours(matched, model)


def device_affinities(device: Ints, matches: Ints, names: Mapping[int, str]) -> list[str]:
    """The name of a device for every op of a folded model, from those of the ops of the graph [n_ops].

    What belongs nowhere goes where the first device is.
    """
    first = next(iter(names.values()))
    return [names[int(device[op])] if op >= 0 else first for op in matches.tolist()]


def find_open_cut(model: FoldedModel, affinity: Sequence[str]) -> tuple[int, int] | None:
    """An op that makes a tensor of an open shape, and one on another device that reads it.

    HETERO makes the buffers between pieces before it runs, so it cannot hand such a tensor over.
    """
    for row, sources in enumerate(model.sources):
        for source in sources:
            if model.is_open[source] and affinity[source] != affinity[row]:
                return source, row
    return None


def _follow_neighbours(matched: Ints, model: FoldedModel) -> Ints:
    readers: list[list[int]] = [[] for _ in range(len(model))]
    for row, sources in enumerate(model.sources):
        for source in sources:
            readers[source].append(row)
    for row in reversed(range(len(model))):
        if matched[row] < 0:
            matched[row] = next((matched[reader] for reader in readers[row] if matched[reader] >= 0), -1)
    for row, sources in enumerate(model.sources):
        if matched[row] < 0:
            matched[row] = next((matched[source] for source in sources if matched[source] >= 0), -1)
    return matched
