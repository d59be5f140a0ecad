"""Describe the work in the bodies of If, Loop, Scan and SequenceMap as plain values, for costing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import onnx

from placewise.readers.onnx.attributes import attributes_of
from placewise.readers.onnx.control_flow import WITH_BODIES, BodyModel, instantiate_bodies
from placewise.readers.onnx.names import kind_of
from placewise.readers.onnx.shapes import MAX_BODY_DEPTH, infer_values
from placewise.readers.onnx.types import InferredValues, Types, compute_dtype, dtype_of, shape_of


def describe_bodies(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], known: InferredValues, depth: int = 0
) -> Mapping[int, tuple[dict[str, Any], ...]]:
    """By index of a node with bodies, a description of each: ``{"rounds": …, "ops": …}``, rounds −1 if unknown.

    An op is ``{"kind", "attributes", "dtype", "inputs", "outputs", "times"}``. Inputs are (position, dimensions,
    element type), outputs (dimensions, element type); dimensions are None if the rank is unknown.
    """
    described = {}
    for index, node in enumerate(nodes):
        if depth < MAX_BODY_DEPTH and node.op_type in WITH_BODIES:
            bodies = instantiate_bodies(model, node, known, partial(infer_values, depth=depth + 1))
            if bodies and all(body.known is not None for body in bodies):
                described[index] = tuple(_describe_body(body, depth) for body in bodies)
    return described


def _describe_body(body: BodyModel, depth: int) -> dict[str, Any]:
    known = body.known or InferredValues({})
    nodes = list(body.model.graph.node)
    inner = describe_bodies(body.model, nodes, known, depth + 1)
    ops = [_describe_op(node, known.types, inner.get(index)) for index, node in enumerate(nodes)]
    times, first = Counter(map(repr, ops)), {repr(op): op for op in ops}
    return {"rounds": body.rounds, "ops": tuple({**op, "times": times[key]} for key, op in first.items())}


def _describe_op(node: onnx.NodeProto, types: Types, bodies: tuple[dict[str, Any], ...] | None) -> dict[str, Any]:
    def kind(name: str) -> tuple[tuple[int, ...] | None, str]:
        return (shape_of(types.get(name)), dtype_of(types.get(name))) if name else ((0,), "bool")

    return {
        "kind": kind_of(node),
        "attributes": attributes_of(node) | ({} if bodies is None else {"bodies": bodies}),
        "dtype": compute_dtype(node, types),
        "inputs": tuple((position, *kind(name)) for position, name in enumerate(node.input) if name),
        "outputs": tuple(kind(name) for name in node.output),
    }
