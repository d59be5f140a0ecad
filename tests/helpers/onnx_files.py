"""Small ONNX models for the tests: written to a folder, or drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def weight(name: str, *shape: int) -> TensorProto:
    """Ones of this shape."""
    return onnx.numpy_helper.from_array(np.ones(shape, np.float32), name)


def integers(name: str, values: Any) -> TensorProto:
    return onnx.numpy_helper.from_array(np.array(values, np.int64), name)


def model(
    nodes: Sequence[NodeProto],
    inputs: dict[str, Sequence[int | str | None]],
    outputs: Sequence[str],
    weights: Sequence[TensorProto] = (),
    *,
    opset: int = 18,
    domains: Sequence[str] = (),
    **extra: Any,
) -> onnx.ModelProto:
    """A model with float inputs; its outputs are declared without shapes."""
    graph = make_graph(
        list(nodes),
        "graph",
        [make_tensor_value_info(name, FLOAT, list(shape)) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        list(weights),
    )
    opsets = [make_opsetid("", opset), *(make_opsetid(domain, 1) for domain in domains)]
    return make_model(graph, opset_imports=opsets, **extra)


def saved(folder: Path, content: onnx.ModelProto, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(content.SerializeToString())
    return path


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Random acyclic models over [2, 3] floats, with constants, identities, dropout and arithmetic on shapes."""
    floats, shapes = ["x", "z", "w", "v"], ["two_three"]
    nodes: list[NodeProto] = []
    for index in range(draw(st.integers(1, 14))):
        out = f"t{index}"
        kind = draw(st.sampled_from(
            ["Add", "Mul", "Relu", "Identity", "Dropout", "Constant", "Shape", "Reshape", "ConstantOfShape", "Chain"]
        ))  # fmt: skip
        one, two, shape = (draw(st.sampled_from(pool)) for pool in (floats, floats, shapes))
        if kind in ("Add", "Mul"):
            nodes.append(make_node(kind, [one, two], [out]))
        elif kind == "Reshape":
            nodes.append(make_node(kind, [one, shape], [out]))
        elif kind == "ConstantOfShape":
            nodes.append(make_node(kind, [shape], [out]))
        elif kind == "Constant":
            value = onnx.numpy_helper.from_array(np.full((2, 3), index, np.float32))
            nodes.append(make_node(kind, [], [out], value=value))
        elif kind == "Shape":
            nodes.append(make_node(kind, [one], [out]))
        elif kind == "Chain":
            nodes.append(make_node("Shape", [one], [f"{out}_shape"]))
            nodes.append(make_node("Gather", [f"{out}_shape", "zero"], [f"{out}_first"]))
            nodes.append(make_node("Gather", [f"{out}_shape", "one"], [f"{out}_last"]))
            nodes.append(make_node("Concat", [f"{out}_first", f"{out}_last"], [out], axis=0))
        else:
            nodes.append(make_node(kind, [one], [out]))
        (shapes if kind in ("Shape", "Chain") else floats).append(out)
    made = [name for node in nodes for name in node.output]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    weights = [weight("w", 2, 3), weight("v", 2, 3), integers("two_three", [2, 3])]
    weights += [integers("zero", [0]), integers("one", [1])]
    order = draw(st.permutations(range(len(nodes)))) if draw(st.booleans()) else range(len(nodes))
    return model([nodes[i] for i in order], {"x": [2, 3], "z": ["n", 3]}, outputs, weights)


def run(content: onnx.ModelProto, seed: int) -> dict[str, Any]:
    """Every value of a model on random inputs, by onnx's reference implementation."""
    ordered = onnx.ModelProto()
    ordered.CopyFrom(content)
    del ordered.graph.node[:]
    known = {tensor.name for tensor in content.graph.initializer} | {value.name for value in content.graph.input}
    left = list(content.graph.node)
    while left:
        node = next(node for node in left if known.issuperset(filter(None, node.input)))
        left.remove(node)
        known.update(node.output)
        ordered.graph.node.append(node)
    random = np.random.default_rng(seed)
    feeds = {value.name: random.random((2, 3), np.float32) for value in content.graph.input}
    values = onnx.reference.ReferenceEvaluator(ordered).run(None, feeds, intermediate=True)
    return {name: value for name, value in values.items() if name}
