"""TensorFlow's element types, shapes and constants in our terms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.readers.tensorflow.protos import DATA_TYPES, REFERENCE

KEPT_ELEMENTS = 1_000
"""Longer constants are dropped: no shape depends on them, and their bytes follow from their dimensions."""
Shape = tuple[int, ...]
Array = npt.NDArray[Any]

_DTYPES = {
    "FLOAT": "float32", "DOUBLE": "float64", "HALF": "float16", "BFLOAT16": "bfloat16", "BOOL": "bool",
    "INT64": "int64", "INT32": "int32", "INT16": "int16", "INT8": "int8", "INT4": "int4", "INT2": "int2",
    "UINT64": "uint64", "UINT32": "uint32", "UINT16": "uint16", "UINT8": "uint8", "UINT4": "uint4", "UINT2": "uint2",
    "QINT32": "int32", "QINT16": "int16", "QINT8": "int8", "QUINT16": "uint16", "QUINT8": "uint8",
    "COMPLEX64": "complex64", "COMPLEX128": "complex128", "STRING": "string",
    "FLOAT8_E5M2": "float8_e5m2", "FLOAT8_E5M2FNUZ": "float8_e5m2", "FLOAT4_E2M1FN": "float4_e2m1",
    "FLOAT8_E4M3FN": "float8_e4m3", "FLOAT8_E4M3FNUZ": "float8_e4m3", "FLOAT8_E4M3B11FNUZ": "float8_e4m3",
}  # fmt: skip
_HANDLES = ("RESOURCE", "VARIANT")
_FIELDS = {
    "float32": "float_val", "float64": "double_val", "int64": "int64_val", "bool": "bool_val", "uint32": "uint32_val",
    "uint64": "uint64_val", **dict.fromkeys(("int32", "int16", "int8", "uint16", "uint8"), "int_val"),
}  # fmt: skip
_CONTENT = {*_FIELDS, "float16"}


def dtype_of(code: int) -> str:
    """Our name of a DataType; references count as their target, handles and unsupported types are ``"unknown"``."""
    return _DTYPES.get(DATA_TYPES.get(code % REFERENCE, ""), "unknown")


def is_handle(code: int) -> bool:
    """Whether values of this type refer to something stored elsewhere (a variable, a list)."""
    return DATA_TYPES.get(code % REFERENCE) in _HANDLES


def shape_of(shape: Any) -> Shape | None:
    """A TensorShapeProto, −1 for unknown dimensions; None if even the rank is unknown."""
    return None if shape.unknown_rank else tuple(max(dim.size, -1) for dim in shape.dim)


def array_of(tensor: Any) -> Array | None:
    """The value of a short numeric TensorProto; None for others, and if data and dimensions disagree."""
    dims, dtype = shape_of(tensor.tensor_shape), dtype_of(tensor.dtype)
    if dims is None or min(dims, default=0) < 0 or math.prod(dims) > KEPT_ELEMENTS or dtype not in _CONTENT:
        return None
    count = math.prod(dims)
    if tensor.tensor_content:
        size = np.dtype(dtype).itemsize
        if len(tensor.tensor_content) != count * size:
            return None
        return np.frombuffer(tensor.tensor_content, np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(dims)
    values = list(getattr(tensor, _FIELDS[dtype])) if dtype in _FIELDS else []
    if len(values) > count:
        return None
    values += [values[-1] if values else 0] * (count - len(values))  # the last one repeats
    return np.array(values).astype(dtype).reshape(dims) if dtype in _FIELDS else None
