"""The cache of keys and values that llama.cpp keeps for a model that is read from its configuration."""

from __future__ import annotations

from math import prod

import numpy as np

from placewise._util.units import format_bytes
from placewise.core.compute_buffer import find_cache_types, find_made_header, make_flags
from placewise.core.host_weights import CACHE_UPDATE
from placewise.errors import InputError
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.readers.gguf.llama_memory import count_cache
from placewise.readers.gguf.reader import KNOWN
from placewise.readers.gguf.shape import ModelShape, count_cells, read_shape
from placewise.readers.run_dims import RunDims, find_run_dims


def count_llama_cache(problem: Problem) -> Problem:
    """The problem in which every layer keeps the bytes of llama.cpp's cache: whole blocks of 256 positions for each
    sequence, and a micro-batch beside a sliding window (``llama_kv_cache``).

    Unchanged for files, which are read so, and for models of which llama.cpp's layers are not known. Doing it twice
    changes nothing. Raises InputError where layers of a configuration have a sliding window, and llama.cpp keeps the
    whole context there (Phi 3, first Mistral).
    """
    header, dims = find_made_header(problem), find_run_dims(problem.graph.source)
    if header is None or dims is None or problem.graph.known_digest:
        return problem
    graph, shape = problem.graph, read_shape(header)
    holds, caches = np.flatnonzero(graph.ops.state_bytes), list[int]()
    if header.architecture in KNOWN:
        caches = [size for size in count_cache(shape, make_flags(dims, find_cache_types(problem))) if size]
        _require_windows(graph, dims, shape, header.architecture, sum(caches))
    if len(holds) != len(caches):
        caches = [_count_layer(graph, op, dims) for op in holds.tolist()]
    state = graph.ops.state_bytes.copy()
    state[holds] = caches
    return problem.with_(graph=graph.with_state(state))


def _count_layer(graph: Graph, op: int, dims: RunDims) -> int:
    """Bytes of the cache that an op fills, two per entry, where only the configuration says what a layer has."""
    kept = int(graph.ops.attributes[op]["capacity"])
    cells = count_cells(dims.capacity, kept if kept < dims.capacity else 0, dims.ubatch)
    shapes = [graph.tensors.shape[tensor] for tensor in graph.outputs_of(op)]
    return dims.sequences * sum(2 * cells * prod((*outer, width)) for *outer, _, width in shapes)


def _require_windows(graph: Graph, dims: RunDims, shape: ModelShape, architecture: str, kept: float) -> None:
    """Raise InputError for windows that llama.cpp does not know, whose layers would keep so many bytes."""
    updates = np.flatnonzero(graph.ops.kind.equals(CACHE_UPDATE)).tolist()
    has_windows = any(graph.ops.attributes[op]["capacity"] < dims.capacity for op in updates)
    if any(shape.windows) or not has_windows:
        return
    raise InputError(
        f"llama.cpp knows no sliding window in {architecture} models: its cache takes {format_bytes(kept)}, "
        f"where the configuration says {format_bytes(float(graph.ops.state_bytes.sum()))}",
        where=graph.source.path if graph.source else "",
        remedy='write "sliding_window": null into it, or give the GGUF file',
    )
