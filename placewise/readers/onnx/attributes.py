"""Node attributes as plain, serializable values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx

from placewise.readers.onnx.types import dtype_name, dtype_of, shape_of

_A = onnx.AttributeProto
LONGEST_LIST = 1_000


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Numbers, strings and lists; of tensors, shape and dtype; of subgraphs, the number of nodes.

    Lists longer than `LONGEST_LIST` (such as the trees of a forest) become their length. Infinities and NaN become
    strings, for JSON.
    """
    return {attribute.name: _convert(attribute) for attribute in node.attribute}


def _convert(attribute: onnx.AttributeProto) -> Any:
    if attribute.type == _A.INT:
        return attribute.i
    if attribute.type == _A.FLOAT:
        return _shorten_float(attribute.f)
    if attribute.type == _A.STRING:
        return _decode_text(attribute.s)
    if attribute.type == _A.INTS:
        return _convert_list(attribute.ints)
    if attribute.type == _A.FLOATS:
        return _convert_list(attribute.floats, _shorten_float)
    if attribute.type == _A.STRINGS:
        return _convert_list(attribute.strings, _decode_text)
    if attribute.type == _A.TENSOR:
        return _describe_tensor(attribute.t)
    if attribute.type == _A.TENSORS:
        return _convert_list(attribute.tensors, _describe_tensor)
    if attribute.type == _A.GRAPH:
        return {"nodes": len(attribute.g.node)}
    if attribute.type == _A.GRAPHS:
        return _convert_list(attribute.graphs, lambda graph: {"nodes": len(graph.node)})
    if attribute.type == _A.TYPE_PROTO:
        return {"shape": shape_of(attribute.tp), "dtype": dtype_of(attribute.tp)}
    return _A.AttributeType.Name(attribute.type).lower() if attribute.type in _A.AttributeType.values() else "unknown"


def _convert_list(values: Any, convert: Any = lambda value: value) -> Any:
    if len(values) > LONGEST_LIST:
        return {"length": len(values)}
    return tuple(convert(value) for value in values)


def _shorten_float(value: float) -> float | str:
    """The shortest decimal with the same float32 value: 0.1 instead of 0.10000000149."""
    return float(str(np.float32(value))) if math.isfinite(value) else str(value)


def _decode_text(value: bytes) -> str:
    return value.decode(errors="replace")


def _describe_tensor(tensor: onnx.TensorProto) -> dict[str, Any]:
    return {"shape": tuple(tensor.dims), "dtype": dtype_name(tensor.data_type)}
