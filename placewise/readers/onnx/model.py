"""Load a complete ONNX model to run it: with its weights, or random ones if missing, and in its oldest IR version."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.external_data_helper
import onnx.helper

from placewise.errors import ModelFileError, locate_errors
from placewise.readers.onnx.file import VALUE_FIELDS, inline_functions, normalize_domains
from placewise.readers.onnx.symbols import set_dims
from placewise.readers.onnx.types import subgraphs

_VERSION_OF_TYPE = {
    "BFLOAT16": 4,
    "FLOAT8E4M3FN": 9, "FLOAT8E4M3FNUZ": 9, "FLOAT8E5M2": 9, "FLOAT8E5M2FNUZ": 9,
    "UINT4": 10, "INT4": 10, "FLOAT4E2M1": 11, "FLOAT8E8M0": 12, "UINT2": 13, "INT2": 13,
    "FLOAT6E2M3": 14, "FLOAT6E3M2": 14,
}  # fmt: skip
"""The IR version that introduced an element type (onnx.proto, enum Version); 3 for all others."""
_VERSION_OF_FIELD = {
    "quantization_annotation": 5,
    "sparse_initializer": 6, "sparse_tensor": 6, "sparse_tensors": 6,
    "training_info": 7,
    "functions": 8, "sparse_tensor_type": 8, "optional_type": 8,
    "attribute_proto": 9,
    "overload": 10, "metadata_props": 10,
    "configuration": 11, "device_configurations": 11,
    "opaque_type": 14,
}  # fmt: skip
"""The IR version that introduced a field; metadata_props of a whole model are older."""
_VERSION_OF_CODE = {
    getattr(onnx.TensorProto, name): version
    for name, version in _VERSION_OF_TYPE.items()
    if hasattr(onnx.TensorProto, name)
}
_FREE_WEIGHTS = 4  # since version 4, weights need not be inputs


def oldest_ir(model: onnx.ModelProto) -> int:
    """The oldest IR version, from 4, with the model's opsets, fields and element types; at most its own version.

    ONNX Runtime refuses models with an IR version that it does not know, whatever they contain. The version stays if an
    ONNX opset is newer than the onnx package; other domains are ignored.
    """
    own = int(model.ir_version)
    if own <= _FREE_WEIGHTS or any(map(_is_newer_opset, model.opset_import)):
        return own
    by_opset = onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
    fields = [item for item in model.ListFields() if item[0].name != "metadata_props"]
    return min(own, max(_FREE_WEIGHTS, by_opset, *(_required_version(*item) for item in fields)))


def _is_newer_opset(opset: onnx.OperatorSetIdProto) -> bool:
    """Whether this is an opset of an ONNX domain that is newer than the onnx package."""
    domain = opset.domain or "ai.onnx"
    known = [version for name, version in onnx.helper.OP_SET_ID_VERSION_MAP if name == domain]
    return opset.version > max(known, default=opset.version)


def _required_version(field: Any, value: Any) -> int:
    """The IR version that a field and its contents require."""
    if field.name in ("data_type", "elem_type") and isinstance(value, int):
        return _VERSION_OF_CODE.get(value, 0)
    version = _VERSION_OF_FIELD.get(field.name, 0)
    if field.message_type is None:
        return version
    messages = (value,) if hasattr(value, "ListFields") else value
    inside = (_required_version(*item) for message in messages for item in message.ListFields())
    return max(version, max(inside, default=0))


_LONGEST_DRAW = 1 << 20
"""Random numbers per weight; longer weights repeat them."""
_SMALL = 0.02
_NORMS = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization"})
_SCALE, _VARIANCE = 1, 4  # argument positions: of all norms, and of BatchNormalization


def load_with_weights(
    path: Path, dims: Mapping[str, int] | None = None, *, keep_external: bool = False
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model in `path` with embedded weights and inlined functions, and notes.

    Node indices match `origin` (`read_onnx`); the IR version is the oldest possible (`oldest_ir`). `dims` replace
    symbolic dimensions. External data is loaded; missing weights are drawn, always the same for a name, scaled so that
    activations stay finite, and a note reports this. With `keep_external`, external data stays external. Raises
    ModelFileError, naming the file.
    """
    with locate_errors(path):
        model = _parse(path)
        normalize_domains(model)
        notes = () if keep_external else _fill_weights(model, path.parent)
        if model.functions:
            model = inline_functions(model)
        if dims is not None:
            set_dims(model.graph, dims)
        model.ir_version = oldest_ir(model)
    return model, notes


def _parse(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror})", remedy="give a .onnx file") from None
    except Exception:  # protobuf's own error type differs between its back ends
        raise ModelFileError(
            "this is not an ONNX model, or the file is cut off", remedy="export or download the model again"
        ) from None
    if not model.HasField("graph"):
        raise ModelFileError("this is not an ONNX model (no graph in it)", remedy="give a .onnx file")
    return model


def _fill_weights(model: onnx.ModelProto, folder: Path) -> tuple[str, ...]:
    """Load external weights, and draw missing ones."""
    roles, n_drawn, missing_file = _first_readers(model.graph), 0, ""
    for tensor in _weights(model.graph):
        where = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
        is_outside = tensor.data_location == onnx.TensorProto.EXTERNAL
        if is_outside and os.path.isfile(folder / where):
            try:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
            except Exception as error:  # the checker and the system raise unrelated error types
                raise ModelFileError(f"the weight {tensor.name!r} cannot be read from {where} ({error})") from None
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
        elif is_outside or _is_empty(tensor):
            if tensor.data_type == onnx.TensorProto.STRING:
                problem = f"the weight {tensor.name!r} is missing, and its texts cannot be drawn"
                raise ModelFileError(problem, remedy="give the model with its weights")
            try:
                values = _draw_weight(tensor, roles.get(tensor.name, ("", 0)))
            except (MemoryError, ValueError):
                problem = f"the weight {tensor.name!r} is missing, and {list(tensor.dims)} is too large to draw"
                raise ModelFileError(problem, remedy="give the model with its weights") from None
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
            n_drawn, missing_file = n_drawn + 1, missing_file or where
    if not n_drawn:
        return ()
    lost = f" ({missing_file} is not here)" if missing_file else ""
    return (f"{n_drawn} weights of the model are missing{lost}: random numbers stand in for them",)


def _weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
        for body in subgraphs(node):
            yield from _weights(body)


def _is_empty(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor has elements but no values."""
    return math.prod(tensor.dims) > 0 and not any(len(getattr(tensor, field)) for field in VALUE_FIELDS)


def _first_readers(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    """The op type and input position of the first reader, by value."""
    roles: dict[str, tuple[str, int]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            roles.setdefault(name, (node.op_type, position))
    return roles


def _draw_weight(tensor: onnx.TensorProto, role: tuple[str, int]) -> npt.NDArray[Any]:
    """Integers are 0, a valid index of every table; booleans are true; floats are drawn by their role."""
    dims, dtype = tuple(tensor.dims), onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if tensor.data_type == onnx.TensorProto.BOOL or np.dtype(dtype).kind in "iu":
        return np.full(dims, tensor.data_type == onnx.TensorProto.BOOL, dtype)
    rng = np.random.default_rng((0, zlib.crc32(tensor.name.encode())))
    size = math.prod(dims)
    values = np.resize(rng.standard_normal(min(size, _LONGEST_DRAW), np.float32), dims)
    kind, position = role
    if kind == "BatchNormalization" and position == _VARIANCE:
        values = 1 + _SMALL * np.abs(values)
    elif (kind in _NORMS and position == _SCALE) or (kind == "Mul" and len(dims) < 2):
        values = 1 + _SMALL * values
    else:
        values = values * _weight_scale(dims)
    return values.astype(dtype)


def _weight_scale(dims: tuple[int, ...]) -> float:
    """1 / √fan-in: window times channels of a convolution, the longer side of a matrix."""
    if len(dims) < 2:
        return _SMALL
    return 1 / math.sqrt(max(dims) if len(dims) == 2 else math.prod(dims[1:]))
