"""Join the graphs of one model for the prompt and for a generated token into one graph with a shared placement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from placewise.model.builder import GraphBuilder
from placewise.model.disjoint_sets import DisjointSets
from placewise.model.dtypes import DTYPES, bytes_of
from placewise.model.graph import Graph, Source
from placewise.model.tables import Edges, Phase
from placewise.readers.huggingface.operators import CACHE_UPDATE, CACHES, DISPATCH, EXPERT, KINDS

SAMPLE = "sample"
SECOND = "decode"
"""Prefix of the names of ops and tensors of the second phase."""


def join_phases(first: Graph, second: Graph | None, *, repeats: int, sequences: int, source: Source) -> Graph:
    """Return the graph of both phases: `first`, then `second`, `repeats` times.

    Each phase takes the most likely token from its logits (its first output). The first phase produces all inputs of
    `second`; ops of `second` without inputs wait for it. Weights of equal name are one. A KV cache is state of the op
    that fills it in the first phase, for `sequences` batches.
    """
    draft = _PhaseGraphBuilder(sequences)
    if second is None:
        draft.add(first, 0, [-1] * first.n_ops, None)
        draft.sample(first, "", -1)
        return draft.builder.build(source, (Phase("prefill", 1),))
    groups, others = colocate_phases(first, second)
    last = max(groups, default=-1) + 1
    draft.add(first, 0, groups, None)
    token = draft.sample(first, "", last, second)
    draft.add(second, 1, others, token)
    draft.sample(second, f"{SECOND}/", last)
    return draft.builder.build(source, (Phase("prefill", 1), Phase(SECOND, repeats)))


def build_single_phase(graph: Graph, source: Source) -> Graph:
    """A graph of one phase, with new ids in `origin`."""
    draft = _PhaseGraphBuilder(1)
    draft.add(graph, 0, [-1] * graph.n_ops, None)
    for tensor in range(graph.n_tensors):
        if graph.tensors.output[tensor]:
            draft.builder.set_output(draft.tensors[tensor])
    return draft.builder.build(source)


@dataclass(slots=True)
class _PhaseGraphBuilder:
    """A graph under construction; `tensors` are those of the graph that was added last."""

    sequences: int
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    tensors: dict[int, int] = field(default_factory=dict)
    weights: dict[tuple[object, ...], int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    storage: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, graph: Graph, phase: int, groups: Sequence[int], inputs: Sequence[int] | None) -> None:
        """Add the ops of `graph`; `inputs` are the tensors (ids in the builder) that replace its inputs."""
        prefix, builder = f"{SECOND}/" if phase else "", self.builder
        ops, base = graph.ops, builder.n_ops
        self.tensors = {}
        for op in range(graph.n_ops):
            builder.add_op(
                prefix + ops.name[op],
                KINDS.get(ops.kind[op], ops.kind[op]),
                scope=ops.scope[op],
                attributes=ops.attributes[op],
                dtype=ops.dtype_name(op),
                group=groups[op],
                state_bytes=0 if phase else self._state(graph, op),
                origin=(base + op,),
                phase=phase,
            )
        self._add_tensors(graph, base, prefix, inputs)
        weights = self._add_weights(graph, phase, prefix)
        for tensor, consumer, position in _iterate_rows(graph.edges):
            builder.add_edge(self.tensors[tensor], base + consumer, position)
        for weight, consumer, position in _iterate_rows(graph.weight_edges):
            builder.use_weight(weights[weight], base + consumer, position)
        for token in (inputs or ())[:1]:
            for op in _find_unordered_ops(graph):
                builder.add_edge(token, base + op)

    def _add_tensors(self, graph: Graph, base: int, prefix: str, inputs: Sequence[int] | None) -> None:
        tensors, remaining = graph.tensors, iter(inputs or ())
        for tensor in range(graph.n_tensors):
            maker = int(tensors.producer[tensor])
            if maker < 0 and inputs is not None:
                if len(graph.consumers_of(tensor)):
                    self.tensors[tensor] = next(remaining)
                continue
            self.tensors[tensor] = self.builder.add_tensor(
                base + maker if maker >= 0 else -1,
                shape=tensors.shape[tensor],
                dtype=tensors.dtype_name(tensor),
                nbytes=_count_tensor_bytes(graph, tensor, maker),
                name=prefix + tensors.name[tensor],
            )

    def _add_weights(self, graph: Graph, phase: int, prefix: str) -> list[int]:
        weights, numbers = graph.weights, []
        for weight in range(len(weights)):
            name, shape, dtype = weights.name[weight], weights.shape[weight], weights.dtype_name(weight)
            key = (name, tuple(shape), dtype)
            if key not in self.weights:
                own = prefix + name if name in self.names else name
                self.names.add(own)
                storage = self.storage.setdefault((phase, int(weights.storage[weight])), len(self.weights))
                self.weights[key] = self.builder.add_weight(
                    own,
                    shape=shape,
                    dtype=dtype,
                    nbytes=int(weights.bytes[weight]),
                    storage=storage,
                    trainable=bool(weights.trainable[weight]),
                )
            numbers.append(self.weights[key])
        return numbers

    def _state(self, graph: Graph, op: int) -> int:
        """Bytes of a KV cache: keys and values at capacity, for all batches in flight."""
        if graph.ops.kind[op] != CACHE_UPDATE:
            return 0
        capacity, total = int(graph.ops.attributes[op]["capacity"]), 0
        for tensor in graph.outputs_of(op):
            *outer, _, width = graph.tensors.shape[tensor]
            total += bytes_of((*outer, capacity, width), graph.tensors.dtype_name(tensor))
        return total * self.sequences

    def sample(self, graph: Graph, prefix: str, group: int, after: Graph | None = None) -> list[int]:
        """Take a token from the logits of the last graph; return the tensors that `after` reads."""
        logits = int(graph.tensors.output.argmax())
        op = self.builder.add_op(
            prefix + SAMPLE,
            "ArgMax",
            scope=SAMPLE,
            attributes={"axis": -1},
            dtype=DTYPES[int(graph.tensors.dtype[logits])],
            group=group,
            origin=(self.builder.n_ops,),
            phase=1 if prefix else 0,
        )
        self.builder.add_edge(self.tensors[logits], op)
        batch = graph.tensors.shape[logits][:1]
        if after is None:
            return [self.builder.add_tensor(op, shape=batch, dtype="int64", name=f"{prefix}token", output=True)]
        next_inputs: list[int] = []
        for tensor in range(after.n_tensors):
            if after.tensors.producer[tensor] < 0 and len(after.consumers_of(tensor)):
                shape, dtype = after.tensors.shape[tensor], after.tensors.dtype_name(tensor)
                name = after.tensors.name[tensor]
                next_inputs.append(
                    self.builder.add_tensor(op, shape=shape, dtype=dtype, name=f"next {name}", output=not next_inputs)
                )
        return next_inputs


def _count_tensor_bytes(graph: Graph, tensor: int, maker: int) -> int:
    """Bytes of a tensor: none for a view of a cache, the expected bytes for inputs and results of one expert."""
    kind = graph.ops.kind[maker] if maker >= 0 else ""
    if kind in CACHES:
        return 0
    nbytes = int(graph.tensors.bytes[tensor])
    if kind in (DISPATCH, EXPERT):
        known = graph.ops.attributes[maker]
        rows: float = known["tokens"] * known["chosen"] / known["experts"]
        return round(nbytes * rows / graph.tensors.shape[tensor][0])
    return nbytes


def _find_unordered_ops(graph: Graph) -> Iterator[int]:
    """Ops that would not wait for any input although they depend on the position in the sequence.

    They compute something without inputs (a range, a view of a cache), or look up weights with it. Constants and values
    of weights alone may exist before.
    """
    waits = [True] * graph.n_tensors
    for op, kind in enumerate(graph.ops.kind):
        reads, uses = graph.inputs_of(op).tolist(), graph.weights_of(op)
        late = any(waits[tensor] for tensor in reads)
        early = not late and kind != "Constant" and bool(reads) == bool(len(uses))
        if early:
            yield op
        for tensor in graph.outputs_of(op):
            waits[tensor] = late or early


def _iterate_rows(edges: Edges) -> Iterator[tuple[int, int, int]]:
    return zip(edges.value.tolist(), edges.consumer.tolist(), edges.position.tolist(), strict=True)


def colocate_phases(first: Graph, second: Graph) -> tuple[list[int], list[int]]:
    """Return group ids of the ops of both graphs, −1 for none.

    Ops pair up one by one within a scope if both graphs have the same kinds of ops there and all ops of `first`
    depend on its input; otherwise the scope is one group. Scopes without such an op in `first` join the nearest
    enclosing scope that has one. Readers of a cache stay with it.
    """
    sets = DisjointSets(first.n_ops + second.n_ops)
    here, there = _group_by_scope(first), _group_by_scope(second)
    needs = needs_input(first)
    homes = {scope: rows for scope, rows in here.items() if any(needs[op] for op in rows)}
    for scope, rows in there.items():
        home = _find_nearest_scope(scope, homes)
        others = here[home]
        lasting = home == scope and all(needs[op] for op in others)
        if lasting and _kinds(first, others) == _kinds(second, rows):
            for one, other in zip(others, rows, strict=True):
                sets.join(one, first.n_ops + other)
        else:
            for other in (*others[1:], *(first.n_ops + row for row in rows)):
                sets.join(others[0], other)
    for graph, offset in ((first, 0), (second, first.n_ops)):
        for op, kind in enumerate(graph.ops.kind):
            if kind in CACHES:
                for tensor in graph.outputs_of(op):
                    for reader in graph.consumers_of(tensor).tolist():
                        sets.join(offset + op, offset + reader)
    groups = sets.groups()
    return groups[: first.n_ops], groups[first.n_ops :]


def needs_input(graph: Graph) -> list[bool]:
    """Which ops depend on an input of the model [n_ops]; the others may be folded away."""
    late, producer = [False] * graph.n_ops, graph.tensors.producer.tolist()
    for op in range(graph.n_ops):
        makers = [producer[tensor] for tensor in graph.inputs_of(op).tolist()]
        late[op] = any(maker < 0 or late[maker] for maker in makers)
    return late


def _group_by_scope(graph: Graph) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for op, scope in enumerate(graph.ops.scope):
        rows[scope].append(op)
    return rows


def _find_nearest_scope(scope: str, known: dict[str, list[int]]) -> str:
    while scope not in known and scope:
        scope = scope.rpartition(".")[0]
    return scope if scope in known else next(iter(known))


def _kinds(graph: Graph, ops: list[int]) -> list[str]:
    return [graph.ops.kind[op] for op in ops]
