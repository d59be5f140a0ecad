"""Upgrade nodes of old opsets to the newest one, whose shape inference the old definitions lack."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.helper import get_attribute_value, make_attribute

from placewise.readers.onnx.schemas import newest_opset, schema_of
from placewise.readers.onnx.types import Value

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
