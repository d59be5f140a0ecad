"""The element type that a node computes in."""

from __future__ import annotations

import onnx

from placewise.readers.onnx.types import Types, dtype_of

_FLOATING = ("float", "bfloat", "complex")


def compute_dtype(node: onnx.NodeProto, types: Types) -> str:
    """The first floating type among inputs and outputs, else the first output's; of integer kernels, the input's."""
    found = [dtype_of(types.get(name)) for name in [*node.input, *node.output] if name]
    if node.op_type.startswith("QLinear") or node.op_type.endswith("Integer"):
        return found[0] if found else "unknown"
    floating = next((dtype for dtype in found if dtype.startswith(_FLOATING)), None)
    return floating or next((dtype_of(types.get(name)) for name in node.output if name), "unknown")
