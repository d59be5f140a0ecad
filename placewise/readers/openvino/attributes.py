"""The <data> of a layer → attributes, with ONNX names where ONNX has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from placewise.readers.openvino.kinds import CONSTANT, INPUT
from placewise.readers.openvino.net import NetLayer, dtype_of, normalize_type

LONGEST_LIST = 1_000
LONGEST_TEXT = 1_000
_NUMBER = re.compile(r"[+-]?\d{1,15}")
_DECIMAL = re.compile(r"[+-]?(\d{1,20}\.?\d{0,20}|\.\d{1,20})([eE][+-]?\d{1,2})?")
_NAMES: Mapping[str, str] = {
    "kernel": "kernel_shape", "transpose_a": "transA", "transpose_b": "transB", "causal": "is_causal",
}  # fmt: skip
_MODES: Mapping[str, str] = {
    "linear_onnx": "linear", "bilinear_pillow": "linear", "bicubic_pillow": "cubic", "bilinear": "linear",
    "bicubic": "cubic",
}  # fmt: skip


def attributes_of(layer: NetLayer) -> dict[str, Any]:
    """Numbers, lists of numbers and strings, and what follows from shapes alone: layouts, permutations, heads."""
    if layer.type in (INPUT, CONSTANT):
        return {}
    attributes = {_NAMES.get(key, key): _parse_value(text) for key, text in layer.data.items()}
    if "pads_begin" in attributes and "pads_end" in attributes:
        attributes["pads"] = (*_as_tuple(attributes.pop("pads_begin")), *_as_tuple(attributes.pop("pads_end")))
    if "destination_type" in attributes:
        attributes["to"] = dtype_of(normalize_type(str(attributes.pop("destination_type"))))
    if layer.type in ("Interpolate", "GridSample") and attributes.get("mode") in _MODES:
        attributes["mode"] = _MODES[attributes["mode"]]
    for key in ("kernel_shape", "strides", "dilations"):
        if key in attributes:
            attributes[key] = _as_tuple(attributes[key])
    return attributes | _infer_from_shapes(layer)


def _infer_from_shapes(layer: NetLayer) -> dict[str, Any]:
    if layer.type in ("GroupConvolution", "GroupConvolutionBackpropData"):
        return {"kernel_layout": "GOI" if layer.type == "GroupConvolution" else "GIO"}
    if layer.type == "Transpose" and layer.inputs and layer.outputs:
        order = _find_permutation(layer.inputs[0].dims, layer.outputs[0].dims)
        return {} if order is None else {"perm": order}
    if layer.type == "ScaledDotProductAttention" and layer.inputs and len(layer.inputs[0].dims) == 3:
        return {"q_num_heads": 1, "kv_num_heads": 1}
    return {}


def _find_permutation(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """The permutation of a transpose, if lengths determine it (dimensions of length 1 are interchangeable)."""
    long = [dim for dim in before if dim != 1]
    if len(set(long)) < len(long) or sorted(before) != sorted(after) or min(before, default=0) < 0:
        return None
    free = [axis for axis, dim in enumerate(before) if dim == 1]
    return tuple(free.pop(0) if dim == 1 else before.index(dim) for dim in after)


def _parse_value(text: str) -> Any:
    if text in ("true", "false"):
        return int(text == "true")
    parts = [part.strip() for part in text.split(",")] if len(text) < 1 << 20 else []
    if len(parts) > LONGEST_LIST:
        return {"length": len(parts)}
    for pattern, convert in ((_NUMBER, int), (_DECIMAL, float)):
        if parts and all(pattern.fullmatch(part) for part in parts):
            numbers = tuple(convert(part) for part in parts)
            return numbers if len(numbers) > 1 else numbers[0]
    return text[:LONGEST_TEXT]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
