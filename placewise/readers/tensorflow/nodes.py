"""Nodes as the rest of the reader sees them, with typed access to their attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from placewise.errors import ModelFileError
from placewise.readers.tensorflow.types import Shape, dtype_of, is_handle, shape_of


class OutputRef(NamedTuple):
    """Output `port` of a node (or argument 0 of a function)."""

    node: str
    port: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph or a function; `origin` is its index in the file's graph, −1 inside functions.

    `loop` is the loop that replaces a frame of TF1 control flow.
    """

    name: str
    op: str
    inputs: tuple[OutputRef, ...]
    controls: tuple[str, ...] = ()
    attr: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    origin: int = -1
    loop: Loop | None = None

    def whole(self, name: str, default: int = 0) -> int:
        return int(self.attr[name].i) if name in self.attr else default

    def flag(self, name: str) -> bool:
        return bool(self.attr[name].b) if name in self.attr else False

    def text(self, name: str, default: str = "") -> str:
        return self.attr[name].s.decode(errors="replace") if name in self.attr else default

    def ints(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        return tuple(self.attr[name].list.i) if name in self.attr else default

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(item.decode(errors="replace") for item in self.attr[name].list.s) if name in self.attr else ()

    def dtype(self, name: str, default: str = "unknown") -> str:
        return dtype_of(self.attr[name].type) if name in self.attr else default

    def is_handle(self, name: str) -> bool:
        return name in self.attr and is_handle(self.attr[name].type)

    def shape(self, name: str) -> Shape | None:
        """A shape; None if it is missing or of unknown rank."""
        if name not in self.attr or self.attr[name].WhichOneof("value") != "shape":
            return None
        return shape_of(self.attr[name].shape)

    def shapes(self, name: str) -> list[Shape | None]:
        return [shape_of(shape) for shape in self.attr[name].list.shape] if name in self.attr else []

    def types(self, name: str) -> list[int]:
        """The DataTypes of a list, as numbers."""
        return list(self.attr[name].list.type) if name in self.attr else []

    def function(self, name: str) -> str:
        """The name of a function; "" for none."""
        return str(self.attr[name].func.name) if name in self.attr else ""


@dataclass(frozen=True, slots=True)
class FunctionBody:
    """Nodes in topological order, with the names of the arguments and the values that are returned."""

    name: str
    args: tuple[str, ...]
    nodes: tuple[Node, ...]
    returns: tuple[OutputRef, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A while loop: as long as `cond` of the state is true, `body` maps the state to the next state.

    The inputs of a node with a loop are the `n_state` values of the state, then the loop invariants, in the order of
    the arguments of both bodies.
    """

    cond: FunctionBody
    body: FunctionBody
    n_state: int


def parse_nodes(protos: Sequence[Any]) -> list[Node]:
    """Parse the nodes of a graph. Raises ModelFileError for nodes without name or op, and for duplicate names."""
    nodes, seen = [], set[str]()
    for place, proto in enumerate(protos):
        if not proto.name or not proto.op:
            raise ModelFileError(
                f"node {place} has no {'op' if proto.name else 'name'}", remedy="export the model again"
            )
        if proto.name in seen:
            raise ModelFileError(f"two nodes have the name {proto.name!r}", remedy="give every node its own name")
        seen.add(proto.name)
        inputs, controls = [], []
        for text in proto.input:
            if text.startswith("^"):
                controls.append(text[1:])
            else:
                inputs.append(parse_reference(text, proto.name))
        nodes.append(Node(proto.name, proto.op, tuple(inputs), tuple(controls), proto.attr, proto.device, place))
    return nodes


def parse_reference(text: str, reader: str) -> OutputRef:
    """Parse ``name:port``, or ``name`` for port 0; `reader` names the node in errors. Raises ModelFileError."""
    name, colon, port = text.rpartition(":")
    if not colon:
        return OutputRef(text, 0)
    if not port.isdecimal() or len(port) > 6:
        raise ModelFileError(f"reads {text!r}", where=f"node {reader!r}", remedy="inputs are written name:port")
    return OutputRef(name, int(port))
