"""The partitioners METIS and Mt-KaHyPar behind one signature. Each is imported when it first cuts."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from placewise.model.columns import Ints
from placewise.placers.shared.partitions.hypergraph import Hypergraph

QUALITY = 20_000
"""Nodes up to which Mt-KaHyPar also refines by flows."""


def cut_with_metis(hypergraph: Hypergraph, imbalance: float, seed: int) -> Ints:
    """The part [n_nodes] of every node. Every use of a tensor is an edge of its own."""
    import pymetis

    offsets, neighbours, cost = hypergraph.list_pairs()
    options = pymetis.Options(ufactor=max(round(1000 * imbalance), 1), seed=seed)
    _, part = pymetis.part_graph(
        len(hypergraph.devices), pymetis.CSRAdjacency(offsets.astype(np.int32), neighbours),
        vweights=hypergraph.weight.astype(np.int32), eweights=cost.astype(np.int32),
        tpwgts=hypergraph.share.tolist(), options=options,
    )  # fmt: skip
    return np.asarray(part, np.int32)


def cut_with_mt_kahypar(metric: str, threads: int, hypergraph: Hypergraph, imbalance: float, seed: int) -> Ints:
    """The part [n_nodes] of every node. `metric` is "cut", "km1" or "soed"."""
    library, kahypar = _load_mt_kahypar(threads)
    presets = library.PresetType
    refined = len(hypergraph.node) <= QUALITY
    context = kahypar.context_from_preset(presets.DETERMINISTIC_QUALITY if refined else presets.DETERMINISTIC)
    context.logging = False
    library.set_seed(seed)
    context.set_partitioning_parameters(len(hypergraph.devices), imbalance, getattr(library.Objective, metric.upper()))
    total, heaviest = int(hypergraph.weight.sum()), int(hypergraph.weight.max())
    fair = np.ceil(hypergraph.share * total * (1 + imbalance)).astype(np.int64)
    context.set_individual_target_block_weights(np.maximum(fair, heaviest).tolist())
    pins = hypergraph.list_pins()
    graph = kahypar.create_hypergraph(
        context, len(hypergraph.node), len(pins), pins, hypergraph.weight.tolist(), hypergraph.cost.tolist()
    )
    return np.array(graph.partition(context).get_partition(), np.int32)


@cache
def _load_mt_kahypar(threads: int) -> tuple[Any, Any]:
    """Mt-KaHyPar, initialized. The number of threads of the first call in a process holds for all later ones."""
    import mtkahypar

    return mtkahypar, mtkahypar.initialize(threads, False)
