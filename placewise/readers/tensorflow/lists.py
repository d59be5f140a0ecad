"""Lists of tensors (TensorList, and TensorArray of TF1): values of shape [length, element …] that loops fill and read.

The `flow` of a TensorArray carries its contents; the handle carries nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from placewise.readers.tensorflow.abstract_values import NodeCall, Type, Unknown
from placewise.readers.tensorflow.types import Shape

HANDLE = Type("unknown", (0,))
"""A resource: no bytes are ever transferred."""


def _declared_shape(call: NodeCall, position: int) -> Shape | None:
    """The element shape that an argument gives as a value, None if it gives none."""
    data = call.args[position].data
    return None if data is None or data.ndim != 1 else tuple(max(int(size), -1) for size in data)


def _merge_shapes(first: Shape | None, second: Shape | None) -> Shape | None:
    """Combine two descriptions of one shape; the first one wins if they contradict each other."""
    if first is None or first == (-1,):
        return second
    if second is None or len(first) != len(second):
        return first
    return tuple(max(pair) for pair in zip(first, second, strict=True))


def _element_dims(call: NodeCall, position: int) -> Shape | None:
    shape = call.args[position].shape
    return None if shape is None else shape[1:]


def _length(call: NodeCall, position: int) -> int:
    shape = call.args[position].shape
    return -1 if shape is None else shape[0]


def _list_shape(length: int, element: Shape | None) -> Shape:
    """The shape of a list; a single open dimension stands for elements of unknown rank."""
    return (length, *((-1,) if element is None else element))


def _dtype(call: NodeCall) -> str:
    return call.node.dtype("element_dtype", call.node.dtype("dtype"))


def _reserve(call: NodeCall) -> list[Type]:
    length = call.number(1) if call.args[1].data is not None else -1
    return [Type(_dtype(call), _list_shape(length, _declared_shape(call, 0)))]


def _get(call: NodeCall) -> list[Type]:
    return [Type(_dtype(call), _merge_shapes(_element_dims(call, 0), _declared_shape(call, 2)))]


def _set(call: NodeCall) -> list[Type]:
    return [
        Type(_dtype(call), _list_shape(_length(call, 0), _merge_shapes(call.args[2].shape, _element_dims(call, 0))))
    ]


def _stack(call: NodeCall) -> list[Type]:
    length = _length(call, 0)
    length = call.node.whole("num_elements", -1) if length < 0 else length
    return [Type(_dtype(call), _list_shape(length, _merge_shapes(_element_dims(call, 0), _declared_shape(call, 1))))]


def _push(call: NodeCall) -> list[Type]:
    length = _length(call, 0)
    return [Type(_dtype(call), _list_shape(length + 1 if length >= 0 else -1, call.args[1].shape))]


def _pop(call: NodeCall) -> list[Type]:
    length, element = _length(call, 0), _merge_shapes(_element_dims(call, 0), _declared_shape(call, 1))
    return [Type(_dtype(call), _list_shape(max(length - 1, -1), element)), Type(_dtype(call), element)]


def _array(call: NodeCall) -> list[Type]:
    length = call.number(0) if call.args[0].data is not None else -1
    return [HANDLE, Type(_dtype(call), _list_shape(length, call.node.shape("element_shape")))]


def _array_gather(call: NodeCall) -> list[Type]:
    rows = call.dims(1)[0]
    return [
        Type(_dtype(call), _list_shape(rows, _merge_shapes(_element_dims(call, 2), call.node.shape("element_shape"))))
    ]


RULES: Mapping[str, Callable[[NodeCall], list[Type]]] = {
    "TensorListReserve": _reserve,
    "TensorListGetItem": _get, "TensorListSetItem": _set, "TensorListStack": _stack,
    "TensorListPushBack": _push, "TensorListPopBack": _pop,
    "TensorArrayV3": _array,
    "TensorArrayGatherV3": _array_gather,
    "TensorListFromTensor": lambda call: [Type(call.args[0].dtype, call.dims(0))],
    "EmptyTensorList": lambda call: [Type(_dtype(call), _list_shape(0, _declared_shape(call, 0)))],
    "TensorArrayGradV3": lambda call: [HANDLE, Type(call.args[1].dtype, call.args[1].shape)],
    "TensorArrayWriteV3": lambda call: [Type(call.args[2].dtype, _list_shape(_length(call, 3), call.args[2].shape))],
    "TensorArrayReadV3": lambda call: [Type(_dtype(call), _element_dims(call, 2))],
    "TensorArrayScatterV3": lambda call: [Type(call.args[2].dtype, call.args[2].shape)],
    "TensorListElementShape": lambda call: [Type(call.node.dtype("shape_type", "int32"), (len(element_shape(call)),))],
    **dict.fromkeys(("TensorListLength", "TensorArraySizeV3"), lambda call: [Type("int32", ())]),
}  # fmt: skip
METADATA_OPS = frozenset({"TensorListLength", "TensorListElementShape", "TensorArraySizeV3"})
"""Ops that do not read the contents of a list."""
LIST_PORTS: Mapping[str, int] = {
    "TensorListFromTensor": 0, "TensorListReserve": 0, "EmptyTensorList": 0, "TensorListSetItem": 0,
    "TensorListPushBack": 0, "TensorListPopBack": 0, "TensorArrayV3": 1, "TensorArrayGradV3": 1,
    "TensorArrayWriteV3": 0, "TensorArrayScatterV3": 0,
}  # fmt: skip
"""The output that is a list."""
KINDS: Mapping[str, str] = {
    "TensorListFromTensor": "Identity", "TensorListStack": "Identity", "TensorListGetItem": "Gather",
    "TensorListSetItem": "TensorScatter", "TensorListLength": "Size", "TensorArraySizeV3": "Size",
    "TensorArrayReadV3": "Gather", "TensorArrayGatherV3": "Gather", "TensorArrayWriteV3": "TensorScatter",
}  # fmt: skip
ORDERS: Mapping[str, tuple[int, ...]] = {
    "TensorListSetItem": (0, 2, 1), "TensorArrayReadV3": (2, 1, 0), "TensorArrayGatherV3": (2, 1, 0),
    "TensorArrayWriteV3": (3, 2, 1, 0), "TensorArraySizeV3": (1, 0),
}  # fmt: skip
"""The index of the first argument, the second, … in ONNX's order."""


def element_shape(call: NodeCall) -> Shape:
    """The shape of a list's elements; raises Unknown."""
    element = _element_dims(call, 0)
    if element is None or min(element, default=0) < 0:
        raise Unknown
    return element


def list_length(call: NodeCall) -> int:
    """The number of elements of a list; raises Unknown."""
    position = 1 if call.node.op == "TensorArraySizeV3" else 0
    length = _length(call, position)
    if length < 0:
        raise Unknown
    return length
