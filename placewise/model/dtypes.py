"""Element types: one list of names, their codes (list positions) and their sizes in bits.

Tensors are never of the type tf32: it is how tensor cores multiply float32.
"""

from __future__ import annotations

import numpy as np

from placewise.errors import GraphError

_BITS = {
    "unknown": 0, "float32": 32, "float16": 16, "bfloat16": 16, "float64": 64,
    "float8_e4m3": 8, "float8_e5m2": 8, "float4_e2m1": 4,
    "int8": 8, "int16": 16, "int32": 32, "int64": 64, "int4": 4, "int2": 2,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "uint4": 4, "uint2": 2,
    "bool": 8, "complex64": 64, "complex128": 128, "string": 128, "tf32": 32,
}  # fmt: skip
DTYPES: tuple[str, ...] = tuple(_BITS)
RATES: tuple[str, ...] = (*DTYPES, "tf32")
"""The names of a device's peaks: element types, and float32 products that tensor cores round to 19 bits."""
_CODE = {name: code for code, name in enumerate(DTYPES)}
BITS = np.array(list(_BITS.values()), np.int64)
BITS.flags.writeable = False


def dtype_code(name: str) -> int:
    """The column code of an element type; raises GraphError for a name that is not in the list."""
    try:
        return _CODE[name]
    except KeyError:
        raise GraphError(f"unknown element type {name!r}", remedy=f"known: {', '.join(DTYPES)}") from None


def bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a dense tensor; −1 if a dimension or the element type is unknown."""
    if dtype == "unknown" or any(dim < 0 for dim in shape):
        return -1
    count = 1
    for dim in shape:
        count *= dim
    return (count * _BITS[dtype] + 7) // 8
