"""Match the ops of a folded OpenVINO model with the ops of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.readers.openvino.folded_model import FoldedModel


def match_ops(graph: Graph, model: FoldedModel) -> Ints:
    """The op of `graph` [n ops of the model] for each op of the model.

    Ops match if they come from the same node of the file; a graph op's first node is preferred over nodes folded into
    it. Other ops follow their first matched consumer, else the first matched op that they read (−1 if there is none).
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
    """The device name for every op of a folded model, given the devices of the graph's ops [n_ops].

    Unmatched ops go to the first device.
    """
    first = next(iter(names.values()))
    return [names[int(device[op])] if op >= 0 else first for op in matches.tolist()]


def find_open_cut(model: FoldedModel, affinity: Sequence[str]) -> tuple[int, int] | None:
    """An op with an output of open shape, and a reader of it on another device; None if there are none.

    HETERO allocates the buffers between subgraphs before the run, so it cannot transfer such a tensor.
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
