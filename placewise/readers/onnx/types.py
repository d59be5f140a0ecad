"""ONNX types as Placewise dtypes and shapes (−1: unknown dimension), and what is inferred about values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import onnx

from placewise.model.dtypes import bytes_of
from placewise.readers.base import first_floating

_T = onnx.TensorProto
_NAMES = {
    "FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "DOUBLE": "float64",
    "FLOAT8E4M3FN": "float8_e4m3", "FLOAT8E4M3FNUZ": "float8_e4m3",
    "FLOAT8E5M2": "float8_e5m2", "FLOAT8E5M2FNUZ": "float8_e5m2", "FLOAT4E2M1": "float4_e2m1",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "INT4": "int4", "INT2": "int2",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "UINT4": "uint4", "UINT2": "uint2",
    "FLOAT8E8M0": "uint8",  # a bare exponent byte, used for scales only
    "BOOL": "bool", "COMPLEX64": "complex64", "COMPLEX128": "complex128", "STRING": "string",
}  # fmt: skip
_DTYPES = {getattr(_T, name): dtype for name, dtype in _NAMES.items() if hasattr(_T, name)}

Shape = tuple[int, ...]
Types = dict[str, onnx.TypeProto]
Value = npt.NDArray[Any]
Elements = dict[str, list[onnx.TypeProto]]
"""The types of the tensors in a sequence by name; an optional value is a sequence of one."""


@dataclass(slots=True)
class InferredValues:
    """Types, constant values and sequence elements by name; `borrowed` are names with types from value_info."""

    types: Types
    values: dict[str, Value] = field(default_factory=dict)
    elements: Elements = field(default_factory=dict)
    borrowed: list[str] = field(default_factory=list)


Infer = Callable[[onnx.ModelProto], InferredValues]
"""Infers the values of a model. Raises ModelFileError for nodes with incompatible inputs."""


def dtype_name(element_type: int) -> str:
    """The dtype of an ONNX element type; ``"unknown"`` for unknown codes."""
    return _DTYPES.get(element_type, "unknown")


def element_type(dtype: str) -> int:
    """The ONNX element type of a dtype; every dtype except ``"unknown"`` has one."""
    return int(next(code for code, name in _DTYPES.items() if name == dtype))


def dtype_of(kind: onnx.TypeProto | None) -> str:
    """The dtype of a tensor type; ``"unknown"`` for sequences, maps and missing types."""
    return dtype_name(kind.tensor_type.elem_type) if kind is not None and kind.HasField("tensor_type") else "unknown"


def shape_of(kind: onnx.TypeProto | None) -> Shape | None:
    """The shape of a tensor type, with −1 for unknown dimensions; None if the rank is unknown."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else -1 for dim in dims)


def is_complete(kind: onnx.TypeProto | None) -> bool:
    """Whether the size in bytes of a tensor type is known; always true for sequences and maps."""
    if kind is not None and kind.WhichOneof("value") not in (None, "tensor_type"):
        return True
    shape = shape_of(kind)
    return shape is not None and bytes_of(shape, dtype_of(kind)) >= 0


def dims_of(kind: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """All dimensions in a type, including those in sequences and optionals."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(kind, which).shape.dim
    elif which in ("sequence_type", "optional_type"):
        yield from dims_of(getattr(kind, which).elem_type)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The subgraphs of a node, such as the bodies of If, Loop and Scan."""
    bodies: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            bodies.append(attribute.g)
        bodies.extend(attribute.graphs)
    return bodies


def compute_dtype(node: onnx.NodeProto, types: Types) -> str:
    """The dtype of the computation: the first floating-point type of inputs and outputs, else that of the first output.

    For integer kernels it is the type of the first input.
    """
    dtypes = [dtype_of(types.get(name)) for name in [*node.input, *node.output] if name]
    if node.op_type.startswith("QLinear") or node.op_type.endswith("Integer"):
        return dtypes[0] if dtypes else "unknown"
    return first_floating(dtypes) or next((dtype_of(types.get(name)) for name in node.output if name), "unknown")
