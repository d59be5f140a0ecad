"""In which element type a layer computes."""

from __future__ import annotations

from placewise.readers.openvino.kinds import CONSTANT
from placewise.readers.openvino.net import Layer, Net
from placewise.readers.openvino.structure import Sources

FLOATING = ("float", "bfloat", "complex")
_PRODUCTS = frozenset({"Convolution", "GroupConvolution", "ConvolutionBackpropData", "MatMul"})
_PASSED = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Concat"})
_UNPACKS = frozenset({"Convert", "Subtract", "Multiply"})
_EIGHT_BITS = frozenset({"int8", "uint8"})
_MOST_LEVELS = 256
_MOST_STEPS = 6


def compute_dtype(net: Net, sources: Sources, row: int) -> str:
    """The first floating type among inputs and outputs, else the first output's.

    Products of quantized inputs compute in int8: that is what FakeQuantize of up to 256 levels stands for.
    """
    layer = net.layers[row]
    if layer.type in _PRODUCTS and all(_is_quantized(net, sources, sources[row, place][0]) for place in (0, 1)):
        return "int8"
    found = [port.dtype for port in (*layer.inputs, *layer.outputs)]
    floating = next((dtype for dtype in found if dtype.startswith(FLOATING)), None)
    return floating or next((port.dtype for port in layer.outputs), found[0] if found else "unknown")


def _is_quantized(net: Net, sources: Sources, row: int) -> bool:
    """Whether what a layer makes is of eight bits, in the file or after rounding, seen through what keeps that so."""
    unpacked = False
    for _ in range(_MOST_STEPS):
        layer = net.layers[row]
        if layer.type == "FakeQuantize":
            return not unpacked and _levels(layer) <= _MOST_LEVELS
        if layer.type == CONSTANT:
            return layer.outputs[0].dtype in _EIGHT_BITS
        if layer.type not in _PASSED | _UNPACKS:
            return False
        unpacked |= layer.type in _UNPACKS
        row = sources[row, 0][0]
    return False


def _levels(layer: Layer) -> int:
    levels = layer.data.get("levels", "")
    return int(levels) if levels.isascii() and levels.isdigit() and len(levels) < 10 else _MOST_LEVELS + 1
