"""ONNX: a model file → the raw view of its graph, one op per node; weights may be missing."""

from placewise.readers.onnx.reader import read_onnx

__all__ = ["read_onnx"]
