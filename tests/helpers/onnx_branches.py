"""ONNX models with branches, small, with weights of their own: what runtimes are tested on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.reference
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

WIDTH = 16


def branching(seed: int = 0, *, width: int = WIDTH, batch: int | str = 2) -> onnx.ModelProto:
    """Matrix products in two branches that exchange a tensor, with constants, identities, a shape and two outputs."""
    rng = np.random.default_rng(seed)
    weights = [from_array(rng.standard_normal((width, width)).astype(np.float32) / 4, f"w{k}") for k in range(5)]
    weights.append(from_array(np.array([width], np.int64), "tail"))
    nodes = [
        make_node("MatMul", ["x", "w0"], ["a"], "a"),
        make_node("MatMul", ["a", "w1"], ["b"], "b"),
        make_node("MatMul", ["a", "w2"], ["c"], "c"),
        make_node("Identity", ["c"], ["c_same"], "same"),
        make_node("Relu", ["b"], ["d"], "d"),
        make_node("Add", ["d", "c_same"], ["e"], "e"),
        make_node("Constant", [], ["half"], "half", value=from_array(np.float32(0.5))),
        make_node("Mul", ["e", "half"], ["f"], "f"),
        make_node("Mul", ["c_same", "half"], ["g"], "g"),
        make_node("Shape", ["c_same"], ["rows"], "rows", start=0, end=1),
        make_node("Concat", ["rows", "tail"], ["target"], "target", axis=0),
        make_node("MatMul", ["g", "w3"], ["h"], "h"),
        make_node("Reshape", ["f", "target"], ["i"], "i"),
        make_node("MatMul", ["i", "w4"], ["j"], "j"),
        make_node("Add", ["h", "j"], ["y"], "y"),
        make_node("Softmax", ["j"], ["z"], "z"),
    ]  # fmt: skip
    return modelled(nodes, {"x": [batch, width]}, {"y": [batch, width], "z": [batch, width]}, weights)


def modelled(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    weights: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    """A model of float inputs and outputs."""
    values = [[make_tensor_value_info(*item) for item in typed] for typed in (_floats(inputs), _floats(outputs))]
    graph = make_graph(nodes, "graph", *values, weights or [])
    return make_model(graph, opset_imports=[make_opsetid("", 18)], ir_version=10)


def _floats(values: dict[str, list[int | str]]) -> list[tuple[str, int, list[int | str]]]:
    return [(name, onnx.TensorProto.FLOAT, shape) for name, shape in values.items()]


def of_newest_ir() -> onnx.ModelProto:
    """`branching`, as the onnx package marks what it makes: with its newest IR version, though the opset is old."""
    model = branching()
    model.ir_version, model.opset_import[0].version = onnx.IR_VERSION, 17
    return model


def written(folder: Path, model: onnx.ModelProto, name: str = "model.onnx") -> str:
    """The path of the model, saved."""
    onnx.save(model, folder / name)
    return str(folder / name)


def reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs by onnx's reference implementation."""
    found = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    return dict(zip([value.name for value in model.graph.output], found, strict=True))
