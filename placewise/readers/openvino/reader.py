"""read_openvino: from an IR file to an imported model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from placewise._util.text import dim_options
from placewise.errors import ModelFileError, locate_errors
from placewise.model.graph import Source
from placewise.readers.base import NO_DIMS, ImportedModel, describe_unknown_shapes
from placewise.readers.openvino.convert import build_graph
from placewise.readers.openvino.kinds import INPUT
from placewise.readers.openvino.net import IrNet, NetLayer
from placewise.readers.openvino.parse import parse_ir
from placewise.readers.openvino.shapes import BY_DATA, Dims, ShapeMismatch, infer_outputs
from placewise.readers.openvino.structure import Sources, check_version, refuse_size, sources_of


def looks_like_openvino(start: bytes) -> bool:
    """Whether the start of a file looks like an IR: XML whose first element is <net>."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    return text.startswith(b"<net") or (text.startswith((b"<?xml", b"<!--")) and b"<net" in text)


def read_openvino(path: Path, *, dims: Mapping[str, int] = NO_DIMS) -> ImportedModel:
    """Read the XML of an OpenVINO IR (version 10 or 11) as the raw view: one op per layer.

    Inputs, constants and outputs are ops of the kinds Input, Constant and Output; the folded view replaces them by
    tensors and weights. The .bin file is never opened: sizes of constants come from the XML, and constants at the same
    location are tied. `origin` holds layer ids. If, Loop and TensorIterator stay one op, which uses the constants in
    their bodies. `dims` sets open dimensions: ``{"input_ids:1": 128}`` one dimension of one input, ``{"batch": 8}`` the
    first dimension of all inputs in which it is open.

    Raises ModelFileError or GraphError, naming the file.
    """
    with locate_errors(path):
        net, sha256 = parse_ir(path)
        check_version(net)
        sources = sources_of(net)
        set_dims(net, sources, dims)
        source = Source(str(path), sha256, "openvino", options={"dims": dict(dims)}, view="raw")
        graph = build_graph(net, sources, source)
    return ImportedModel(graph, warnings=tuple(describe_unknown_shapes(graph)))


BATCH = "batch"
"""The name for the first dimension of all inputs in which it is open."""
_RESHAPE = "fix the shapes with model.reshape and openvino.save_model, or with ovc --input"

OpenDim = tuple[NetLayer, int]


def set_dims(net: IrNet, sources: Sources, dims: Mapping[str, int]) -> None:
    """Set the open dimensions of inputs, and all dimensions that follow from them.

    Raises ModelFileError for unknown names, for inputs that stay open, and for shapes that depend on values.
    """
    open_dims = _open_dims(net)
    _check_dims(open_dims, dims)
    if not open_dims:
        return
    missing = [name for name in open_dims if name not in dims and not (BATCH in dims and name.endswith(":0"))]
    if missing:
        verb, noun = ("is", "dimension") if len(missing) == 1 else ("are", "dimensions")
        raise ModelFileError(
            f"the {noun} {', '.join(map(repr, missing[:8]))} {verb} open",
            remedy="give a number: " + dim_options(missing[:8]),
        )
    declared = [[port.dims for port in layer.outputs] for layer in net.layers]
    for name, (layer, axis) in open_dims.items():
        port = layer.outputs[0]
        port.dims = (*port.dims[:axis], dims.get(name, dims.get(BATCH, 0)), *port.dims[axis + 1 :])
        refuse_size(layer, port)
    _propagate(net, sources, declared)


def _open_dims(net: IrNet) -> dict[str, OpenDim]:
    return {
        f"{layer.name}:{axis}": (layer, axis)
        for layer in net.layers
        if layer.type == INPUT
        for axis, dim in enumerate(layer.outputs[0].dims)
        if dim < 0
    }


def _check_dims(open_dims: Mapping[str, OpenDim], dims: Mapping[str, int]) -> None:
    has_batch = any(name.endswith(":0") for name in open_dims)
    for name, number in dims.items():
        if name not in open_dims and not (name == BATCH and has_batch):
            shown = ", ".join(map(repr, list(open_dims)[:8])) or "none: all its shapes are fixed"
            also = f", and {BATCH!r} for all that end in :0" if has_batch else ""
            problem = f"the model has no dimension {name!r}"
            raise ModelFileError(problem, remedy=f"its open dimensions are {shown}{also}")
        if number < 1:
            raise ModelFileError(f"dimension {name!r} is {number}", remedy="give a number from 1")


def _propagate(net: IrNet, sources: Sources, declared: list[list[Dims]]) -> None:
    """Infer the shapes of all layers in the order of the file, which is an execution order."""
    for row, layer in enumerate(net.layers):
        if layer.type == INPUT:
            continue
        producers = [sources[row, place] for place in range(len(layer.inputs))]
        inputs = [net.layers[source].outputs[output].dims for source, output in producers]
        try:
            shapes = infer_outputs(layer, inputs, [declared[source][output] for source, output in producers])
        except ShapeMismatch:
            shown_shapes = ", ".join("×".join(map(str, dims)) or "scalar" for dims in inputs)
            problem = f"the inputs of {layer.place} do not fit together, or not with what follows: {shown_shapes}"
            raise ModelFileError(problem, remedy=f"check the numbers of --dim, or {_RESHAPE}") from None
        for port, dims in zip(layer.inputs, inputs, strict=True):
            port.dims = dims
        for port, dims in zip(layer.outputs, shapes, strict=True):
            port.dims = dims
            refuse_size(layer, port)
            if -1 in dims and layer.type not in BY_DATA and all(-1 not in source for source in inputs):
                raise ModelFileError(
                    f"the output shape of {layer.place} depends on values, not only on open dimensions",
                    remedy=_RESHAPE,
                )
