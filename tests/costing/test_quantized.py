"""Products in QDQ form: int8 where a device has it, floats where not, and what ONNX Runtime makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_files import make_node, saved

import placewise as pw
from placewise.costing.quantized import quantize_work
from placewise.costing.work import work_of
from placewise.model.dtypes import dtype_code
from placewise.model.graph import Graph
from placewise.model.quantized import held_bytes
from placewise.readers.onnx import read_onnx

CLUSTER = """
[[devices]]
name = "int8"
memory_bandwidth = 1e9
peak_flops = { float32 = 1e9, int8 = 4e9 }
[[devices]]
name = "float"
memory_bandwidth = 1e9
peak_flops = { float32 = 1e9 }
"""


def undone(name: str) -> onnx.NodeProto:
    return make_node("DequantizeLinear", [name, "s", "z"], [f"{name}.f"], name=f"undo.{name}")


def done(name: str) -> onnx.NodeProto:
    return make_node("QuantizeLinear", [name, "s", "z"], [f"{name}.q"], name=f"do.{name}")


def model(
    folder: Path, nodes: list[onnx.NodeProto], outputs: dict[str, tuple[int, ...]], shape: tuple[int, ...]
) -> Path:
    """Nodes over an input `x`, factors and a kernel of 32 elements, a scale and a zero."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.integers(-99, 99, (8, 4)).astype(np.int8), "k": rng.integers(-99, 99, (4, 8, 1, 1)).astype(np.int8),
        "s": np.float32(0.1), "z": np.int8(0), "plain": np.ones((8, 4), np.float32),
    }  # fmt: skip
    used = {name for node in nodes for name in node.input}
    weights = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items() if name in used]
    float_ = onnx.TensorProto.FLOAT
    made = [onnx.helper.make_tensor_value_info(name, float_, dims) for name, dims in outputs.items()]
    given = [onnx.helper.make_tensor_value_info("x", float_, shape)]
    graph = onnx.helper.make_graph(nodes, "graph", given, made, weights)
    return saved(folder, onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10))


def conv(folder: Path, *more: onnx.NodeProto, **outputs: tuple[int, ...]) -> Path:
    """x → Q → DQ → Conv → Q → DQ → y.q.f, whose kernel is of int8."""
    nodes = [done("x"), undone("x.q"), undone("k"), make_node("Conv", ["x.q.f", "k.f"], ["y"], name="conv")]
    return model(folder, [*nodes, done("y"), undone("y.q"), *more], {"y.q.f": (2, 4, 5, 5), **outputs}, (2, 8, 5, 5))


def product(folder: Path, weight: str = "w", *, rounded: bool = False) -> Path:
    """x → Q → DQ → MatMul, whose right factor is of int8 or a plain one of floats; its result rounded or not."""
    factor = [undone("w")] if weight == "w" else []
    right = "w.f" if weight == "w" else weight
    nodes = [done("x"), undone("x.q"), *factor, make_node("MatMul", ["x.q.f", right], ["y"], name="product")]
    more = [done("y"), undone("y.q")] if rounded else []
    return model(folder, [*nodes, *more], {"y.q.f" if rounded else "y": (16, 4)}, (16, 8))


def by_name(graph: Graph) -> dict[str, int]:
    return {name: op for op, name in enumerate(graph.ops.name)}


def test_a_convolution_by_hand(tmp_path: Path) -> None:
    """800 bytes in, 32 of weights, 400 out: read and written as int8, with the FLOPs of before and no ops around it."""
    graph = read_onnx(conv(tmp_path)).graph
    before, op = work_of(graph), by_name(graph)
    after = quantize_work(graph, before)
    assert before.bytes[op["conv"]] == 4 * (2 * 8 * 25 + 32 + 2 * 4 * 25)
    assert after.bytes[op["conv"]] == 2 * 8 * 25 + 32 + 2 * 4 * 25
    assert after.flops[op["conv"]] == before.flops[op["conv"]] == 2 * 8 * 200
    free = {name for name, row in op.items() if after.op_class[row] == "free"}
    assert free == {"undo.x.q", "undo.k", "do.y"}
    same = [row for name, row in op.items() if name in ("do.x", "undo.y.q")]
    assert (after.bytes[same] == before.bytes[same]).all()


def test_seconds_by_device(tmp_path: Path) -> None:
    """The device that has int8 computes and reads in it, the other one in floats, conversions and all."""
    file = tmp_path / "c.toml"
    file.write_text(CLUSTER)
    problem = pw.build(conv(tmp_path), str(file))
    op, seconds = by_name(problem.graph), problem.costs.op_seconds
    assert seconds[op["conv"]] == pytest.approx([max(3200 / 4e9, 632 / 1e9), max(3200 / 1e9, 2528 / 1e9)])
    assert seconds[op["undo.k"], 0] == 0 < seconds[op["undo.k"], 1]


def test_no_floats_are_held_between_ops_that_run_as_one(tmp_path: Path) -> None:
    """Bytes of int8 into and out of the convolution, and none beside its kernel; floats that others read are held, and
    all floats where not every device has int8.
    """
    file = tmp_path / "c.toml"
    relu = make_node("Relu", ["x.q.f"], ["r"], name="relu")
    int8 = CLUSTER.split('[[devices]]\nname = "float"')[0]
    for cluster, read, expected in (
        (int8, False, [400, 400, 0, 200, 200, 800]),
        (CLUSTER, False, [400, 1600, 128, 800, 200, 800]),
        (int8, True, [400, 1600, 0, 200, 200, 800]),
    ):
        file.write_text(cluster)
        path = conv(tmp_path, relu, r=(2, 8, 5, 5)) if read else conv(tmp_path)
        problem = pw.build(path, str(file))
        held = dict(zip(problem.graph.tensors.name, held_bytes(problem).tolist(), strict=True))
        assert [held[name] for name in ("x.q", "x.q.f", "k.f", "y", "y.q", "y.q.f")] == expected


def test_floats_are_held_in_one_block_where_nothing_fuses(tmp_path: Path) -> None:
    """A user's wish to keep ops together makes no int8 of them."""
    file = tmp_path / "c.toml"
    file.write_text(CLUSTER)
    problem = pw.build(conv(tmp_path), str(file))
    together = (("undo.x.q", "undo.k", "conv", "do.y"),)
    joined = problem.with_(constraints=replace(problem.constraints, together=together))
    assert held_bytes(joined).tolist() == held_bytes(problem).tolist()


@pytest.mark.parametrize(("kind", "together"), [("gpu", False), ("cpu", True), ("core", True)])
def test_ops_that_run_as_one_stay_together_where_they_do(tmp_path: Path, kind: str, together: bool) -> None:
    """On a CPU without int8 in one block, at the peak of floats; on a GPU without it each for itself."""
    file = tmp_path / "c.toml"
    file.write_text(
        f'[[devices]]\nname = "it"\nkind = "{kind}"\nmemory_bandwidth = 1e9\npeak_flops = {{ float32 = 1e9 }}\n'
    )
    problem = pw.build(conv(tmp_path), str(file))
    op = by_name(problem.graph)
    blocks = {int(problem.block[op[name]]) for name in ("undo.x.q", "undo.k", "conv", "do.y")}
    assert (len(blocks) == 1) == together == any("one int8 op" in warning for warning in problem.warnings)
    assert (problem.costs.op_seconds[op["undo.k"], 0] == 0) == together
    assert problem.costs.op_seconds[op["conv"], 0] == pytest.approx(max(3200 / 1e9, (632 if together else 2528) / 1e9))


def test_what_fits_in_int8_is_not_proved_infeasible(tmp_path: Path) -> None:
    """Floats of the kernel and of both results would not fit."""
    file = tmp_path / "c.toml"
    file.write_text(CLUSTER.replace("[[devices]]", "[[devices]]\nmemory = 2100", 1).split("[[devices]]\nname")[0])
    plan = pw.place(conv(tmp_path), str(file), objective="throughput")
    assert plan.status == "optimal"


def test_what_others_read_stays(tmp_path: Path) -> None:
    """Floats that somebody else reads are made: of the input, of the result, and a result of the model itself."""
    relu = make_node("Relu", ["x.q.f"], ["r"], name="relu")
    graph = read_onnx(conv(tmp_path, relu, r=(2, 8, 5, 5))).graph
    after, op = quantize_work(graph, work_of(graph)), by_name(graph)
    assert after.dtype[op["conv"]] == dtype_code("int8")
    assert after.flops[op["undo.x.q"]] > 0 and after.flops[op["undo.k"]] == 0
    relu = make_node("Relu", ["y"], ["r"], name="relu")
    graph = read_onnx(conv(tmp_path, relu, r=(2, 4, 5, 5))).graph
    assert quantize_work(graph, work_of(graph)).flops.tolist() == work_of(graph).flops.tolist()


@pytest.mark.parametrize("rounded", [False, True])
def test_products(tmp_path: Path, rounded: bool) -> None:
    """A product needs no QuantizeLinear behind it, and both factors of int8."""
    graph = read_onnx(product(tmp_path, rounded=rounded)).graph
    after, op = quantize_work(graph, work_of(graph)), by_name(graph)
    assert after.bytes[op["product"]] == 16 * 8 + 8 * 4 + 16 * 4 * (1 if rounded else 4)
    assert not rounded or after.flops[op["do.y"]] == 0
    graph = read_onnx(product(tmp_path, "plain", rounded=rounded)).graph
    assert quantize_work(graph, work_of(graph)).bytes.tolist() == work_of(graph).bytes.tolist()


def test_what_onnx_runtime_makes_of_them(tmp_path: Path) -> None:
    """The same ops become one, and none where a factor is of floats."""
    onnxruntime = pytest.importorskip("onnxruntime")

    def kinds(path: Path) -> list[str]:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return sorted(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)

    assert kinds(conv(tmp_path)) == ["DequantizeLinear", "QLinearConv", "QuantizeLinear"]
    assert kinds(product(tmp_path)) == ["MatMulIntegerToFloat", "QuantizeLinear"]
    assert kinds(product(tmp_path, rounded=True)) == ["DequantizeLinear", "QLinearMatMul", "QuantizeLinear"]
    assert "MatMul" in kinds(product(tmp_path, "plain"))
