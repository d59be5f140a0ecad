"""Symbolic dimensions of a model, and replacing them by numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx

from placewise._util.text import dim_options
from placewise.errors import ModelFileError
from placewise.readers.onnx.types import dims_of, subgraphs

Sizes = Mapping[str, Mapping[int, int]]
"""Numbers for data-dependent dimensions, by value and axis."""


def set_dims(graph: onnx.GraphProto, dims: Mapping[str, int]) -> None:
    """Replace the symbolic dimensions named in `dims` by numbers, everywhere in `graph`.

    A dimension of an input with neither number nor name is called ``input:axis``; a data-dependent one, ``value:axis``
    (`sizes_from_dims`). Raises ModelFileError for unknown names, numbers below 1, and input dimensions that stay open.
    """
    inputs = list(model_inputs(graph))
    for value in inputs:
        _name_anonymous(value)
    infos = list(_value_infos(graph))
    known = _symbols_of(infos)
    outputs = {name for node in graph.node for name in node.output}
    for name, number in dims.items():
        if name not in known and _split_axis(name)[0] not in outputs:
            symbols = _symbols_of(inputs) or known  # exporters name inner dimensions, too, which nobody need give
            shown = ", ".join(map(repr, symbols[:8])) or "none: all its shapes are fixed"
            raise ModelFileError(f"the model has no dimension {name!r}", remedy=f"its symbolic dimensions are {shown}")
        if number < 1:
            raise ModelFileError(f"dimension {name!r} is {number}", remedy="give a number from 1")
    for value in infos:
        for dim in dims_of(value.type):
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
    _require_known_inputs(inputs)


def _symbols_of(values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    return list(dict.fromkeys(dim.dim_param for value in values for dim in dims_of(value.type) if dim.dim_param))


def sizes_from_dims(dims: Mapping[str, int]) -> Sizes:
    """The entries of `dims` for inner values (``{"found:1": 40}``), by value and axis."""
    sizes: dict[str, dict[int, int]] = {}
    for name, number in dims.items():
        value, axis = _split_axis(name)
        if value:
            sizes.setdefault(value, {})[axis] = number
    return sizes


def _split_axis(name: str) -> tuple[str, int]:
    value, _, axis = name.rpartition(":")
    return (value, int(axis)) if axis.isdecimal() and len(axis) < 3 else ("", 0)


def model_inputs(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """The inputs that are not initializers."""
    initializers = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return (value for value in graph.input if value.name not in initializers)


def _name_anonymous(value: onnx.ValueInfoProto) -> None:
    for axis, dim in enumerate(dims_of(value.type)):
        if not dim.dim_param and (not dim.HasField("dim_value") or dim.dim_value < 0):
            dim.dim_param = f"{value.name}:{axis}"


def _require_known_inputs(inputs: list[onnx.ValueInfoProto]) -> None:
    missing: dict[str, str] = {}
    for value in inputs:
        kind = value.type.WhichOneof("value")
        if kind is None or (kind == "tensor_type" and not value.type.tensor_type.HasField("shape")):
            raise ModelFileError(f"input {value.name!r} has no shape", remedy="export the model again, with shapes")
        for dim in dims_of(value.type):
            if dim.dim_param:
                missing.setdefault(dim.dim_param, value.name)
    if missing:
        verb, names = ("is", "dimension") if len(missing) == 1 else ("are", "dimensions")
        where = f"input {next(iter(missing.values()))!r}" if len(set(missing.values())) == 1 else "its inputs"
        raise ModelFileError(
            f"{names} {', '.join(map(repr, missing))} of {where} {verb} symbolic",
            remedy="give a number: " + dim_options(missing),
        )


def _value_infos(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Inputs, outputs and value_info of `graph` and all its subgraphs."""
    yield from graph.input
    yield from graph.output
    yield from graph.value_info
    for node in graph.node:
        for body in subgraphs(node):
            yield from _value_infos(body)
