"""Small models for OpenVINO: a branching IR that openvino writes, an ONNX model, and jobs on two logical devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import openvino as ov
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as op

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.cluster import Cluster, Device
from placewise.model.placement import Placement
from placewise.runtimes.base import Job
from placewise.runtimes.binding import bind

CORE = "cores:{0}"


def two(*, unsupported=()) -> Cluster:
    """Two devices in host memory; the first may not run some kinds."""
    kinds = frozenset(unsupported), frozenset()
    speeds = {"float32": 5e10, "int64": 5e10}
    return Cluster(tuple(Device(f"cpu:{n}", "cpu", 1e9, peak_flops=speeds, unsupported=kinds[n]) for n in (0, 1)))


def branching(folder: Path, *, layers: int = 6, name: str = "branching") -> Path:
    """An IR with an open batch: matrix products with two branches, a shared weight, an identity transpose folded."""
    rng = np.random.default_rng(1)
    x = op.parameter([-1, 8], np.float32, name="x")
    tied = op.constant(rng.standard_normal((8, 8)).astype(np.float32) / 3, name="tied")
    value = x
    for layer in range(layers):
        own = op.constant(rng.standard_normal((8, 8)).astype(np.float32) / 3, name=f"w{layer}")
        left = op.relu(op.matmul(value, own, False, False, name=f"left{layer}"), name=f"relu{layer}")
        right = op.tanh(op.matmul(value, tied, False, True, name=f"right{layer}"), name=f"tanh{layer}")
        value = op.add(left, right, name=f"add{layer}")
    model = ov.Model([op.result(value, name="y"), op.result(op.softmax(value, 1, name="soft"), name="z")], [x], name)
    path = folder / f"{name}.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def mixed(folder: Path) -> Path:
    """An IR of a scalar, truth values, bfloat16, which numpy does not have itself, and an input that no op reads."""
    x = op.parameter([], np.float32, name="x")
    mask = op.parameter([3], bool, name="mask")
    brain = op.parameter([3], ov.Type.bf16, name="brain")
    spare = op.parameter([2], np.int64, name="spare")
    sums = op.add(op.convert(op.exp(brain, name="exp"), "f32", name="wide"), x, name="sum")
    chosen = op.select(mask, sums, op.negative(sums, name="minus"), name="chosen")
    model = ov.Model([op.result(chosen), op.result(op.relu(brain, name="relu"))], [x, spare, mask, brain], "mixed")
    path = folder / "mixed.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def classifier(folder: Path, *, weights: bool = True) -> Path:
    """An ONNX model that OpenVINO takes apart: Conv, BatchNormalization, Relu, a mean, Gemm, LayerNormalization."""
    rng = np.random.default_rng(2)
    shapes = {"k": (4, 3, 3, 3), "scale": (4,), "bias": (4,), "mean": (4,), "var": (4,), "w": (8, 4), "b": (8,)}
    shapes |= {"ln": (8,), "lnb": (8,)}
    tensors = []
    for name, shape in shapes.items():
        values = np.abs(rng.standard_normal(shape)).astype(np.float32) + 0.1
        tensor = numpy_helper.from_array(values, name)
        if not weights:
            onnx.external_data_helper.set_external_data(tensor, "lost.bin", 0, values.nbytes)
            tensor.ClearField("raw_data")
        tensors.append(tensor)
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"], "norm"),
        helper.make_node("Identity", ["n"], ["i"], "same"),
        helper.make_node("Relu", ["i"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], "pool, with a comma"),
        helper.make_node("Flatten", ["g"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w", "b"], ["s"], "head", transB=1),
        helper.make_node("LayerNormalization", ["s", "ln", "lnb"], ["out"], "last"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 8])
    graph = helper.make_graph(nodes, "classifier", [x], [out], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "classifier.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def job(path: Path, device=0, *, cluster=None, said=None, dims=None, view=None, **options) -> Job:
    """A job on two logical devices of one core each, bound as `said`."""
    cluster = cluster or two()
    problem = build(str(path), cluster, ProblemOptions(dims={"batch": 2} if dims is None else dims, view=view))
    column = np.full(problem.n_ops, device) if np.isscalar(device) else np.asarray(device)
    said = said or {name: CORE.format(0) for name in cluster.names}
    return Job(problem, Placement(column.astype(np.int32)), bind(cluster, said), options=options, seconds=60.0)
