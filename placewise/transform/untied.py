"""Tied weights of ONNX models that runtimes store more than once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.model.columns import frozen
from placewise.model.graph import Graph


def untie_weights(graph: Graph) -> Graph:
    """Give weights of one storage but different shapes separate storages.

    ONNX has no strides: if an embedding is also used transposed, ONNX Runtime folds the transpose into a second weight
    and stores both. Graphs of other formats, and training graphs, whose weights change, stay as they are.
    """
    if graph.source is None or graph.source.format != "onnx" or graph.ops.backward.any():
        return graph
    number: dict[tuple[int, tuple[int, ...]], int] = {}
    weights = graph.weights
    keys = ((storage, tuple(weights.shape[row])) for row, storage in enumerate(weights.storage.tolist()))
    storage = np.array([number.setdefault(key, len(number)) for key in keys], np.int32)
    return replace(graph, weights=replace(weights, storage=frozen(storage, np.int32)))
