"""The contents of an IR file: layers with ports, and edges between ports."""

from __future__ import annotations

from dataclasses import dataclass, field

from placewise.model.dtypes import bytes_of
from placewise.model.tables import Attributes

_BITS_OF_OTHERS = {"u1": 1, "u3": 3, "u6": 6}
_DTYPES = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "i4": "int4",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "u4": "uint4", "u2": "uint2",
    "f8e4m3": "float8_e4m3", "f8e5m2": "float8_e5m2", "f4e2m1": "float4_e2m1",
    "nf4": "uint4",  # 4-bit codes into a table of 16 numbers
    "f8e8m0": "uint8",  # a bare exponent byte, used for scales only
    "boolean": "bool", "string": "string",
}  # fmt: skip
_PREFIXES = {"FP": "f", "BF": "bf", "I": "i", "U": "u"}


@dataclass(slots=True)
class Port:
    """An input or output of a layer: IR element type and dimensions (−1: open)."""

    id: int
    element_type: str
    dims: tuple[int, ...] = ()

    @property
    def dtype(self) -> str:
        return dtype_of(self.element_type)

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.dims, self.element_type)


@dataclass(slots=True)
class NetLayer:
    """A layer; `bodies` are the nets inside If, Loop and TensorIterator."""

    id: int
    name: str
    type: str
    version: str
    data: Attributes = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    bodies: list[IrNet] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"layer {self.name[:100]!r} ({self.type[:50]})"


@dataclass(slots=True)
class IrNet:
    """A net or the body of a layer. `edges`: (from layer, from port, to layer, to port), by their ids."""

    version: int = -1
    layers: list[NetLayer] = field(default_factory=list)
    edges: list[tuple[int, int, int, int]] = field(default_factory=list)


def normalize_type(text: str) -> str:
    """The short name of an element type: FP16, I64 and BOOL in ports become f16, i64 and boolean as in constants."""
    if text in ("BOOL", "bool"):
        return "boolean"
    if text == "BIN":
        return "u1"
    letters = text.rstrip("0123456789")
    return _PREFIXES[letters] + text[len(letters) :] if letters in _PREFIXES and letters != text else text.lower()


def dtype_of(element_type: str) -> str:
    """The dtype of an element type; ``"unknown"`` if there is none."""
    return _DTYPES.get(element_type, "unknown")


def nbytes_of(dims: tuple[int, ...], element_type: str) -> int:
    """Bytes of a dense tensor, including types of 1, 3 or 6 bits; −1 if unknown."""
    bits = _BITS_OF_OTHERS.get(element_type)
    if bits is None or min(dims, default=0) < 0:
        return bytes_of(dims, dtype_of(element_type))
    return (bytes_of(dims, "int8") * bits + 7) // 8
