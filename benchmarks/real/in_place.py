"""Which kinds of ops ONNX Runtime computes in place, seen in its arena, beside what the judge takes for granted.

    python benchmarks/real/in_place.py

Each kind is put between two transposes, all as they stand (no optimization): it works in place if the bytes that the
arena has handed out do not grow while it runs. Behind convolutions, with all optimizations, batch normalization and a
sum must be gone: they are a part of a kernel. Writes results/real_in_place.json and .md, and exits with 1 where the
judge assumes what ONNX Runtime does not do.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from common import command, report
from onnx import helper

from placewise.simulate.in_place import IN_PLACE, VIEWS

SIDE = 128
SHAPE = (1, 4, SIDE, SIDE)
UNARY = (
    "Abs", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "Identity", "LeakyRelu", "Log",
    "LogSoftmax", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Softmax",
    "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu", "Transpose",
)  # fmt: skip
BINARY = ("Add", "Div", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum")
MORE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Cast": ({"to": onnx.TensorProto.INT32}, {}),
    "Flatten": ({"axis": 3}, {}),
    "Reshape": ({}, {"to": np.array([4 * SIDE, SIDE])}),
    "Squeeze": ({}, {"axes": np.array([0])}),
    "Unsqueeze": ({}, {"axes": np.array([0])}),
    "LayerNormalization": ({}, {"scale": np.ones(SIDE, np.float32)}),
    "BatchNormalization": ({}, {name: np.ones(4, np.float32) for name in ("scale", "bias", "mean", "variance")}),
    "PRelu": ({}, {"slope": np.ones(1, np.float32)}),
}
"""Attributes and further arguments."""


def grown(kind: str) -> float:
    """What the arena handed out while an op of the kind ran, as a share of its result."""
    attributes, arguments = MORE.get(kind, ({}, {}))
    reads = ["a", "b"] if kind in BINARY else ["a", *arguments]
    nodes = [helper.make_node("Transpose", [x], [y], perm=[0, 1, 3, 2]) for x, y in (("x", "a"), ("y", "b"))]
    nodes += [helper.make_node(kind, reads, ["made"], name="probe", **attributes)]
    nodes += [helper.make_node("Transpose", ["made"], ["z"]), helper.make_node("Transpose", ["b"], ["other"])]
    if kind in BINARY:
        nodes.pop()
    made = next(node for node in ran(nodes, arguments, optimized=False) if node["name"].startswith("probe"))
    return int(made["args"]["mem_requested_in_use_delta"]) / int(made["args"]["output_size"])


def kernels_after_conv(kind: str) -> list[str]:
    """The ops that are left of two convolutions and an op of the kind behind them, or behind one of them."""
    weight = np.ones((4, 4, 3, 3), np.float32)
    arguments = {"weight": weight} | (MORE[kind][1] if kind in MORE else {})
    reads = ["a", "b"] if kind in BINARY else ["a", *MORE[kind][1]]
    nodes = [
        helper.make_node("Conv", [x, "weight"], [y], pads=[1, 1, 1, 1])
        for x, y in (("x", "a"), ("y", "b"))
        if y in reads
    ]
    nodes.append(helper.make_node(kind, reads, ["z"]))
    return [node["args"]["op_name"] for node in ran(nodes, arguments, optimized=True)]


def ran(nodes: Sequence[onnx.NodeProto], arguments: dict[str, Any], *, optimized: bool) -> list[dict[str, Any]]:
    """The nodes of one run, as the profile has them."""
    images = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, SHAPE) for name in ("x", "y")]
    ends = [name for name in ("z", "other") if any(name in node.output for node in nodes)]
    weights = [onnx.numpy_helper.from_array(values, name) for name, values in arguments.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in ends]
    model = helper.make_model(
        helper.make_graph(nodes, "probe", images, outputs, weights), opset_imports=[helper.make_opsetid("", 20)]
    )
    model.ir_version = 10
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.enable_mem_pattern, options.enable_profiling, options.log_severity_level = False, True, 4
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        inferred = onnx.shape_inference.infer_shapes(model).SerializeToString()
        session = ort.InferenceSession(inferred, options, providers=["CPUExecutionProvider"])
        session.run(None, {name: np.ones(SHAPE, np.float32) for name in ("x", "y")})
        events = json.loads(Path(session.end_profiling()).read_text())
    return [event for event in events if event["cat"] == "Node"]


def main() -> int:
    """Every kind; the exit code."""
    rows: list[dict[str, Any]] = [{"kind": kind, "grown": grown(kind)} for kind in sorted({*UNARY, *BINARY, *MORE})]
    fused = {kind: kernels_after_conv(kind) for kind in ("BatchNormalization", "Add", "Sum")}
    seen, assumed = {one["kind"] for one in rows if one["grown"] == 0}, VIEWS | IN_PLACE
    wrong = [f"{kind} is assumed to work in place, and does not" for kind in sorted(assumed - seen)]
    wrong += [f"{kind} after Conv stays: {', '.join(left)}" for kind, left in fused.items() if kind in left]
    others = ", ".join(one["kind"] for one in rows if one["grown"])
    text = [
        "# What ONNX Runtime computes in place", "", f"`{command()}`, onnxruntime {ort.__version__}, CPU.", "",
        f"In place: {', '.join(sorted(seen))}.", "", f"Not in place: {others}.", "",
        "In place, and not assumed by the judge: " + (", ".join(sorted(seen - assumed)) or "none") + ".", "",
        *(f"Left of Conv, then {kind}, optimized: {', '.join(left)}." for kind, left in fused.items()),
    ]  # fmt: skip
    return report("in_place", [*rows, {"fused": fused}], wrong, "\n".join(text))


if __name__ == "__main__":
    sys.exit(main())
