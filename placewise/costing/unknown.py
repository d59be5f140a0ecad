"""Unknown sizes: the op from which on they are unknown, and what helps."""

from __future__ import annotations

from collections.abc import Container

from placewise._util.text import dim_options
from placewise.model.graph import Graph

BY_DATA = frozenset((
    "NonZero", "Compress", "Unique", "NonMaxSuppression", "StringSplit", "ImageDecoder", "Loop", "If", "Scan",
    "Reshape", "Expand", "Range", "Slice", "Split", "ConstantOfShape", "Resize", "Upsample", "Tile", "Pad", "TopK",
    "OneHot", "MaxUnpool", "CenterCropPad", "AffineGrid", "Squeeze",
))  # fmt: skip
"""Kinds whose results are as large as values say that may be known only when the model runs."""


_REMEDIES = {
    "onnx": "add value_info for {what} to the model, or export it with fixed sizes",
    "tensorflow": "save the model with _output_shapes for {what}, or give its inputs fixed shapes (--dim)",
    "openvino": "fix the shapes with model.reshape and save the model again",
    "torch": "export the model again with fixed shapes",
}
"""By format, up to the first dash, what tells the shapes of an op's outputs."""


def find_unknown_origin(graph: Graph, op: int) -> int:
    """The op, `op` itself or one before it, that makes a result of unknown size from inputs of known size.

    −1 if an input of the model has an unknown size already.
    """
    while op >= 0:
        before = next((tensor for tensor in graph.inputs_of(op).tolist() if is_unknown(graph, tensor)), None)
        if before is None:
            break
        op = int(graph.tensors.producer[before])
    return op


def is_unknown(graph: Graph, tensor: int) -> bool:
    """Whether the size of a tensor, or one of its dimensions, is unknown."""
    return bool(graph.tensors.bytes[tensor] < 0) or min(graph.tensors.shape[tensor], default=0) < 0


def explain_unknown(graph: Graph, op: int, known_kinds: Container[str]) -> tuple[str, str]:
    """Why a size that `op` needs is unknown, and what to do; `known_kinds` are those that are not foreign."""
    origin = find_unknown_origin(graph, op)
    if origin < 0:
        return "an input of the model is open", "give the model's open dimensions, or export it with fixed ones"
    name, kind = graph.ops.name[origin], graph.ops.kind[origin]
    place = "this op" if origin == op else f"op {name!r} ({kind})"
    if "::" in kind or kind not in known_kinds:
        return f"what {place} makes of its inputs is not known", _remedy(graph, "its outputs")
    if kind in BY_DATA:
        return f"how much {place} makes depends on its data", _remedy(graph, "its outputs") + _sizes(graph, origin)
    return f"no shape can be inferred for the outputs of {place}", _remedy(graph, "them")


def _sizes(graph: Graph, op: int) -> str:
    """How the user gives the sizes of an op's results without another model, where the reader knows the option."""
    if graph.source is None or graph.source.format != "onnx":
        return ""
    tensors = graph.tensors
    open_dims = [(row, axis) for row in graph.outputs_of(op) for axis, dim in enumerate(tensors.shape[row]) if dim < 0]
    said = dim_options((f"{tensors.name[row]}:{axis}" for row, axis in open_dims), 100)
    return f", or say how much: {said}" if said else ""


def _remedy(graph: Graph, what: str) -> str:
    form = "" if graph.source is None else graph.source.format.partition("-")[0]
    return _REMEDIES.get(form, "give the shapes of {what}, or export the model with fixed sizes").format(what=what)
