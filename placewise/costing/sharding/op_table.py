"""The forward ops of a graph as rules see them, read once for all degrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewise.costing.op_instance import WAITED_FOR
from placewise.costing.sharding.strategies import Shape
from placewise.costing.signatures import signatures
from placewise.model.columns import Longs
from placewise.model.graph import Graph
from placewise.model.tables import Attributes


class OpArgument(NamedTuple):
    """An argument: the id of a tensor or of a weight, and its shape."""

    number: int
    is_weight: bool
    shape: Shape


class OpRow(NamedTuple):
    """One op: its arguments by position (without those that it only waits for) and its results."""

    kind: str
    attributes: Attributes
    arguments: Mapping[int, OpArgument]
    results: tuple[int, ...]
    result_shapes: tuple[Shape, ...]
    code: int


@dataclass(frozen=True, slots=True, eq=False)
class OpTable:
    """`rows` [n_ops] (None for backward ops), `readers` [n_tensors] of forward ops, `makers` [n_tensors]."""

    graph: Graph
    rows: tuple[OpRow | None, ...]
    readers: tuple[tuple[int, ...], ...]
    makers: tuple[int, ...]
    outputs: tuple[bool, ...]


def read_ops(graph: Graph) -> OpTable:
    """Read the forward ops of a graph. Equal `code` means equal kind, attributes and shapes."""
    code: Longs = signatures(graph) if graph.n_ops else np.zeros(0, np.int64)
    tensor_shapes, weight_shapes = list(graph.tensors.shape), list(graph.weights.shape)
    arguments: list[dict[int, OpArgument]] = [{} for _ in range(graph.n_ops)]
    for edges, shapes, is_weight in ((graph.edges, tensor_shapes, False), (graph.weight_edges, weight_shapes, True)):
        rows = zip(edges.value.tolist(), edges.consumer.tolist(), edges.position.tolist(), strict=True)
        for number, op, at in rows:
            if at < WAITED_FOR:
                arguments[op][at] = OpArgument(number, is_weight, shapes[number])
    backward = graph.ops.backward.tolist()
    kinds, attributes = list(graph.ops.kind), list(graph.ops.attributes)
    table: list[OpRow | None] = []
    for op in range(graph.n_ops):
        if backward[op]:
            table.append(None)
            continue
        results = tuple(graph.outputs_of(op))
        made = tuple(tensor_shapes[t] for t in results)
        table.append(
            OpRow(kinds[op], attributes[op], dict(sorted(arguments[op].items())), results, made, int(code[op]))
        )
    offsets, consumers = graph.consumer_offsets.tolist(), graph.consumers.tolist()
    readers = tuple(
        tuple(op for op in consumers[offsets[t] : offsets[t + 1]] if not backward[op]) for t in range(graph.n_tensors)
    )
    return OpTable(
        graph, tuple(table), readers, tuple(graph.tensors.producer.tolist()), tuple(graph.tensors.output.tolist())
    )
