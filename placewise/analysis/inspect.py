"""What a model consists of: ops, tensors, work and weights, by kind and by scope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from placewise.costing.work import work_of
from placewise.model.columns import Floats
from placewise.model.graph import Graph
from placewise.readers.base import ImportedModel


@dataclass(frozen=True, slots=True)
class Row:
    """One kind or one scope: ops, FLOPs, bytes of its own weights, bytes of the tensors that it makes."""

    name: str
    ops: int
    flops: float
    weight_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase: how often it runs for one sample, and what one run is."""

    name: str
    repeats: int
    ops: int
    flops: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """Totals and tables. FLOPs (multiply-add = 2) are None where the file brings times instead of shapes.

    FLOPs are per sample: what a phase repeats counts every time.

    `known_ops_share` is the share of ops whose FLOPs are known. `weights` counts storages, so tied weights once;
    `parameters` are their elements, buffers included.
    """

    ops: int
    backward_ops: int
    tensors: int
    edges: int
    groups: int
    weights: int
    parameters: int
    weight_bytes: int
    state_bytes: int
    activation_bytes: int
    flops: float | None
    known_ops_share: float | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    by_kind: tuple[Row, ...]
    by_scope: tuple[Row, ...]
    warnings: tuple[str, ...]
    graph_hash: str
    phases: tuple[PhaseRow, ...] = ()


def inspect(reading: ImportedModel, *, depth: int = 2) -> Inspection:
    """Look at a model; scopes are cut to `depth` parts."""
    graph = reading.graph
    work = work_of(graph) if reading.problem is None and reading.op_seconds is None else None
    flops = np.zeros(graph.n_ops) if work is None else work.flops * graph.op_repeats
    _, first = np.unique(graph.weights.storage, return_index=True)
    shapes = graph.weights.shape.take(first)
    counted = int(sum(int(np.prod(shape)) for shape in shapes)) if len(first) else 0
    scopes = [".".join(scope.split(".")[:depth]) for scope in graph.ops.scope.values]
    unknown = () if work is None else work.warnings
    return Inspection(
        ops=graph.n_ops,
        backward_ops=int(graph.ops.backward.sum()),
        tensors=graph.n_tensors,
        edges=graph.n_edges,
        groups=len(np.unique(graph.ops.group[graph.ops.group >= 0])),
        weights=len(first),
        parameters=counted,
        weight_bytes=_total(graph.weights.bytes[first]),
        state_bytes=_total(graph.ops.state_bytes),
        activation_bytes=_total(graph.tensors.bytes),
        flops=None if work is None else float(flops.sum()),
        known_ops_share=None if work is None else _known_share(work.known),
        inputs=_described(graph, np.flatnonzero(graph.tensors.producer < 0)),
        outputs=_described(graph, np.flatnonzero(graph.tensors.output)),
        by_kind=_rows(graph, flops, list(graph.ops.kind.values), graph.ops.kind.codes),
        by_scope=_rows(graph, flops, scopes, graph.ops.scope.codes),
        warnings=(*reading.warnings, *unknown),
        graph_hash=graph.digest(),
        phases=tuple(_phases(graph, flops)),
    )


def _phases(graph: Graph, flops: Floats) -> Iterable[PhaseRow]:
    for number, phase in enumerate(graph.phases):
        ops = graph.ops.phase == number
        yield PhaseRow(phase.name, phase.repeats, int(ops.sum()), float(flops[ops].sum()) / phase.repeats)


def _total(sizes: np.ndarray) -> int:
    """The bytes that are known, added where no sum can overflow."""
    return int(np.maximum(sizes, 0).sum(dtype=np.float64))


def _known_share(known: Floats | np.ndarray) -> float:
    return float(known.mean()) if len(known) else 1.0


def _described(graph: Graph, tensors: Iterable[int]) -> tuple[str, ...]:
    found = []
    for tensor in tensors:
        shape = "×".join("?" if dim < 0 else str(dim) for dim in graph.tensors.shape[int(tensor)]) or "scalar"
        found.append(f"{graph.tensors.name[int(tensor)]}: {shape} {graph.tensors.dtype_name(int(tensor))}")
    return tuple(found)


def _rows(graph: Graph, flops: Floats, labels: list[str], codes: np.ndarray) -> tuple[Row, ...]:
    """Totals per label, the heaviest first; a weight counts where it is used first."""
    names = sorted(set(labels))
    index = {name: place for place, name in enumerate(names)}
    of_code = np.array([index[label] for label in labels], np.int64)
    row = of_code[codes] if len(labels) else np.zeros(0, np.int64)
    count = len(names)
    weight_bytes, output_bytes = np.zeros(count), np.zeros(count)
    storages, first = np.unique(graph.weights.storage[graph.weight_edges.value], return_index=True)
    if len(storages):
        users = graph.weight_edges.consumer[first]
        size = np.maximum(graph.weights.bytes[graph.weight_edges.value[first]], 0)
        weight_bytes += np.bincount(row[users], weights=size, minlength=count)
    made = graph.tensors.producer >= 0
    makers = row[graph.tensors.producer[made]]
    output_bytes += np.bincount(makers, weights=np.maximum(graph.tensors.bytes[made], 0), minlength=count)
    ops, work = np.bincount(row, minlength=count), np.bincount(row, weights=flops, minlength=count)
    order = sorted(range(count), key=lambda r: (-work[r], -ops[r], names[r]))
    return tuple(
        Row(names[r] or "(none)", int(ops[r]), float(work[r]), int(weight_bytes[r]), int(output_bytes[r]))
        for r in order
    )
