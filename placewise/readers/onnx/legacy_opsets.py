"""Nodes of the first opsets in the words of the newest one, whose rules for shapes the older definitions lack."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.helper import get_attribute_value, make_attribute

from placewise.readers.onnx.schemas import newest_opset, schema_of
from placewise.readers.onnx.values import Value

_MOVED = {("Reshape", "shape"), ("Pad", "paddings"), ("Pad", "pads"), ("Split", "split")}
"""Ops and attributes of integers that became their second input."""


def renewed(node: onnx.NodeProto) -> tuple[onnx.NodeProto, dict[str, Value]]:
    """The node as the newest opset writes it, as far as shapes need it, and the values of inputs that it gains.

    Attributes that the newest definition does not have are left out, as hints about memory (`consumed_inputs`) are.
    """
    fresh, gained = onnx.NodeProto(), dict[str, Value]()
    fresh.CopyFrom(node)
    given = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Upsample" and {"height_scale", "width_scale"} <= set(given):
        scales = np.array([1, 1, given["height_scale"], given["width_scale"]], np.float32)
        fresh.op_type, gained = "Resize", {f"{node.output[0]}/scales": scales}
        fresh.input.extend(["", *gained])
    for name, sizes in given.items():
        if (node.op_type, name) in _MOVED and len(node.input) == 1:
            gained[f"{node.output[0]}/{name}"] = np.array(sizes, np.int64)
            fresh.input.extend(gained)
    schema = schema_of(fresh.op_type, "", newest_opset())
    known = set() if schema is None else set(schema.attributes)
    del fresh.attribute[:]
    fresh.attribute.extend(attribute for attribute in node.attribute if attribute.name in known)
    if node.op_type == "Concat" and "axis" not in given:
        fresh.attribute.append(make_attribute("axis", 1))
    if node.op_type == "Cast" and isinstance(given.get("to"), bytes):
        del fresh.attribute[:]
        codes = dict(onnx.TensorProto.DataType.items())
        fresh.attribute.append(make_attribute("to", codes.get(given["to"].decode(errors="replace").upper(), 0)))
    return fresh, gained
