"""An IR net → a Graph with one op per layer, including inputs, constants and outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph, Source
from placewise.readers.base import FLOATING, first_floating, module_path, unique_name
from placewise.readers.openvino.attributes import attributes_of
from placewise.readers.openvino.kinds import CONSTANT, kind_of, position_of
from placewise.readers.openvino.net import IrNet, NetLayer, dtype_of, normalize_type
from placewise.readers.openvino.structure import Sources, constants, location_of

_PACKED = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2", "float8_e4m3", "float8_e5m2", "float4_e2m1"})
_PACKED_SUFFIX = "_compressed"  # appended by openvino.save_model to compressed weights
_STATES = {"ReadValue", "Assign"}

_PRODUCTS = frozenset({"Convolution", "GroupConvolution", "ConvolutionBackpropData", "MatMul"})
_TRANSPARENT = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Concat"})
_DEQUANTIZERS = frozenset({"Convert", "Subtract", "Multiply"})
_EIGHT_BITS = frozenset({"int8", "uint8"})
_MAX_LEVELS = 256
_MAX_STEPS = 6
_MODULE, _VALUE = "__module.", "self."
_PART = "/WithoutBiases"  # a layer of a converted ONNX Gemm
_GENERATED = re.compile(r"[A-Za-z]+_\d+(_compressed)?")


@dataclass(slots=True)
class _IrGraphDraft:
    """A graph under construction: the builder, tensors by layer, used names, storages and variables."""

    builder: GraphBuilder = field(default_factory=GraphBuilder)
    tensors: list[list[int]] = field(default_factory=list)
    weight_names: set[str] = field(default_factory=set)
    storage: dict[tuple[int, int], int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)


def build_graph(net: IrNet, sources: Sources, source: Source) -> Graph:
    """The raw view of `net`; `origin` holds layer ids."""
    draft = _IrGraphDraft()
    names, scopes = _unique_names(net.layers), scopes_of(net.layers, sources)
    read = {producer for producer, _ in sources.values()}
    for row, layer in enumerate(net.layers):
        op = draft.builder.add_op(
            names[row],
            kind_of(layer),
            scope=scopes[row],
            attributes=attributes_of(layer) | _decompression_attribute(net, sources, row),
            dtype=compute_dtype(net, sources, row),
            origin=(layer.id,),
            **_state_options(draft, layer),
        )
        ends = layer.type == "Assign" and row not in read  # its output is its input
        places = range(0 if ends else len(layer.outputs))
        draft.tensors.append([_add_tensor(draft, op, names[row], layer, place) for place in places])
    for row, layer in enumerate(net.layers):
        for place in range(len(layer.inputs)):
            producer, output = sources[row, place]
            draft.builder.add_edge(draft.tensors[producer][output], row, position_of(layer, place))
        for offset, constant in enumerate([layer] if layer.type == CONSTANT else constants(layer)):
            inside = "" if constant is layer else f"{names[row]}/"
            own = (constant.name or names[row]).removesuffix(_PACKED_SUFFIX)
            weight = _add_weight(draft, constant, inside + own)
            draft.builder.use_weight(weight, row, len(layer.inputs) + offset)
    return draft.builder.build(source)


def _unique_names(layers: list[NetLayer]) -> list[str]:
    """A unique name per layer: its own, with a number if it has none or shares it."""
    taken: set[str] = set()
    return [unique_name(layer.name or f"{layer.type}_{layer.id}", taken) for layer in layers]


def _add_tensor(draft: _IrGraphDraft, op: int, name: str, layer: NetLayer, place: int) -> int:
    port = layer.outputs[place]
    label = name if len(layer.outputs) == 1 else f"{name}:{place}"
    return draft.builder.add_tensor(op, shape=port.dims, dtype=port.dtype, nbytes=port.nbytes, name=label)


def _add_weight(draft: _IrGraphDraft, layer: NetLayer, name: str) -> int:
    """Add a constant as a weight; constants at the same location in the .bin file are tied."""
    port, location, number = layer.outputs[0], location_of(layer), len(draft.weight_names)
    stored = normalize_type(layer.data.get("element_type", port.element_type))
    nbytes = location[1] if location is not None else max(bytes_of(port.dims, dtype_of(stored)), 0)
    return draft.builder.add_weight(
        unique_name(name, draft.weight_names),
        shape=port.dims,
        dtype=dtype_of(stored),
        nbytes=nbytes,
        storage=number if location is None else draft.storage.setdefault(location, number),
    )


def _decompression_attribute(net: IrNet, sources: Sources, row: int) -> dict[str, Any]:
    """Mark a conversion that only decompresses a weight; programs keep such weights compressed."""
    layer = net.layers[row]
    if layer.type != "Convert":
        return {}
    source = _find_source(sources, row, 0)
    if source is None:
        return {}
    before = net.layers[source]
    packed = before.type == CONSTANT and before.outputs[0].dtype in _PACKED
    unpacks = packed and layer.outputs[0].dtype.startswith(FLOATING)
    return {"decompression": 1} if unpacks or "decompression" in layer.notes else {}


def _state_options(draft: _IrGraphDraft, layer: NetLayer) -> dict[str, Any]:
    """A variable stays on one device: the reads and assignments of a variable form a group with its bytes."""
    if layer.type not in _STATES:
        return {}
    variable = layer.data.get("variable_id", layer.name)
    group = draft.states.setdefault(variable, len(draft.states))
    nbytes = layer.outputs[0].nbytes if layer.type == "ReadValue" and layer.outputs else 0
    return {"group": group, "state_bytes": max(nbytes, 0)}


def compute_dtype(net: IrNet, sources: Sources, row: int) -> str:
    """The first floating-point type of inputs and outputs, else that of the first output.

    Products of quantized inputs (FakeQuantize of up to 256 levels) compute in int8.
    """
    layer = net.layers[row]
    if layer.type in _PRODUCTS:
        factors = (_find_source(sources, row, place) for place in (0, 1))
        if all(_is_quantized(net, sources, factor) for factor in factors):
            return "int8"
    dtypes = [port.dtype for port in (*layer.inputs, *layer.outputs)]
    return first_floating(dtypes) or next((port.dtype for port in layer.outputs), dtypes[0] if dtypes else "unknown")


def _find_source(sources: Sources, row: int, place: int) -> int | None:
    """The layer that an input of a layer comes from; None for a layer that has no such input."""
    return sources.get((row, place), (None, 0))[0]


def _is_quantized(net: IrNet, sources: Sources, row: int | None) -> bool:
    """Whether an output has eight bits, in the file or by FakeQuantize, looking through transparent layers."""
    unpacked = False
    for _ in range(_MAX_STEPS):
        if row is None:
            return False
        layer = net.layers[row]
        if layer.type == "FakeQuantize":
            return not unpacked and _levels(layer) <= _MAX_LEVELS
        if layer.type == CONSTANT:
            return layer.outputs[0].dtype in _EIGHT_BITS
        if layer.type not in _TRANSPARENT | _DEQUANTIZERS:
            return False
        unpacked |= layer.type in _DEQUANTIZERS
        row = _find_source(sources, row, 0)
    return False


def _levels(layer: NetLayer) -> int:
    levels = layer.data.get("levels", "")
    return int(levels) if levels.isascii() and levels.isdigit() and len(levels) < 10 else _MAX_LEVELS + 1


def scope_of(name: str) -> str:
    """``__module.layer1.0.conv1/aten::_convolution/Convolution`` and ``/layer1/conv1/Conv`` → ``layer1.0.conv1``."""
    if name.startswith(_MODULE):
        return name.removeprefix(_MODULE).split("/", 1)[0]
    if name.startswith(_VALUE):
        return name.removeprefix(_VALUE).rpartition(".")[0]
    return "" if "::" in name else module_path(name.removesuffix(_PART))


def scopes_of(layers: Sequence[NetLayer], sources: Sources) -> list[str]:
    """The module path of every layer; generated layers take that of their reader."""
    scopes = [scope_of(layer.name) for layer in layers]
    is_named = [
        bool(scope) or not _GENERATED.fullmatch(layer.name) for layer, scope in zip(layers, scopes, strict=True)
    ]
    for (reader, _), (producer, _) in sorted(sources.items(), reverse=True):
        if not is_named[producer] and scopes[reader]:
            scopes[producer] = scopes[reader]
    return scopes
