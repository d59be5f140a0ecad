"""A net of IR → a Graph, one op per layer: inputs, constants and outputs are ops too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph, Source
from placewise.readers.base import unique_name
from placewise.readers.openvino.attributes import attributes_of
from placewise.readers.openvino.kinds import CONSTANT, kind_of, position_of
from placewise.readers.openvino.names import scopes_of
from placewise.readers.openvino.net import Layer, Net, dtype_of, plain_type
from placewise.readers.openvino.structure import Sources, constants, location_of
from placewise.readers.openvino.types import FLOATING, compute_dtype

_PACKED = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2", "float8_e4m3", "float8_e5m2", "float4_e2m1"})
_PACKED_SUFFIX = "_compressed"  # behind the name of a weight that openvino.save_model stored in fewer bits
_STATES = {"ReadValue", "Assign"}


@dataclass(slots=True)
class _Draft:
    """A graph in the making: the builder, the tensors of each layer, and what is taken."""

    builder: GraphBuilder = field(default_factory=GraphBuilder)
    tensors: list[list[int]] = field(default_factory=list)
    weight_names: set[str] = field(default_factory=set)
    storage: dict[tuple[int, int], int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)


def to_graph(net: Net, sources: Sources, source: Source) -> Graph:
    """The raw view of `net`; `origin` holds the ids of layers."""
    draft = _Draft()
    names, scopes = _names(net.layers), scopes_of(net.layers, sources)
    read = {made for made, _ in sources.values()}
    for row, layer in enumerate(net.layers):
        op = draft.builder.add_op(
            names[row],
            kind_of(layer),
            scope=scopes[row],
            attributes=attributes_of(layer) | _decompression(net, sources, row),
            dtype=compute_dtype(net, sources, row),
            origin=(layer.id,),
            **_state(draft, layer),
        )
        ends = layer.type == "Assign" and row not in read  # what it hands on is what it was given
        places = range(0 if ends else len(layer.outputs))
        draft.tensors.append([_add_tensor(draft, op, names[row], layer, place) for place in places])
    for row, layer in enumerate(net.layers):
        for place in range(len(layer.inputs)):
            made, output = sources[row, place]
            draft.builder.add_edge(draft.tensors[made][output], row, position_of(layer, place))
        for offset, constant in enumerate([layer] if layer.type == CONSTANT else constants(layer)):
            inside = "" if constant is layer else f"{names[row]}/"
            own = (constant.name or names[row]).removesuffix(_PACKED_SUFFIX)
            weight = _add_weight(draft, constant, inside + own)
            draft.builder.use_weight(weight, row, len(layer.inputs) + offset)
    return draft.builder.build(source)


def _names(layers: list[Layer]) -> list[str]:
    """A distinct name per layer: its own, with a number where it has none or shares it."""
    taken: set[str] = set()
    return [unique_name(layer.name or f"{layer.type}_{layer.id}", taken) for layer in layers]


def _add_tensor(draft: _Draft, op: int, name: str, layer: Layer, place: int) -> int:
    port = layer.outputs[place]
    label = name if len(layer.outputs) == 1 else f"{name}:{place}"
    return draft.builder.add_tensor(op, shape=port.dims, dtype=port.dtype, nbytes=port.nbytes, name=label)


def _add_weight(draft: _Draft, layer: Layer, name: str) -> int:
    """A constant as a weight; constants at one place of the .bin file are one weight, tied."""
    port, location, number = layer.outputs[0], location_of(layer), len(draft.weight_names)
    stored = plain_type(layer.data.get("element_type", port.element_type))
    nbytes = location[1] if location is not None else max(bytes_of(port.dims, dtype_of(stored)), 0)
    return draft.builder.add_weight(
        unique_name(name, draft.weight_names),
        shape=port.dims,
        dtype=dtype_of(stored),
        nbytes=nbytes,
        storage=number if location is None else draft.storage.setdefault(location, number),
    )


def _decompression(net: Net, sources: Sources, row: int) -> dict[str, Any]:
    """Marks a conversion that only unpacks a weight, which programs keep as the file holds it."""
    layer = net.layers[row]
    if layer.type != "Convert":
        return {}
    before = net.layers[sources[row, 0][0]]
    packed = before.type == CONSTANT and before.outputs[0].dtype in _PACKED
    unpacks = packed and layer.outputs[0].dtype.startswith(FLOATING)
    return {"decompression": 1} if unpacks or "decompression" in layer.notes else {}


def _state(draft: _Draft, layer: Layer) -> dict[str, Any]:
    """A variable stays where it is read and assigned: one group, and the bytes of its value."""
    if layer.type not in _STATES:
        return {}
    variable = layer.data.get("variable_id", layer.name)
    group = draft.states.setdefault(variable, len(draft.states))
    held = layer.outputs[0].nbytes if layer.type == "ReadValue" and layer.outputs else 0
    return {"group": group, "state_bytes": max(held, 0)}
