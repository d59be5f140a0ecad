"""Op schemas of the onnx package, and whether a node conforms to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import onnx

from placewise.readers.onnx.types import subgraphs

_TYPES = {
    number: getattr(onnx.defs.OpSchema.AttrType, name, None)
    for name, number in onnx.AttributeProto.AttributeType.items()
}
MAX_AXES = 1_000
_TERM = rb"[A-Za-z ]*(?:\.\.\.)?[A-Za-z ]*"
_EQUATION = re.compile(rb"%b(?:,%b)*(?:->%b)?" % (_TERM, _TERM, _TERM))
"""Of Einsum; the onnx package never ends on some other texts."""
_FormalOption = onnx.defs.OpSchema.FormalParameterOption


@lru_cache(maxsize=4096)
def schema_of(op_type: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    """The schema of an op in this opset version of its domain; None if there is none."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except (onnx.defs.SchemaError, TypeError):  # a version of more than 32 bits is a TypeError
        return None


def newest_opset() -> int:
    """The newest standard opset of the installed onnx package."""
    return int(onnx.defs.onnx_opset_version())


def is_known(node: onnx.NodeProto) -> bool:
    """Whether the onnx package defines the op in any version."""
    return bool(onnx.defs.has(node.op_type, node.domain))


def is_sound(node: onnx.NodeProto, opsets: Mapping[str, int]) -> bool:
    """Whether a node and all nodes in its subgraphs conform to their schemas.

    Inference of the onnx package may crash the process on nodes that do not.
    """
    schema = schema_of(node.op_type, node.domain, opsets.get(node.domain, 1))
    if schema is None:
        return False
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return False
    if not schema.min_output <= len(node.output) <= schema.max_output:
        return False
    for position, name in enumerate(node.input):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if not name and formal.option != _FormalOption.Optional:
            return False
    types = {attribute.name: _TYPES.get(attribute.type) for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in types and attribute.required:
            return False
        if name in types and types[name] != attribute.type:
            return False
    if not all(_is_plausible(node, attribute) for attribute in node.attribute):
        return False
    return all(is_sound(inner, opsets) for body in subgraphs(node) for inner in body.node)


def _is_plausible(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> bool:
    """Whether an attribute that inference uses unchecked, as an index or a text to parse, makes sense."""
    if attribute.name == "equation":
        return bool(_EQUATION.fullmatch(attribute.s))
    if attribute.name == "num_outputs":
        return bool(attribute.i == len(node.output))
    return attribute.name not in ("axis", "axes") or max(map(abs, (attribute.i, *attribute.ints))) < MAX_AXES
