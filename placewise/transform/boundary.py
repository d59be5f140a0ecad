"""Ops of kind Input and Output, which some formats use to mark the boundary of a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.model.columns import Bools, Ragged
from placewise.model.graph import Graph
from placewise.model.tables import Edges
from placewise.transform.rows import take_ops

INPUT, OUTPUT = "Input", "Output"


def remove_boundary_ops(graph: Graph) -> Graph:
    """Remove boundary ops: results of an Input become inputs of the model, arguments of an Output become outputs.

    `origin` of an Output moves to the op that produces its argument, that of an Input to the first op that reads it.
    """
    enters, leaves = graph.ops.kind.equals(INPUT), graph.ops.kind.equals(OUTPUT)
    kept = ~(enters | leaves)
    if kept.all():
        return graph
    rank = (np.cumsum(kept) - 1).astype(np.int32)
    producer = graph.tensors.producer
    producer = np.where((producer < 0) | ~kept[producer], -1, rank[producer])
    output = graph.tensors.output.copy()
    output[graph.edges.value[leaves[graph.edges.consumer]]] = True
    order = np.argsort(producer, kind="stable")
    tensor_rank = np.empty(len(order), np.int32)
    tensor_rank[order] = np.arange(len(order), dtype=np.int32)
    live, used = kept[graph.edges.consumer], kept[graph.weight_edges.consumer]
    return replace(
        graph,
        ops=take_ops(graph.ops, np.flatnonzero(kept), _origins(graph, kept)),
        tensors=replace(
            graph.tensors,
            name=tuple(graph.tensors.name[row] for row in order.tolist()),
            producer=producer[order],
            bytes=graph.tensors.bytes[order],
            dtype=graph.tensors.dtype[order],
            shape=graph.tensors.shape.take(order),
            output=output[order],
        ),
        edges=Edges(tensor_rank[graph.edges.value[live]], rank[graph.edges.consumer[live]], graph.edges.position[live]),
        weight_edges=Edges(
            graph.weight_edges.value[used], rank[graph.weight_edges.consumer[used]], graph.weight_edges.position[used]
        ),
    )


def _origins(graph: Graph, kept: Bools) -> Ragged:
    inherited: dict[int, list[int]] = {}
    for op in np.flatnonzero(~kept).tolist():
        makers = [int(graph.tensors.producer[tensor]) for tensor in graph.inputs_of(op)]
        users = (user for tensor in graph.outputs_of(op) for user in graph.consumers_of(tensor).tolist())
        owner = next((other for other in (*makers, *sorted(users)) if other >= 0 and kept[other]), -1)
        inherited.setdefault(owner, []).extend(graph.ops.origin[op])
    return Ragged.of((*graph.ops.origin[op], *inherited.get(op, ())) for op in np.flatnonzero(kept).tolist())
