"""The ONNX reader on the ops that ONNX Runtime adds: shapes against those that ONNX Runtime makes, or by hand."""

import numpy as np
import onnx
import pytest
from onnx.helper import make_node
from onnx_contrib import HAND, I32, RUN, a_model
from onnx_files import integers, model, saved

from placewise.costing.flops import CONTROL
from placewise.costing.flops import RULES as COSTS
from placewise.costing.work import work_of
from placewise.readers.onnx import read_onnx
from placewise.readers.onnx.contrib import RULES, STANDARD
from placewise.readers.onnx.types import dtype_name


def shapes_read(folder, content):
    """Element type and shape of every result, as read."""
    graph = read_onnx(saved(folder, content)).graph
    return {
        name: (graph.tensors.dtype_name(row), graph.tensors.shape[row])
        for row, name in enumerate(graph.tensors.name)
        if name.startswith("y")
    }


@pytest.mark.parametrize(("kind", "arguments", "attributes", "outputs"), RUN, ids=lambda value: str(value)[:30])
def test_shapes_are_those_that_onnxruntime_makes(tmp_path, kind, arguments, attributes, outputs):
    """Element type and shape of each result, by running the op on zeros; and the op has a cost."""
    onnxruntime = pytest.importorskip("onnxruntime")
    content = a_model(kind, arguments, attributes, outputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(content.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {
        value.name: np.zeros(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in content.graph.input
    }
    names = [value.name for value in session.get_outputs()]
    made = {
        name: (dtype_name(onnx.helper.np_dtype_to_tensor_dtype(value.dtype)), value.shape)
        for name, value in zip(names, session.run(names, feeds), strict=True)
    }
    assert shapes_read(tmp_path, content) == made


@pytest.mark.parametrize(("kind", "arguments", "attributes", "expected"), HAND, ids=lambda value: str(value)[:30])
def test_shapes_are_those_described(tmp_path, kind, arguments, attributes, expected):
    """The shape of each result, for ops that cannot be run here; nothing is warned of."""
    content = a_model(kind, arguments, attributes, len(expected))
    assert [shape for _, shape in shapes_read(tmp_path, content).values()] == expected
    assert read_onnx(tmp_path / "model.onnx").warnings == ()


@pytest.mark.parametrize(("kind", "arguments", "attributes", "results"), RUN + HAND, ids=lambda value: str(value)[:30])
def test_every_op_with_a_shape_has_a_cost(tmp_path, kind, arguments, attributes, results):
    """A rule of its own, which fits arguments as they really are."""
    outputs = len(results) if results is not None and not isinstance(results, int) and results[0] != 0 else results
    work = work_of(read_onnx(saved(tmp_path, a_model(kind, arguments, attributes, outputs))).graph)
    assert work.known.all() and work.bytes[0] >= 0


def test_kinds_with_shapes_and_kinds_with_costs_are_the_same():
    """Nothing that is read with its shapes is priced by its bytes alone, but searches, which run a body."""
    assert not {*RULES, *STANDARD} - set(COSTS) - CONTROL
    contrib = {kind for kind in COSTS if kind.startswith("com.microsoft")}
    assert contrib - {*RULES, *STANDARD} == {"com.microsoft::Unique"}, "how much it makes depends on its data"


@pytest.mark.parametrize("wrong", [[(2, 6, 31), (2, 7, 32)], [(2, 6, 32)], [(2, 6, 32), (31,)]])
def test_what_does_not_fit_stays_unknown(tmp_path, wrong):
    """Arguments that contradict each other, or are missing, give no shape and no crash, and the reader says so."""
    reading = read_onnx(saved(tmp_path, a_model("FusedMatMul", wrong, {"transB": 1}, 1)))
    assert reading.graph.tensors.bytes[-1] < 0 and "made by com.microsoft::FusedMatMul" in reading.warnings[-1]


@pytest.mark.parametrize(("past", "total", "kept"), [(12, 13, 13), (64, 13, 64)])
def test_a_decoder_computes_the_length_of_its_cache(tmp_path, past, total, kept):
    """As exporters for generation write it: from the mask's shape, into a cache that grows or that is long enough."""
    nodes = [
        make_node("Shape", ["mask"], ["shape"]),
        make_node("Gather", ["shape", "one"], ["length"], axis=0),
        make_node("Cast", ["length"], ["total"], to=I32),
        make_node("ReduceSum", ["mask", "axis"], ["sum"], keepdims=0),
        make_node("Cast", ["sum"], ["seen"], to=I32),
        make_node(
            "GroupQueryAttention", ["q", "k", "v", "pk", "pv", "seen", "total"], ["y", "nk", "nv"],
            domain="com.microsoft", num_heads=4, kv_num_heads=2,
        ),
    ]  # fmt: skip
    shapes = {"q": [1, 1, 32], "k": [1, 1, 16], "v": [1, 1, 16], "mask": [1, "total"],
              "pk": [1, 2, "past", 8], "pv": [1, 2, "past", 8]}  # fmt: skip
    weights = [integers("one", 1), integers("axis", [1])]
    path = saved(tmp_path, model(nodes, shapes, ["y", "nk", "nv"], weights, domains=["com.microsoft"]))
    reading = read_onnx(path, dims={"past": past, "total": total})
    graph = reading.graph
    assert graph.tensors.shape[graph.tensors.name.index("nk")] == (1, 2, kept, 8) and reading.warnings == ()
    assert float(work_of(graph).flops[-1]) == 4 * kept * 37
