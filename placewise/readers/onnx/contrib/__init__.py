"""Shape inference for ONNX Runtime's contrib ops: fused, quantized and channel-blocked ops.

ONNX Runtime documents them in docs/ContribOperators.md; its optimizer writes com.microsoft.nchwc for CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from placewise.readers.onnx.attributes import attributes_of
from placewise.readers.onnx.contrib import attention, other_ops, products
from placewise.readers.onnx.contrib.context import InferenceContext, Rule
from placewise.readers.onnx.names import kind_of
from placewise.readers.onnx.schemas import newest_opset, schema_of
from placewise.readers.onnx.types import Types, Value, is_complete, shape_of

_DOMAIN = "com.microsoft::"
_RULES = {**products.RULES, **attention.RULES, **other_ops.RULES}

RULES: Mapping[str, Rule] = {
    **{kind if "::" in kind else _DOMAIN + kind: rule for kind, rule in _RULES.items()},
    "LayerNormalization": other_ops.RULES["LayerNormalization"],  # fused models of opsets before 17 have it
    "SimplifiedLayerNormalization": other_ops.RULES["SimplifiedLayerNormalization"],
}
"""Kind → shape inference rule."""

_SAME = ("DequantizeLinear", "GatherND", "GridSample", "Pad", "QuantizeLinear", "Range", "Trilu")
STANDARD: Mapping[str, str] = {
    **{_DOMAIN + kind: kind for kind in _SAME},
    _DOMAIN + "ConvTransposeWithDynamicPads": "ConvTranspose",
    _DOMAIN + "FusedGemm": "Gemm",
}
"""Kinds with the shapes of a standard op."""
_ARGUMENTS = {"ConvTranspose": 2, "Gemm": 3}


def has_rule(node: onnx.NodeProto) -> bool:
    """Whether this op's output shapes can be inferred from those of its inputs."""
    return kind_of(node) in RULES or kind_of(node) in STANDARD


def infer_by_rule(node: onnx.NodeProto, types: Types, values: Mapping[str, Value]) -> Types:
    """The types of a node's outputs; {} if there is no rule, or if inputs are unknown or invalid."""
    rule = RULES.get(kind_of(node))
    if rule is None or not all(is_complete(types.get(name)) for name in node.input if name):
        return {}
    try:
        results = rule(_inference_context(node, types, values))
        return {
            name: onnx.helper.make_tensor_type_proto(result[1], list(result[0]))
            for name, result in zip(node.output, results, strict=False)
            if name and result is not None and min(result[0], default=0) >= 0
        }
    except (LookupError, ValueError, TypeError, ArithmeticError):
        return {}


def standard_equivalent(node: onnx.NodeProto, values: Mapping[str, Value]) -> onnx.NodeProto | None:
    """The standard op with the same shapes, without unsupported attributes and inputs; None if there is none."""
    kind = STANDARD.get(kind_of(node))
    schema = schema_of(kind, "", newest_opset()) if kind else None
    if kind is None or schema is None:
        return None
    standard = onnx.helper.make_node(kind, list(node.input)[: _ARGUMENTS.get(kind, len(node.input))], node.output)
    standard.attribute.extend(a for a in node.attribute if a.name in schema.attributes)
    if kind == "ConvTranspose" and len(node.input) > 2 and node.input[2] in values:
        pads = values[node.input[2]].reshape(-1).tolist()
        standard.attribute.append(onnx.helper.make_attribute("pads", pads))
    return standard


def _inference_context(node: onnx.NodeProto, types: Types, values: Mapping[str, Value]) -> InferenceContext:
    inputs = {position: name for position, name in enumerate(node.input) if name}
    shapes = {position: shape_of(types[name]) or () for position, name in inputs.items()}
    dtypes = {position: types[name].tensor_type.elem_type for position, name in inputs.items()}
    known = {position: values[name] for position, name in inputs.items() if name in values}
    return InferenceContext(attributes_of(node), shapes, dtypes, known)
