"""ONNX: a model file → the raw view of its graph, one op per node, with or without the weights at hand."""

from placewise.readers.onnx.reader import read_onnx

__all__ = ["read_onnx"]
