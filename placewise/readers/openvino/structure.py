"""The producer of every input of an IR net, and structural checks."""

from __future__ import annotations

from collections.abc import Iterator

from placewise.errors import ModelFileError
from placewise.model.dtypes import bytes_of
from placewise.readers.openvino.kinds import CONSTANT, INPUT
from placewise.readers.openvino.net import IrNet, NetLayer, Port, nbytes_of, normalize_type
from placewise.readers.openvino.parse import LARGEST_NUMBER, parse_number

_REMEDY = "convert the model again, with ovc or openvino.save_model"
OLDEST_VERSION, NEWEST_VERSION = 10, 11
_OF_FEW_BITS = frozenset({"u1", "u2", "u3", "u4", "u6", "i4", "nf4", "f4e2m1"})
_PADDING = 3
"""Bytes: eight 3-bit numbers, or four 6-bit numbers, fill three bytes."""

Sources = dict[tuple[int, int], tuple[int, int]]
"""(layer, input) → (layer, output), all as list indices."""


def check_version(net: IrNet) -> None:
    """Raise ModelFileError for an empty net or an unsupported IR version."""
    if not OLDEST_VERSION <= net.version <= NEWEST_VERSION:
        age = "too old" if net.version < OLDEST_VERSION else "newer than this reader"
        problem = f"IR version {net.version} is {age}; it knows {OLDEST_VERSION} and {NEWEST_VERSION}"
        raise ModelFileError(problem, remedy="convert the model again, with an OpenVINO of 2022.1 to 2026")
    if not net.layers:
        raise ModelFileError("the net has no layers", remedy=_REMEDY)


def sources_of(net: IrNet) -> Sources:
    """The source of every input. Raises ModelFileError unless each has exactly one edge from an existing port."""
    layers = {layer.id: row for row, layer in enumerate(net.layers)}
    if len(layers) < len(net.layers):
        twice = next(layer.id for row, layer in enumerate(net.layers) if layers[layer.id] != row)
        raise ModelFileError(f"two layers have the id {twice}", remedy=_REMEDY)
    inputs = [_index_ports(layer, layer.inputs) for layer in net.layers]
    outputs = [_index_ports(layer, layer.outputs) for layer in net.layers]
    sources: Sources = {}
    for source, output, target, entry in net.edges:
        if source not in layers or target not in layers:
            missing = target if source in layers else source
            raise ModelFileError(f"an edge ends at layer {missing}, which does not exist", remedy=_REMEDY)
        producer, consumer = layers[source], layers[target]
        if output not in outputs[producer]:
            raise ModelFileError(f"{net.layers[producer].place} has no output port {output}", remedy=_REMEDY)
        if entry not in inputs[consumer]:
            raise ModelFileError(f"{net.layers[consumer].place} has no input port {entry}", remedy=_REMEDY)
        end = consumer, inputs[consumer][entry]
        if end in sources:
            raise ModelFileError(f"input port {entry} of {net.layers[consumer].place} has two edges", remedy=_REMEDY)
        sources[end] = producer, outputs[producer][output]
    _check_complete(net, sources)
    return sources


def _index_ports(layer: NetLayer, ports: list[Port]) -> dict[int, int]:
    index_of = {port.id: place for place, port in enumerate(ports)}
    if len(index_of) < len(ports):
        raise ModelFileError(f"{layer.place} has two ports with one id", remedy=_REMEDY)
    return index_of


def _check_complete(net: IrNet, sources: Sources) -> None:
    for row, layer in enumerate(net.layers):
        for place, port in enumerate(layer.inputs):
            if (row, place) not in sources:
                raise ModelFileError(f"input port {port.id} of {layer.place} has no edge", remedy=_REMEDY)
            producer, output = sources[row, place]
            _check_edge(net.layers[producer], net.layers[producer].outputs[output], layer, port)
        for port in (*layer.inputs, *layer.outputs):
            refuse_size(layer, port)
        if layer.type in (CONSTANT, INPUT) and (layer.inputs or len(layer.outputs) != 1):
            raise ModelFileError(f"{layer.place} must have one output port and nothing else", remedy=_REMEDY)
        for constant in [layer] if layer.type == CONSTANT else constants(layer):
            _check_bytes(constant)


def _check_edge(maker: NetLayer, producer: Port, reader: NetLayer, consumer: Port) -> None:
    """Check that both ends of an edge have the same shape; open dimensions and empty shapes match anything."""
    if producer.dims and consumer.dims:
        alike = len(producer.dims) == len(consumer.dims)
        if not alike or any(a != b and -1 not in (a, b) for a, b in zip(producer.dims, consumer.dims, strict=True)):
            shapes = ("×".join(map(str, port.dims)) for port in (consumer, producer))
            problem = "{0} reads {2}, but {1} outputs {3}".format(reader.place, maker.place, *shapes)
            raise ModelFileError(problem, remedy=_REMEDY)


def _check_bytes(constant: NetLayer) -> None:
    """Check the size of a constant against its shape and element type; sub-byte types may be padded."""
    location = location_of(constant)
    if location is None:
        return
    for port in constant.outputs:
        stored = normalize_type(constant.data.get("element_type", port.element_type))
        nbytes, size = nbytes_of(port.dims, stored), location[1]
        if nbytes >= 0 and not nbytes <= size <= nbytes + (_PADDING if stored in _OF_FEW_BITS else 0):
            problem = f"{constant.place} has {size} bytes, but its shape and element type need {nbytes}"
            raise ModelFileError(problem, remedy=_REMEDY)


def refuse_size(layer: NetLayer, port: Port) -> None:
    """Raise ModelFileError for an absurdly large tensor."""
    if bytes_of(tuple(map(abs, port.dims)), "float64") > LARGEST_NUMBER:
        raise ModelFileError(f"{layer.place} has the absurd shape {list(port.dims)}", remedy=_REMEDY)


def constants(layer: NetLayer) -> Iterator[NetLayer]:
    """The constants in the bodies of a layer, at any depth."""
    for body in layer.bodies:
        for inner in body.layers:
            if inner.type == CONSTANT:
                yield inner
            yield from constants(inner)


def location_of(layer: NetLayer) -> tuple[int, int] | None:
    """The (offset, size) of a constant in the .bin file; None if not given."""
    offset, size = (layer.data.get(key) for key in ("offset", "size"))
    if offset is None or size is None:
        return None
    return parse_number(offset, f"the offset of {layer.place}"), parse_number(size, f"the size of {layer.place}")
