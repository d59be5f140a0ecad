"""Drops weight values from the bytes of an ONNX file, so that parsing it does not copy them."""

from __future__ import annotations

from placewise.readers.wire import DROP, Paths, without

_TENSOR: Paths = dict.fromkeys((4, 5, 6, 7, 9, 10, 11), DROP)  # float, int32, string, int64, raw, double, uint64 data
_MODEL: Paths = {7: {5: _TENSOR}}  # ModelProto.graph, GraphProto.initializer


def without_values(data: memoryview, *, longest: int) -> bytes | memoryview:
    """The model in `data` without the values of initializers that take more than `longest` bytes."""
    return without(data, _MODEL, longest=longest)
