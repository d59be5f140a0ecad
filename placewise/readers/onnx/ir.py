"""The oldest IR version that supports the contents of a model, for running it."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.helper

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
