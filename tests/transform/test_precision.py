"""cast_floats and quantize_weights: a graph as the runtime's own cast would have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from placewise.catalog import read_cluster
from placewise.costing.roofline import cost_table
from placewise.costing.work import work_of
from placewise.errors import InputError
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph
from placewise.readers.onnx import read_onnx
from placewise.transform.fold import fold
from placewise.transform.precision import PRECISIONS, cast_floats, precision_of, quantize_weights

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}
CLUSTER = read_cluster("A100,L4,RTX-4090,T4,cpu,disk")


def floats(name: str, dtype: str, *shape: int) -> TensorProto:
    return onnx.numpy_helper.from_array(np.ones(shape, dtype), name)


def one_of_everything(dtype: str) -> onnx.ModelProto:
    """A model in one element type: convolutions, norms, lookups, casts, shape arithmetic, a loop, sizes in float32."""
    body = make_graph(
        [make_node("Identity", ["go"], ["on"]), make_node("MatMul", ["state", "loop_w"], ["after"])],
        "body",
        [make_tensor_value_info("i", TensorProto.INT64, []), make_tensor_value_info("go", TensorProto.BOOL, []),
         make_tensor_value_info("state", TYPES[dtype], [1, 16])],
        [make_tensor_value_info("on", TensorProto.BOOL, []), make_tensor_value_info("after", TYPES[dtype], [1, 16])],
    )  # fmt: skip
    nodes = [
        make_node("Conv", ["x", "kernel", "bias"], ["conv"], pads=[1, 1, 1, 1]),
        make_node("Relu", ["conv"], ["relu"]),
        make_node("Resize", ["relu", "", "scales"], ["wide"], mode="nearest"),
        make_node("GlobalAveragePool", ["wide"], ["pooled"]),
        make_node("Shape", ["pooled"], ["dims"]),
        make_node("Gather", ["dims", "first"], ["batch"]),
        make_node("Concat", ["batch", "rest"], ["flat_dims"], axis=0),
        make_node("Reshape", ["pooled", "flat_dims"], ["flat"]),
        make_node("Squeeze", ["ids", "first"], ["id"]),
        make_node("Gather", ["table", "id"], ["looked_up"]),
        make_node("Cast", ["id"], ["numbers"], to=TYPES[dtype]),
        make_node("Mul", ["looked_up", "numbers"], ["scaled"]),
        make_node("Add", ["flat", "scaled"], ["sum"]),
        make_node("LayerNormalization", ["sum", "scale", "shift"], ["normed"]),
        make_node("Loop", ["three", "", "normed"], ["looped"], body=body),
        make_node("Gemm", ["looped", "matrix", "shift"], ["product"], transB=1),
        make_node("Softmax", ["product"], ["y"]),
        make_node("ArgMax", ["product"], ["best"], axis=1),
    ]
    weights = [
        floats("kernel", dtype, 16, 3, 3, 3), floats("bias", dtype, 16), floats("table", dtype, 50, 16),
        floats("scale", dtype, 16), floats("shift", dtype, 16), floats("matrix", dtype, 16, 16),
        floats("loop_w", dtype, 16, 16), onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
        *(onnx.numpy_helper.from_array(np.array(v, np.int64), n)
          for n, v in {"first": [0], "rest": [16], "three": 3}.items()),
    ]  # fmt: skip
    inputs = [make_tensor_value_info("x", TYPES[dtype], [1, 3, 8, 8]),
              make_tensor_value_info("ids", TensorProto.INT64, [1, 1])]  # fmt: skip
    outputs = [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="best")]
    return make_model(make_graph(nodes, "g", inputs, outputs, weights), opset_imports=[make_opsetid("", 18)])


def read(folder: Path, model: onnx.ModelProto) -> Graph:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return read_onnx(path).graph


def columns(graph: Graph) -> list[Any]:
    work = work_of(graph)
    return [
        graph.digest(), graph.tensors.bytes, graph.tensors.dtype, graph.weights.bytes, graph.weights.dtype,
        graph.ops.dtype, work.flops, work.bytes, work.dtype, cost_table(graph, CLUSTER).op_seconds,
        cost_table(graph, CLUSTER).transfer_seconds,
    ]  # fmt: skip


@pytest.mark.parametrize("view", ["raw", "folded"])
@pytest.mark.parametrize(("name", "dtype"), [("fp16", "float16"), ("fp64", "float64"), ("fp32", "float32")])
@pytest.mark.parametrize("written_in", ["float32", "float16"])
def test_a_cast_model_is_the_model_exported_so(
    tmp_path: Path, view: str, name: str, dtype: str, written_in: str
) -> None:
    """Bytes, element types, FLOPs and seconds on every device are exactly those of the same model in that type."""
    cast, exported = cast_floats(read(tmp_path, one_of_everything(written_in)), name), read(
        tmp_path, one_of_everything(dtype)
    )  # fmt: skip
    if view == "folded":
        cast, exported = fold(cast), fold(exported)
    for ours, theirs in zip(columns(cast), columns(exported), strict=True):
        assert np.array_equal(ours, theirs)


def test_half_of_the_bytes_of_floats(tmp_path: Path) -> None:
    """By hand: the table has 50 × 16 entries; ids stay int64, and so do the float32 scales of Resize."""
    before = read(tmp_path, one_of_everything("float32"))
    after = cast_floats(before, "bf16")
    size = {
        graph: dict(zip(graph.weights.name, graph.weights.bytes.tolist(), strict=True)) for graph in (before, after)
    }
    assert (size[before]["table"], size[after]["table"]) == (3200, 1600)
    assert size[after]["scales"] == 16 and size[after]["rest"] == 8
    ids = after.tensors.name.index("ids")
    assert after.tensors.dtype_name(ids) == "int64" and after.tensors.bytes[ids] == 8
    assert before.tensors.dtype_name(0) == "float32" and after.tensors.dtype_name(0) == "bfloat16"


@pytest.mark.parametrize("name", PRECISIONS)
def test_twice_is_once(tmp_path: Path, name: str) -> None:
    """A graph that was cast is not changed by the same cast, and a source notes it once."""

    def convert(graph: Graph) -> Graph:
        cast = fold(cast_floats(graph, name))
        return quantize_weights(cast, name) if PRECISIONS[name].matrices else cast

    once = convert(read(tmp_path, one_of_everything("float32")))
    twice = convert(once)
    assert once.digest() == twice.digest() and once.source == twice.source
    assert precision_of(once) == ("" if PRECISIONS[name] == PRECISIONS["fp32"] else name)


@pytest.mark.parametrize(
    ("name", "bits", "dtype"), [("int8", 8.5, "int8"), ("int4", 4.5, "int4"), ("fp8", 8, "float8_e4m3")]
)
def test_matrices_alone_are_quantized(tmp_path: Path, name: str, bits: float, dtype: str) -> None:
    """By hand: matrices of 432, 800 and 256 entries, in blocks with a scale; vectors and tensors stay in float16."""
    half = fold(cast_floats(read(tmp_path, one_of_everything("float32")), "fp16"))
    graph = quantize_weights(half, name)
    sizes = dict(zip(graph.weights.name, graph.weights.bytes.tolist(), strict=True))
    kinds = {n: graph.weights.dtype_name(row) for row, n in enumerate(graph.weights.name)}
    for weight, count in {"kernel": 432, "matrix": 256, "loop_w": 256, "table": 800}.items():
        kept = name == "fp8" and weight == "table"
        assert kinds[weight] == ("float16" if kept else dtype)
        blocks = -(-count // 32) * 32 if name != "fp8" else count
        assert sizes[weight] == (2 * count if kept else blocks * bits / 8)
    assert kinds["scale"] == "float16" and sizes["scale"] == 32
    assert np.array_equal(graph.tensors.bytes, half.tensors.bytes)


def test_quantized_products_compute_in_float16_and_fp8_products_in_fp8(tmp_path: Path) -> None:
    """Weights of 4 bits change what a product reads; those of fp8 also its arithmetic."""
    half = fold(cast_floats(read(tmp_path, one_of_everything("float32")), "fp16"))
    gemm = next(op for op in range(half.n_ops) if half.ops.kind[op] == "Gemm")
    plain, four, eight = (
        work_of(graph) for graph in (half, quantize_weights(half, "int4"), quantize_weights(half, "fp8"))
    )
    assert [DTYPES[work.dtype[gemm]] for work in (plain, four, eight)] == ["float16", "float16", "float8_e4m3"]
    assert plain.bytes[gemm] - four.bytes[gemm] == 512 - 144
    assert plain.flops[gemm] == four.flops[gemm] == eight.flops[gemm]


def test_what_cannot_be_cast_is_refused(tmp_path: Path) -> None:
    """A model without floats, one that is quantized already, and one without matrices."""
    ids = make_tensor_value_info("ids", TensorProto.INT64, [4])
    whole = make_graph([make_node("Abs", ["ids"], ["y"])], "g", [ids], [onnx.ValueInfoProto(name="y")])
    with pytest.raises(InputError, match="no tensor of the model is known to be of floats"):
        cast_floats(read(tmp_path, make_model(whole)), "fp16")
    x = make_tensor_value_info("x", TensorProto.FLOAT, [4])
    vector = make_graph([make_node("Add", ["x", "b"], ["y"])], "g", [x], [onnx.ValueInfoProto(name="y")],
                        [floats("b", "float32", 4)])  # fmt: skip
    with pytest.raises(InputError, match="no weight of the model is a matrix of floats: --precision int4"):
        quantize_weights(read(tmp_path, make_model(vector)), "int4")
    nodes = [make_node("QuantizeLinear", ["x", "s"], ["q"]), make_node("DequantizeLinear", ["q", "s"], ["y"])]
    qdq = make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], [floats("s", "float32")])
    with pytest.raises(InputError, match=r"is quantized already, .* or give --precision fp16"):
        quantize_weights(read(tmp_path, make_model(qdq)), "int8")
