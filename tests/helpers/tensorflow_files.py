"""Small TensorFlow graphs for the tests, written with the reader's own messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from locations import DATA

from placewise.readers.tensorflow.protos import DATA_TYPES, MESSAGES

DTYPE = {name: number for number, name in DATA_TYPES.items()}
_NUMPY = {"float32": "FLOAT", "int32": "INT32", "int64": "INT64", "bool": "BOOL", "float64": "DOUBLE"}
DATA = DATA / "tensorflow"


class Dtype(str):
    """An element type, as an attribute."""


def shape_proto(shape: Sequence[int] | None) -> Any:
    proto = MESSAGES["TensorShapeProto"](unknown_rank=shape is None)
    for size in shape or ():
        proto.dim.add(size=size)
    return proto


def tensor_proto(value: Any) -> Any:
    array = np.asarray(value, np.int32 if isinstance(value, (int, list, tuple)) else None)
    return MESSAGES["TensorProto"](
        dtype=DTYPE[_NUMPY[array.dtype.name]], tensor_shape=shape_proto(array.shape), tensor_content=array.tobytes()
    )


def attribute(value: Any) -> Any:
    """Text → s, numbers, truth, `Dtype` → type, tuples → shapes, lists → lists of numbers, texts or shapes."""
    attr = MESSAGES["AttrValue"]
    if isinstance(value, Dtype):
        return attr(type=DTYPE[value])
    if isinstance(value, bool):
        return attr(b=value)
    if isinstance(value, (int, float)):
        return attr(i=value) if isinstance(value, int) else attr(f=value)
    if isinstance(value, str):
        return attr(func={"name": value[1:]}) if value[:1] == "@" else attr(s=value.encode())
    if value is None or isinstance(value, tuple):
        return attr(shape=shape_proto(value))
    if isinstance(value, np.ndarray):
        return attr(tensor=tensor_proto(value))
    listed = MESSAGES["ListValue"]()
    for item in value:
        if isinstance(item, Dtype):
            listed.type.append(DTYPE[item])
        elif isinstance(item, int):
            listed.i.append(item)
        elif isinstance(item, str):
            listed.s.append(item.encode())
        else:
            listed.shape.append(shape_proto(item))
    return attr(list=listed)


def node(name: str, op: str, *inputs: str, device: str = "", **attrs: Any) -> Any:
    proto = MESSAGES["NodeDef"](name=name, op=op, input=inputs, device=device)
    for key, value in attrs.items():
        proto.attr[key].CopyFrom(attribute(value))
    return proto


def placeholder(name: str, shape: Sequence[int] | None, dtype: str = "FLOAT") -> Any:
    return node(name, "Placeholder", dtype=Dtype(dtype), shape=None if shape is None else tuple(shape))


def constant(name: str, value: Any) -> Any:
    return node(name, "Const", value=np.asarray(value, np.int32 if isinstance(value, (int, list, tuple)) else None))


def weight(name: str, *shape: int) -> Any:
    """A constant of this shape whose values were left out."""
    proto = node(name, "Const")
    proto.attr["value"].tensor.CopyFrom(MESSAGES["TensorProto"](dtype=DTYPE["FLOAT"], tensor_shape=shape_proto(shape)))
    return proto


def function(name: str, args: Sequence[str], nodes: Sequence[Any], returns: Mapping[str, str]) -> Any:
    proto = MESSAGES["FunctionDef"](node_def=nodes, ret=returns)
    proto.signature.name = name
    for arg in args:
        proto.signature.input_arg.add(name=arg)
    for result in returns:
        proto.signature.output_arg.add(name=result)
    return proto


def graph(*nodes: Any, functions: Sequence[Any] = ()) -> Any:
    proto = MESSAGES["GraphDef"](node=nodes)
    proto.library.function.extend(functions)
    return proto


def saved(folder: Path, proto: Any, name: str = "model.pb") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


F, INT = Dtype("FLOAT"), Dtype("INT32")
