"""PyTorch element types → names in `DTYPES`."""

from __future__ import annotations

from typing import Any

from placewise.model.dtypes import DTYPES

_RENAMED = {
    "float8_e4m3fn": "float8_e4m3", "float8_e4m3fnuz": "float8_e4m3", "float8_e5m2fnuz": "float8_e5m2",
    "float8_e8m0fnu": "uint8", "float4_e2m1fn_x2": "uint8", "complex32": "float32",
    "quint8": "uint8", "qint8": "int8", "qint32": "int32", "quint4x2": "uint4", "bits8": "uint8", "bits16": "uint16",
}  # fmt: skip
"""Types with other names; ``complex32`` and packed 4-bit floats map to types of the same size."""

SERIALIZED = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 9: "float32",
    10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3", 30: "float8_e5m2",
    31: "float8_e4m3", 32: "float8_e5m2", 33: "uint8", 34: "uint32", 35: "uint64",
}  # fmt: skip
"""Element types by number in exported archives (ScalarType in torch/_export/serde/schema.py)."""


def dtype_name(dtype: Any) -> str:
    """``"float32"`` for ``torch.float32``; ``"unknown"`` for types that are not in `DTYPES`."""
    name = str(dtype).removeprefix("torch.")
    name = _RENAMED.get(name, name)
    return name if name in DTYPES else "unknown"
