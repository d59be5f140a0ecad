"""GraphBuilder: ops, tensors and edges in any order; `build()` sorts, checks and freezes them."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from placewise.errors import GraphError
from placewise.model.columns import Ints, Longs, Ragged, offsets_of
from placewise.model.dtypes import bytes_of, dtype_code
from placewise.model.graph import Graph, Source
from placewise.model.tables import Attributes, Edges, Interned, Ops, Phase, Tensors, Weights
from placewise.model.topology import describe_cycle, find_cycle

T = TypeVar("T")


class _Interner(Generic[T]):
    """Gives equal values one code."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self.codes = array("i")
        self._known: dict[Any, int] = {}

    def add(self, value: T, key: Any) -> None:
        code = self._known.get(key)
        if code is None:
            code = self._known[key] = len(self.values)
            self.values.append(value)
        self.codes.append(code)

    def column(self, order: npt.NDArray[Any] | None) -> Interned[T]:
        codes = np.frombuffer(self.codes, np.int32)
        return Interned(tuple(self.values), codes if order is None else codes[order])


class _Shapes:
    def __init__(self) -> None:
        self.lengths, self.values = array("q"), array("q")

    def add(self, shape: Sequence[int]) -> None:
        self.values.extend(shape)
        self.lengths.append(len(shape))

    def column(self) -> Ragged:
        lengths = np.frombuffer(self.lengths, np.int64)
        return Ragged(np.concatenate(([0], np.cumsum(lengths))), np.frombuffer(self.values, np.int64))


def plain(value: Any) -> Any:
    """Attribute values in the one form that files and hashes understand: lists become tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


class GraphBuilder:
    """A mutable graph. Ids are handed out in insertion order and are valid until `build()`."""

    def __init__(self) -> None:
        self._op_name: list[str] = []
        self._kind: _Interner[str] = _Interner()
        self._scope: _Interner[str] = _Interner()
        self._attributes: _Interner[Attributes] = _Interner()
        self._written: dict[str, int] = {}
        self._op_dtype, self._backward, self._phase = array("b"), array("b"), array("b")
        self._group, self._state = array("i"), array("q")
        self._origin = _Shapes()
        self._arguments = array("i")
        self._tensor_name: list[str] = []
        self._producer, self._tensor_bytes = array("i"), array("q")
        self._tensor_dtype, self._output = array("b"), array("b")
        self._tensor_shape = _Shapes()
        self._weight_name: list[str] = []
        self._weight_bytes, self._weight_dtype, self._storage = array("q"), array("b"), array("i")
        self._trainable = array("b")
        self._weight_shape = _Shapes()
        self._edges = (array("i"), array("i"), array("i"))
        self._weight_edges = (array("i"), array("i"), array("i"))

    @property
    def n_ops(self) -> int:
        return len(self._op_name)

    def add_op(
        self,
        name: str,
        kind: str,
        *,
        scope: str = "",
        attributes: Attributes | None = None,
        dtype: str = "unknown",
        backward: bool = False,
        group: int = -1,
        state_bytes: int = 0,
        origin: Sequence[int] = (),
        phase: int = 0,
    ) -> int:
        """Add an op and return its id; see `Ops` for the meaning of each column."""
        self._op_name.append(name)
        self._kind.add(kind, kind)
        self._scope.add(scope, scope)
        self._add_attributes(attributes)
        self._op_dtype.append(dtype_code(dtype))
        self._backward.append(backward)
        self._group.append(group)
        self._state.append(state_bytes)
        self._phase.append(phase)
        self._origin.add(origin)
        self._arguments.append(0)
        return len(self._op_name) - 1

    def _add_attributes(self, attributes: Attributes | None) -> None:
        """Equal attributes share a code; what is written in the same way as before is equal without a closer look."""
        written = repr(attributes) if attributes else ""
        code = self._written.get(written)
        if code is not None and type(attributes) in (dict, type(None)):
            self._attributes.codes.append(code)
            return
        clean = plain(attributes or {})
        self._attributes.add(clean, repr(sorted(clean.items())) if clean else "")
        self._written[written] = self._attributes.codes[-1]

    def add_tensor(
        self,
        producer: int,
        *,
        shape: Sequence[int] | None = None,
        dtype: str = "unknown",
        nbytes: int | None = None,
        name: str = "",
        output: bool = False,
    ) -> int:
        """Add a tensor made by op `producer` (−1: an input of the model) and return its id.

        Bytes follow from shape and dtype unless `nbytes` says them; without either they are unknown.
        """
        if nbytes is None:
            nbytes = -1 if shape is None else bytes_of(tuple(shape), dtype)
        number = len(self._producer)
        made_by = self._op_name[producer] if 0 <= producer < len(self._op_name) else "input"
        self._tensor_name.append(name or f"{made_by}:{number}")
        self._producer.append(producer)
        self._tensor_bytes.append(nbytes)
        self._tensor_dtype.append(dtype_code(dtype))
        self._tensor_shape.add(shape or ())
        self._output.append(output)
        return number

    def add_weight(
        self,
        name: str,
        *,
        shape: Sequence[int],
        dtype: str,
        nbytes: int | None = None,
        storage: int | None = None,
        trainable: bool = True,
    ) -> int:
        """Add a weight and return its id; give tied weights the same `storage` id (default: its own)."""
        number = len(self._weight_name)
        self._weight_name.append(name)
        self._weight_bytes.append(bytes_of(tuple(shape), dtype) if nbytes is None else nbytes)
        self._weight_dtype.append(dtype_code(dtype))
        self._weight_shape.add(shape)
        self._storage.append(number if storage is None else storage)
        self._trainable.append(trainable)
        return number

    def add_edge(self, tensor: int, consumer: int, position: int | None = None) -> None:
        """Op `consumer` reads `tensor` as its argument `position` (default: the next free one)."""
        self._use(self._edges, tensor, consumer, position)

    def use_weight(self, weight: int, consumer: int, position: int | None = None) -> None:
        """Op `consumer` uses `weight` as its argument `position` (default: the next free one)."""
        self._use(self._weight_edges, weight, consumer, position)

    def set_output(self, tensor: int) -> None:
        """Mark `tensor` as an output of the model."""
        self._output[tensor] = True

    def _use(
        self, edges: tuple[array[int], array[int], array[int]], value: int, consumer: int, position: int | None
    ) -> None:
        if not 0 <= consumer < len(self._arguments):
            raise GraphError(f"an edge goes to op {consumer}, which does not exist", remedy="add the op first")
        if position is None:
            position = self._arguments[consumer]
        self._arguments[consumer] = max(self._arguments[consumer], position + 1)
        edges[0].append(value)
        edges[1].append(consumer)
        edges[2].append(position)

    def build(self, source: Source | None = None, phases: Sequence[Phase] = ()) -> Graph:
        """The graph, in topological order (insertion order where that is one). Raises GraphError."""
        n_ops = len(self._op_name)
        producer = np.frombuffer(self._producer, np.int32)
        value, consumer, position = _columns(self._edges)
        if len(producer) and (producer.min() < -1 or producer.max() >= n_ops):
            row = int(np.argmax((producer < -1) | (producer >= n_ops)))
            raise GraphError(f"tensor {self._tensor_name[row]!r} is made by op {producer[row]}, which does not exist")
        if len(value) and (value.min() < 0 or value.max() >= len(producer)):
            row = int(np.argmax((value < 0) | (value >= len(producer))))
            raise GraphError(f"op {self._op_name[consumer[row]]!r} reads tensor {value[row]}, which does not exist")
        order = _topological_order(n_ops, producer[value], consumer, self._op_name)
        rank: Ints | None = None
        if order is not None:
            rank = np.empty(n_ops, np.int32)
            rank[order] = np.arange(n_ops, dtype=np.int32)
        made_by = producer if rank is None else np.where(producer < 0, -1, rank[producer])
        tensor_order = np.argsort(made_by, kind="stable")
        tensor_rank = np.empty(len(tensor_order), np.int32)
        tensor_rank[tensor_order] = np.arange(len(tensor_order), dtype=np.int32)
        return Graph(
            ops=self._ops(order),
            tensors=Tensors(
                name=tuple(self._tensor_name[i] for i in tensor_order.tolist()),
                producer=made_by[tensor_order],
                bytes=np.frombuffer(self._tensor_bytes, np.int64)[tensor_order],
                dtype=np.frombuffer(self._tensor_dtype, np.int8)[tensor_order],
                shape=self._tensor_shape.column().take(tensor_order),
                output=np.frombuffer(self._output, np.int8)[tensor_order].astype(np.bool_),
            ),
            weights=Weights(
                name=tuple(self._weight_name),
                bytes=np.frombuffer(self._weight_bytes, np.int64),
                dtype=np.frombuffer(self._weight_dtype, np.int8),
                shape=self._weight_shape.column(),
                storage=np.frombuffer(self._storage, np.int32),
                trainable=np.frombuffer(self._trainable, np.int8).astype(np.bool_),
            ),
            edges=_sorted_edges(tensor_rank[value] if len(value) else value, consumer, position, rank),
            weight_edges=_sorted_edges(*_columns(self._weight_edges), rank),
            source=source,
            phases=tuple(phases),
        )

    def _ops(self, order: Longs | None) -> Ops:
        names = self._op_name if order is None else [self._op_name[i] for i in order.tolist()]
        rows = slice(None) if order is None else order
        origin = self._origin.column()
        return Ops(
            name=tuple(names),
            kind=self._kind.column(order),
            scope=self._scope.column(order),
            attributes=self._attributes.column(order),
            dtype=np.frombuffer(self._op_dtype, np.int8)[rows],
            backward=np.frombuffer(self._backward, np.int8)[rows].astype(np.bool_),
            group=np.frombuffer(self._group, np.int32)[rows],
            state_bytes=np.frombuffer(self._state, np.int64)[rows],
            origin=origin if order is None else origin.take(order),
            phase=np.frombuffer(self._phase, np.int8)[rows],
        )


def _columns(edges: tuple[array[int], array[int], array[int]]) -> tuple[Ints, Ints, Ints]:
    value, consumer, position = (np.frombuffer(column, np.int32) for column in edges)
    return value, consumer, position


def _sorted_edges(value: Ints, consumer: Ints, position: Ints, rank: Ints | None) -> Edges:
    if rank is not None and len(consumer):
        consumer = rank[consumer]
    order = np.lexsort((position, consumer))
    return Edges(value=value[order], consumer=consumer[order], position=position[order])


def _topological_order(n_ops: int, tail: Ints, head: Ints, names: list[str]) -> Longs | None:
    """None if insertion order is topological, else the order nearest to it (Kahn, smallest id first)."""
    inner = tail >= 0
    tail, head = tail[inner], head[inner]
    if not (tail >= head).any():
        return None
    by_tail = np.argsort(tail, kind="stable")
    offsets, heads = offsets_of(tail[by_tail], n_ops).tolist(), head[by_tail].tolist()
    missing = np.bincount(head, minlength=n_ops).tolist()
    ready = [op for op in range(n_ops) if not missing[op]]
    order: list[int] = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for successor in heads[offsets[op] : offsets[op + 1]]:
            missing[successor] -= 1
            if not missing[successor]:
                heapq.heappush(ready, successor)
    if len(order) < n_ops:
        before = {v: u for u, v in zip(tail.tolist(), head.tolist(), strict=True) if missing[u] and missing[v]}
        shown = describe_cycle([repr(names[op]) for op in find_cycle(before)])
        raise GraphError(f"the graph has a cycle: {shown}", remedy="a placement needs an acyclic graph")
    return np.array(order, np.int64)
