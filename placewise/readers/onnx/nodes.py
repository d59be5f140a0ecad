"""Shape inference of one node, and the reason if it fails."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.shape_inference
from onnx.helper import get_attribute_value, make_attribute

from placewise.readers.onnx.contrib import infer_by_rule, standard_equivalent
from placewise.readers.onnx.schemas import is_sound, newest_opset, schema_of
from placewise.readers.onnx.structure import names_read
from placewise.readers.onnx.types import Types, Value, is_complete, shape_of, subgraphs

_ATTRIBUTES_NOW_INPUTS = {("Reshape", "shape"), ("Pad", "paddings"), ("Pad", "pads"), ("Split", "split")}
"""Integer attributes that became the second input of their op."""


def upgrade_node(node: onnx.NodeProto) -> tuple[onnx.NodeProto, dict[str, Value]]:
    """The node in the newest opset, as far as shapes depend on it, and the values of its new inputs.

    Attributes that the newest definition lacks are dropped, such as the memory hint `consumed_inputs`.
    """
    upgraded, new_inputs = onnx.NodeProto(), dict[str, Value]()
    upgraded.CopyFrom(node)
    attributes = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Upsample" and {"height_scale", "width_scale"} <= set(attributes):
        scales = np.array([1, 1, attributes["height_scale"], attributes["width_scale"]], np.float32)
        upgraded.op_type, new_inputs = "Resize", {f"{node.output[0]}/scales": scales}
        upgraded.input.extend(["", *new_inputs])
    for name, sizes in attributes.items():
        if (node.op_type, name) in _ATTRIBUTES_NOW_INPUTS and len(node.input) == 1:
            new_inputs[f"{node.output[0]}/{name}"] = np.array(sizes, np.int64)
            upgraded.input.extend(new_inputs)
    schema = schema_of(upgraded.op_type, "", newest_opset())
    known = set() if schema is None else set(schema.attributes)
    del upgraded.attribute[:]
    upgraded.attribute.extend(attribute for attribute in node.attribute if attribute.name in known)
    if node.op_type == "Concat" and "axis" not in attributes:
        upgraded.attribute.append(make_attribute("axis", 1))
    if node.op_type == "Cast" and isinstance(attributes.get("to"), bytes):
        del upgraded.attribute[:]
        codes = dict(onnx.TensorProto.DataType.items())
        upgraded.attribute.append(make_attribute("to", codes.get(attributes["to"].decode(errors="replace").upper(), 0)))
    return upgraded, new_inputs


KEEP_SHAPE = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Ops with an output like the first input, for which the onnx package has no shape rule.

The same holds for arithmetic before opset 7, which broadcasts the second input to the first.
"""
_OBJECTION = "[ShapeInferenceError]"
_LONGEST_OBJECTION = 120


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    return {opset.domain: opset.version for opset in model.opset_import}


def infer_node(
    model: onnx.ModelProto, node: onnx.NodeProto, types: Types, values: dict[str, Value]
) -> tuple[Types, str]:
    """Types of incomplete outputs, and the error of the onnx package ("" if none).

    If the op's definition in the model's opset infers nothing, the newest definition is used: some intermediate
    definitions are functions without a shape rule.
    """
    names = [name for name in names_read(node) if name]
    if not all(name in types for name in names):
        return {}, ""
    opsets = opsets_of(model)
    inferred = _infer_by_rule(node, types, values, opsets.get("", 1))
    objection = ""
    if not inferred:
        inferred, objection = _infer_by_schema(model, node, types, values, opsets)
        newest = opsets | {"": newest_opset()}
        if not _adds_shape(node, inferred) and not node.domain and not subgraphs(node):
            upgraded, new_inputs = upgrade_node(node)
            known = types | {name: _type_of(value) for name, value in new_inputs.items()}
            newer = (
                _infer_by_schema(model, upgraded, known, values | new_inputs, newest)[0]
                if is_sound(upgraded, newest)
                else {}
            )
            inferred, objection = (newer, "") if _adds_shape(node, newer) else (inferred, objection)
    return {name: kind for name, kind in inferred.items() if name and not is_complete(types.get(name))}, objection


def infer_contrib(model: onnx.ModelProto, node: onnx.NodeProto, types: Types, values: dict[str, Value]) -> Types:
    """Types of the outputs of a contrib op of ONNX Runtime, as far as they follow from its inputs."""
    standard = standard_equivalent(node, values)
    if standard is None:
        inferred = infer_by_rule(node, types, values)
    else:
        newest = opsets_of(model) | {"": newest_opset()}
        is_askable = is_sound(standard, newest) and all(name in types for name in standard.input if name)
        inferred = _infer_by_schema(model, standard, types, values, newest)[0] if is_askable else {}
    return {name: kind for name, kind in inferred.items() if name and not is_complete(types.get(name))}


def describe_mismatch(node: onnx.NodeProto, types: Types, objection: str) -> str:
    """The error message for a node with known but incompatible inputs."""
    shapes = ["×".join(map(str, shape_of(types[name]) or ())) or "scalar" for name in node.input if name]
    name = node.name or next(filter(None, node.output), "")
    return f"the inputs of {node.op_type} {name!r} do not fit together: {', '.join(shapes)} ({objection})"


def _adds_shape(node: onnx.NodeProto, inferred: Types) -> bool:
    return any(is_complete(inferred.get(name)) for name in node.output if name)


def _infer_by_schema(
    model: onnx.ModelProto, node: onnx.NodeProto, types: Types, values: dict[str, Value], opsets: dict[str, int]
) -> tuple[Types, str]:
    """The output types and the error of the onnx package for a node in these opsets."""
    names = [name for name in names_read(node) if name]
    schema = schema_of(node.op_type, node.domain, opsets.get(node.domain, 1))
    if schema is None:
        return {}, ""
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        data = {name: onnx.numpy_helper.from_array(values[name], name) for name in names if name in values}
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, node, {name: types[name] for name in names}, data, None, imports, model.ir_version
        )
    except Exception as error:  # inference raises several unrelated C++ error types
        first = (str(error).strip().splitlines() or [""])[0]
        return {}, first.removeprefix(_OBJECTION).strip()[:_LONGEST_OBJECTION] if first.startswith(_OBJECTION) else ""
    return inferred, ""


def _type_of(value: Value) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _infer_by_rule(node: onnx.NodeProto, types: Types, values: dict[str, Value], opset: int) -> Types:
    """The output types of the few ops for which the onnx package has no complete rule."""
    if node.domain or not node.input:
        return {}
    is_broadcast = opset < 7 and node.op_type != "Gemm" and any(a.name == "broadcast" for a in node.attribute)
    if node.op_type in KEEP_SHAPE or is_broadcast:
        return {node.output[0]: types[node.input[0]]}
    if node.op_type == "Dropout" and opset < 12:
        data = types[node.input[0]]
        return dict(zip(node.output, (data, _mask_type(data, opset)), strict=False))
    if node.op_type == "MaxUnpool" and len(node.input) == 3 and node.input[2] in values:
        element_type = types[node.input[0]].tensor_type.elem_type
        dims = [int(size) for size in values[node.input[2]].reshape(-1)]
        return {node.output[0]: onnx.helper.make_tensor_type_proto(element_type, dims)}
    return {}


def _mask_type(data: onnx.TypeProto, opset: int) -> onnx.TypeProto:
    """The type of Dropout's mask, which onnx does not infer before opset 12: like the data, boolean from opset 10."""
    mask = onnx.TypeProto()
    mask.CopyFrom(data)
    if opset >= 10:
        mask.tensor_type.elem_type = onnx.TensorProto.BOOL
    return mask
