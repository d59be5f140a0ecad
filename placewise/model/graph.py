"""Graph: an immutable computation graph, validated once, when it is made."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.errors import GraphError
from placewise.model.columns import Ints, Longs, distinct, frozen, offsets_of
from placewise.model.tables import Edges, Ops, Phase, Tensors, Weights

LARGEST_ID = 1 << 24
"""Of groups and storages: sums by group take memory by the largest id, not by how many there are."""
_VIEWS, _FRAMES = "placewise.reporting.model_views", "placewise.reporting.frames"
"""Where notebooks' views and tables live: imported when they are asked for, since data knows no views."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a graph came from: enough to find the file again, replay the reading and refuse another model."""

    path: str
    sha256: str
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)
    view: str = "folded"
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Ops in topological order, the tensors between them and the weights that they use.

    A tensor with many consumers is one tensor. `phases`, if there are any, run one after the other, each as often as
    it says; every op belongs to one (`ops.phase`), and no edge leads back to an earlier one. Lookup tables are derived
    on construction: ``in_offsets`` [n_ops + 1] (rows of `edges` of each op), ``out_offsets`` [n_ops + 1] (rows of
    `tensors` made by each op), ``weight_offsets`` [n_ops + 1] (rows of `weight_edges`), and the distinct consumers of
    tensor t in ascending order, ``consumers[consumer_offsets[t]:consumer_offsets[t + 1]]``.

    Raises GraphError for edges to nowhere, an order that is not topological, duplicate names or columns
    of unequal length.
    """

    ops: Ops
    tensors: Tensors
    weights: Weights
    edges: Edges
    weight_edges: Edges
    source: Source | None = None
    phases: tuple[Phase, ...] = ()
    in_offsets: Longs = field(init=False)
    out_offsets: Longs = field(init=False)
    weight_offsets: Longs = field(init=False)
    consumer_offsets: Longs = field(init=False)
    consumers: Ints = field(init=False)
    known_digest: str = field(init=False, default="", repr=False)

    def __post_init__(self) -> None:
        _validate(self)
        n_ops, n_tensors = len(self.ops), len(self.tensors)
        derived: dict[str, Any] = {
            "in_offsets": frozen(offsets_of(self.edges.consumer, n_ops), np.int64),
            "out_offsets": frozen(offsets_of(self.tensors.producer, n_ops), np.int64),
            "weight_offsets": frozen(offsets_of(self.weight_edges.consumer, n_ops), np.int64),
        }
        pairs = distinct(self.edges.value.astype(np.int64) * n_ops + self.edges.consumer)
        tensor = pairs // max(n_ops, 1)
        derived["consumer_offsets"] = frozen(offsets_of(tensor, n_tensors), np.int64)
        derived["consumers"] = frozen(pairs - tensor * n_ops, np.int32)
        for name, column in derived.items():
            object.__setattr__(self, name, column)

    def __repr__(self) -> str:
        return f"Graph({self.n_ops} ops, {self.n_tensors} tensors, {self.n_edges} edges, {len(self.weights)} weights)"

    def _repr_html_(self) -> str:
        html: str = import_module(_VIEWS).graph_html(self)
        return html

    def to_frame(self) -> Any:
        """A row per op, in topological order: name, kind, scope, element type, and bytes of weights, state and outputs.

        A pandas.DataFrame. Raises MissingExtraError without the extra `pandas`.
        """
        return import_module(_FRAMES).graph_frame(self)

    def to_networkx(self) -> Any:
        """A node per op, an edge per tensor and consumer with its `bytes`: a networkx.MultiDiGraph.

        Raises MissingExtraError without the extra `networkx`.
        """
        return import_module(_FRAMES).graph_network(self)

    @property
    def n_ops(self) -> int:
        return len(self.ops)

    @property
    def n_tensors(self) -> int:
        return len(self.tensors)

    @property
    def n_edges(self) -> int:
        """Distinct (producer op, tensor, consumer op) triples: the model's own inputs are not edges."""
        return len(self.consumers) - int(self.consumer_offsets[self.out_offsets[0]] if self.n_ops else 0)

    def inputs_of(self, op: int) -> Ints:
        """Tensor ids that `op` reads, by argument position."""
        return self.edges.value[self.in_offsets[op] : self.in_offsets[op + 1]]

    def outputs_of(self, op: int) -> range:
        """Tensor ids that `op` makes."""
        return range(int(self.out_offsets[op]), int(self.out_offsets[op + 1]))

    def consumers_of(self, tensor: int) -> Ints:
        """Distinct ops that read `tensor`, ascending."""
        return self.consumers[self.consumer_offsets[tensor] : self.consumer_offsets[tensor + 1]]

    def weights_of(self, op: int) -> Ints:
        """Weight ids that `op` uses, by argument position."""
        return self.weight_edges.value[self.weight_offsets[op] : self.weight_offsets[op + 1]]

    @property
    def op_repeats(self) -> Longs:
        """How often each op [n_ops] runs for one sample."""
        return np.array([phase.repeats for phase in self.phases] or [1], np.int64)[self.ops.phase]

    @property
    def tensor_repeats(self) -> Longs:
        """How often each tensor [n_tensors] is made, or read, for one sample: by the ops that do so most often."""
        repeats = self.op_repeats
        most = np.ones(self.n_tensors, np.int64)
        made = self.tensors.producer >= 0
        most[made] = repeats[self.tensors.producer[made]]
        np.maximum.at(most, self.edges.value, repeats[self.edges.consumer])
        return most

    def with_source(self, source: Source) -> Graph:
        """The same graph from elsewhere: what was checked and derived is shared."""
        return self._change(source=source)

    def with_state(self, state_bytes: Longs) -> Graph:
        """The same graph, of the same digest, where what stays resident with each op [n_ops] takes other bytes."""
        ops = replace(self.ops, state_bytes=frozen(state_bytes, np.int64))
        return self._change(ops=ops, known_digest=self.digest())

    def with_digest(self, digest: str) -> Graph:
        """The same graph, known by another digest: that of the model, where its state was counted anew."""
        return self._change(known_digest=digest)

    def _change(self, **fields: Any) -> Graph:
        """A copy with other values of fields from which nothing is derived."""
        changed = copy(self)
        for name, value in fields.items():
            object.__setattr__(changed, name, value)
        return changed

    def digest(self) -> str:
        """sha256 over structure, kinds and shapes, whatever the ops are called and whatever they cost."""
        if self.known_digest:
            return self.known_digest
        state = hashlib.sha256()
        kinds = sorted(self.ops.kind.values[code] for code in np.unique(self.ops.kind.codes).tolist())
        number = {kind: place for place, kind in enumerate(kinds)}
        rank = np.array([number.get(kind, -1) for kind in self.ops.kind.values], np.int32)
        state.update("\0".join(kinds).encode())
        columns: list[npt.NDArray[Any]] = [rank[self.ops.kind.codes] if len(rank) else rank]
        columns += [self.tensors.producer, self.ops.backward, self.ops.group, self.ops.state_bytes]
        for part in (self.tensors, self.weights):
            columns += [part.bytes, part.dtype, part.shape.offsets, part.shape.values]
        for edges in (self.edges, self.weight_edges):
            columns += [edges.value, edges.consumer, edges.position]
        if self.phases:
            columns += [self.ops.phase, np.array([phase.repeats for phase in self.phases], np.int64)]
        for column in columns:
            state.update(column.tobytes())
        return state.hexdigest()


def _duplicate(names: tuple[str, ...]) -> str | None:
    if len(set(names)) == len(names):
        return None
    return next(name for name, count in Counter(names).items() if count > 1)


def _validate(graph: Graph) -> None:
    n_ops, n_tensors = len(graph.ops), len(graph.tensors)
    for what, names in (("op", graph.ops.name), ("tensor", graph.tensors.name), ("weight", graph.weights.name)):
        repeated = _duplicate(names)
        if repeated is not None:
            raise GraphError(f"two {what}s are both called {repeated!r}", remedy=f"give every {what} its own name")
    for what, edges, count in (("tensor", graph.edges, n_tensors), ("weight", graph.weight_edges, len(graph.weights))):
        bad = (edges.value < 0) | (edges.value >= count) | (edges.consumer < 0) | (edges.consumer >= n_ops)
        if bad.any():
            row = int(np.argmax(bad))
            raise GraphError(
                f"edge {row} joins {what} {edges.value[row]} to op {edges.consumer[row]}, and one does not exist",
                remedy="check the edge list",
            )
        key = edges.consumer.astype(np.int64) * (1 << 31) + edges.position
        if (edges.position < 0).any() or (np.diff(key) <= 0).any():
            raise GraphError(f"{what} edges are not sorted by (consumer, position ≥ 0), or a position is filled twice")
    producer = graph.tensors.producer
    if len(producer) and (producer.min() < -1 or producer.max() >= n_ops or (np.diff(producer) < 0).any()):
        raise GraphError("tensors must be sorted by a producer that exists")
    late = producer[graph.edges.value] >= graph.edges.consumer
    if late.any():
        row = int(np.argmax(late))
        name = graph.ops.name[graph.edges.consumer[row]]
        raise GraphError(f"op {name!r} stands before an op that feeds it", remedy="build graphs with GraphBuilder")
    if n_ops and (graph.ops.group.min() < -1 or graph.ops.state_bytes.min() < 0):
        raise GraphError("group ids must be ≥ −1 and state bytes ≥ 0")
    _validate_phases(graph)
    if len(graph.weights) and graph.weights.storage.min() < 0:
        raise GraphError("storage ids must be ≥ 0")
    if max(graph.ops.group.max(initial=0), graph.weights.storage.max(initial=0)) >= LARGEST_ID:
        raise GraphError(f"a group or storage id is {LARGEST_ID} or more", remedy="number them from 0")


def _validate_phases(graph: Graph) -> None:
    phase, names = graph.ops.phase, [phase.name for phase in graph.phases]
    if len(set(names)) < len(names):
        raise GraphError("two phases have one name", remedy="give every phase its own name")
    if n_outside := int(((phase < 0) | (phase >= max(len(names), 1))).sum()):
        raise GraphError(f"{n_outside} ops belong to no phase of the graph", remedy="give the phases to the builder")
    if not names:
        return
    maker = graph.tensors.producer[graph.edges.value]
    back = (maker >= 0) & (phase[maker] > phase[graph.edges.consumer])
    if back.any():
        row = int(np.argmax(back))
        reader, source = graph.edges.consumer[row], maker[row]
        raise GraphError(
            f"op {graph.ops.name[reader]!r} of phase {names[phase[reader]]!r} reads what {graph.ops.name[source]!r} of "
            f"the later phase {names[phase[source]]!r} makes",
            remedy="phases run one after the other",
        )
