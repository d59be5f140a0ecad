"""A graph under construction: ops with arguments and results, weights, and the order that control edges impose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from placewise.errors import ModelFileError
from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph
from placewise.readers.base import first_floating
from placewise.readers.tensorflow.abstract_values import AbstractValue, NodeCall, Type
from placewise.readers.tensorflow.kinds import attributes_of, is_backward_kind, kind_of, position_of
from placewise.readers.tensorflow.lists import HANDLE, LIST_PORTS
from placewise.readers.tensorflow.nodes import Node
from placewise.readers.tensorflow.types import Array, Shape

_MAX_BYTES = 2**62
_MAX_WEIGHT_BYTES = 2**50
"""One pebibyte for a single weight, far more than any machine stores."""
_GRADIENT_SCOPES = ("gradients", "gradient_tape")


class Names:
    """Makes names unique: a name that is taken gets a number as suffix."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def make_unique(self, name: str) -> str:
        free = name
        while free in self._last:
            self._last[name] += 1
            free = f"{name}#{self._last[name]}"
        self._last[free] = 1
        return free

    def reserve(self, names: Iterable[str]) -> None:
        """Reserve these names for the things that own them."""
        self._last.update(dict.fromkeys(names, 1))


class OpRecord(NamedTuple):
    """Name, node, direction and weights of an op that was added."""

    name: str
    node: Node
    backward: bool
    weights: tuple[int, ...]


@dataclass(slots=True)
class Draft:
    """The builder, with what it does not expose: the names in use, the ops added, and the producer of each tensor."""

    builder: GraphBuilder = field(default_factory=GraphBuilder)
    names: Names = field(default_factory=Names)
    reserved: set[str] = field(default_factory=set)
    tensor_names: Names = field(default_factory=Names)
    weight_names: Names = field(default_factory=Names)
    ops: list[OpRecord] = field(default_factory=list)
    producer: list[int] = field(default_factory=list)
    controls: dict[int, int] = field(default_factory=dict)

    def reserve(self, names: Sequence[str]) -> None:
        """Reserve these names for the nodes of the file's own graph, even if inlined nodes are added first."""
        self.reserved.update(names)
        self.names.reserve(names)

    def add_weight(self, name: str, dtype: str, shape: Shape | None) -> int:
        """Add a weight under this name or a variant of it."""
        check_size(name, shape or (), dtype, most=_MAX_WEIGHT_BYTES)
        known = shape is not None and min(shape, default=0) >= 0
        nbytes = max(bytes_of(shape, dtype), 0) if known and shape is not None else 0
        return self.builder.add_weight(
            self.weight_names.make_unique(name), shape=shape if known and shape else (), dtype=dtype, nbytes=nbytes
        )

    def add_input(self, name: str, kind: Type) -> AbstractValue:
        """Add an input of the model."""
        check_size(name, kind.shape or (), kind.dtype)
        return AbstractValue(kind.dtype, kind.shape, tensor=self._add_tensor(-1, kind, name))

    def add_op(
        self,
        call: NodeCall,
        types: Sequence[Type],
        *,
        path: str = "",
        kind: str = "",
        after: Sequence[int] = (),
        data: Sequence[Array | None] = (),
        more: Sequence[int] = (),
    ) -> tuple[int, list[AbstractValue]]:
        """Add the op of a call and its results; `after` are ops that must run first, `more` additional weights."""
        node, builder = call.node, self.builder
        is_own = node.origin >= 0 and not path and node.name in self.reserved
        name = node.name if is_own else self.names.make_unique(f"{path}{node.name}")
        gradient = is_backward_kind(node.op) or has_gradient_scope(name) or any(value.backward for value in call.args)
        backward = gradient and kind != "Constant"
        number = builder.add_op(
            name,
            kind or kind_of(node.op),
            scope=".".join(name.split("/")[:-1]),
            attributes=attributes_of(call),
            dtype=_compute_dtype(call.args, types),
            backward=backward,
            origin=(node.origin,) if node.origin >= 0 else (),
        )
        weights = (*(value.variable for value in call.args if value.variable >= 0), *more)
        self.ops.append(OpRecord(name, node, backward, weights))
        self._connect(number, call, after, more)
        passes_list = node.op == "Identity" and any(value.is_list for value in call.args)
        values = []
        for port, result in enumerate(types):
            check_size(name, result.shape or (), result.dtype)
            is_list = passes_list or LIST_PORTS.get(node.op) == port
            tensor = self._add_tensor(number, result, f"{name}:{port}" if port else name, is_list=is_list)
            known = data[port] if port < len(data) else None
            values.append(
                AbstractValue(
                    result.dtype, result.shape, known, tensor, is_list=is_list, backward=backward, maker=number
                )
            )
        return number, values

    def _add_tensor(self, producer: int, kind: Type, name: str, *, is_list: bool = False) -> int:
        """Add a tensor; a list whose elements are still unknown has no bytes."""
        nbytes = 0 if kind == HANDLE or (is_list and min(kind.shape or (-1,)) < 0) else None
        self.producer.append(producer)
        return self.builder.add_tensor(
            producer, shape=kind.shape, dtype=kind.dtype, nbytes=nbytes, name=self.tensor_names.make_unique(name)
        )

    def _connect(self, number: int, call: NodeCall, after: Sequence[int], more: Sequence[int]) -> None:
        args = call.args[:1] if kind_of(call.node.op) == "Identity" else call.args
        free, producers = len(args), {number}
        for place, value in enumerate(args):
            position = position_of(call.node.op, place)
            free = max(free, position + 1)
            if value.weight >= 0:
                self.builder.use_weight(value.weight, number, position)
            elif value.tensor >= 0:
                self.builder.add_edge(value.tensor, number, position)
                producers.add(value.maker)
        for weight in more:
            self.builder.use_weight(weight, number, free)
            free += 1
        for op in dict.fromkeys(after):
            if op not in producers:
                self.builder.add_edge(self._control_tensor(op), number, free)
                free += 1

    def _control_tensor(self, op: int) -> int:
        """The empty tensor through which other ops wait for an op."""
        if op not in self.controls:
            self.controls[op] = self._add_tensor(op, Type("bool", (0,)), f"^{self.ops[op].name}")
        return self.controls[op]


def check_size(name: str, shape: Shape, dtype: str, *, most: int = _MAX_BYTES) -> None:
    """Raise ModelFileError for a shape of more than `most` bytes, which no machine can hold."""
    if bytes_of(shape, dtype) > most or max(shape, default=0) > _MAX_BYTES:
        shown = "×".join(map(str, shape[:8]))
        raise ModelFileError(f"the value of {name!r} has the absurd shape {shown}", remedy="check its dimensions")


def has_gradient_scope(name: str) -> bool:
    """Whether a scope in the name is one in which TensorFlow builds gradients."""
    return any(part.rstrip("_0123456789") in _GRADIENT_SCOPES for part in name.split("/")[:-1])


def mark_backward(graph: Graph, backward: list[bool]) -> Graph:
    """Mark the ops `backward` [n_ops], and every op that depends on one of them, as backward ops."""
    producer = graph.tensors.producer.tolist()
    for op in range(graph.n_ops):
        makers = (producer[tensor] for tensor in graph.inputs_of(op).tolist())
        backward[op] = backward[op] or any(maker >= 0 and backward[maker] for maker in makers)
    return replace(graph, ops=replace(graph.ops, backward=np.array(backward, np.bool_)))


def _compute_dtype(args: Sequence[AbstractValue], types: Sequence[Type]) -> str:
    """The first floating type among arguments and results, or else the type of the first result."""
    dtypes = [*(value.dtype for value in args), *(result.dtype for result in types)]
    return first_floating(dtypes) or (types[0].dtype if types else "unknown")
