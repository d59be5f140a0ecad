"""The ONNX reader: nodes, arguments, weights, names and attributes of small files."""

import hashlib
import math

import numpy as np
import onnx
import onnx_files
import pytest
from hypothesis import given
from onnx import TensorProto
from onnx.helper import make_function, make_graph, make_node, make_opsetid, make_tensor, make_tensor_value_info
from onnx_files import integers, model, saved, weight

from placewise.readers.onnx import read_onnx


def read(folder, content, **options):
    return read_onnx(saved(folder, content), **options).graph


def arguments(graph, op):
    """(name, position) of each tensor and weight that an op reads."""
    found = []
    for table, edges in ((graph.tensors, graph.edges), (graph.weights, graph.weight_edges)):
        rows = np.flatnonzero(edges.consumer == op)
        found += [(table.name[edges.value[row]], int(edges.position[row])) for row in rows]
    return sorted(found, key=lambda pair: pair[1])


def test_one_op_per_node(tmp_path):
    """Ops, kinds, tensors, outputs and the source say what is in the file, Constant nodes included."""
    two = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32))
    nodes = [make_node("Constant", [], ["c"], value=two), make_node("Add", ["x", "c"], ["y"], name="sum")]
    path = saved(tmp_path, model(nodes, {"x": [2, 3]}, ["y"]))
    reading = read_onnx(path)
    graph = reading.graph
    assert graph.ops.name == ("c", "sum") and list(graph.ops.kind) == ["Constant", "Add"]
    assert graph.tensors.name == ("x", "c", "y") and graph.tensors.bytes.tolist() == [24, 24, 24]
    assert graph.tensors.output.tolist() == [False, False, True] and graph.tensors.producer.tolist() == [-1, 0, 1]
    assert list(graph.ops.origin) == [(0,), (1,)] and reading.warnings == () and reading.problem is None
    source = graph.source
    assert (source.path, source.format, source.view, source.transforms) == (str(path), "onnx", "raw", ())
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() and source.options == {"dims": {}}


def test_argument_positions_leave_gaps(tmp_path):
    """An omitted optional input leaves its position empty, for tensors and weights alike."""
    content = model([make_node("Clip", ["x", "", "top"], ["y"])], {"x": [4]}, ["y"], [weight("top")])
    assert arguments(read(tmp_path, content), 0) == [("x", 0), ("top", 2)]


def test_value_used_twice(tmp_path):
    """A tensor read twice by one op is two edges and one consumer."""
    graph = read(tmp_path, model([make_node("Mul", ["x", "x"], ["y"])], {"x": [4]}, ["y"]))
    assert arguments(graph, 0) == [("x", 0), ("x", 1)] and graph.consumers_of(0).tolist() == [0]


def test_weights_have_true_bytes(tmp_path):
    """Weights count by dims and element type, half bytes rounded up, also where their values are not in the file."""
    half = make_tensor("half", TensorProto.UINT4, [3], b"\x00\x00", raw=True)
    absent = TensorProto(name="absent", data_type=TensorProto.BFLOAT16, dims=[1000, 1000])
    nodes = [make_node("Identity", [name], [f"{name}_out"]) for name in ("half", "absent", "scalar")]
    graph = read(tmp_path, model(nodes, {}, ["half_out"], [half, absent, weight("scalar")], opset=21))
    assert graph.weights.name == ("half", "absent", "scalar") and graph.weights.bytes.tolist() == [2, 2_000_000, 4]
    assert [graph.weights.dtype_name(i) for i in range(3)] == ["uint4", "bfloat16", "float32"]
    assert list(graph.weights.shape) == [(3,), (1000, 1000), ()]


def test_large_weights_are_not_kept(tmp_path):
    """A megabyte of inline values changes neither shapes nor bytes, and the sha256 is the whole file's."""
    content = model([make_node("MatMul", ["x", "w"], ["y"])], {"x": [1, 512]}, ["y"], [weight("w", 512, 512)])
    path = saved(tmp_path, content)
    graph = read_onnx(path).graph
    assert path.stat().st_size > 1 << 20 and graph.weights.bytes.tolist() == [1 << 20]
    assert graph.tensors.shape[1] == (1, 512) and graph.source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_external_data_is_never_opened(tmp_path):
    """Weights in a missing file are read by their dims; the same file and offset is one storage, tied."""
    tensors = []
    for name, offset in (("a", 0), ("b", 64), ("tied", 0)):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[16], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "nowhere/weights.bin"), ("offset", str(offset)), ("length", "64")):
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    nodes = [make_node("Sum", ["x", "a", "b", "tied"], ["y"])]
    graph = read(tmp_path, model(nodes, {"x": [16]}, ["y"], tensors))
    assert graph.weights.storage.tolist() == [0, 1, 0] and graph.weights.bytes.tolist() == [64, 64, 64]


def test_equal_values_are_not_tied(tmp_path):
    """Two initializers with the same bytes are two weights; one initializer with two consumers is one."""
    nodes = [make_node("Sum", ["x", "a", "b"], ["s"]), make_node("Add", ["s", "a"], ["y"])]
    graph = read(tmp_path, model(nodes, {"x": [4]}, ["y"], [weight("a", 4), weight("b", 4)]))
    assert graph.weights.storage.tolist() == [0, 1] and graph.weight_edges.value.tolist() == [0, 1, 0]


def test_initializers_among_the_inputs_are_weights(tmp_path):
    """Old files list initializers as inputs too: they are weights and no tensors."""
    content = model([make_node("Add", ["x", "w"], ["y"])], {"x": [4], "w": [4]}, ["y"], [weight("w", 4)])
    graph = read(tmp_path, content)
    assert graph.tensors.name == ("x", "y") and graph.weights.name == ("w",)


def test_weights_and_inputs_may_be_outputs(tmp_path):
    """An output that is an input is marked; one that is an initializer is tolerated."""
    content = model([make_node("Relu", ["x"], ["y"])], {"x": [4]}, ["x", "w", "y"], [weight("w", 4)])
    graph = read(tmp_path, content)
    assert graph.tensors.output.tolist() == [True, True] and len(graph.weights) == 1


def test_sparse_initializer_counts_what_it_stores(tmp_path):
    """A sparse weight has the bytes of its values and of their indices."""
    content = model([make_node("Add", ["x", "w"], ["y"])], {"x": [100]}, ["y"])
    values = onnx.numpy_helper.from_array(np.ones(3, np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.arange(3))
    content.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [100]))
    graph = read(tmp_path, content)
    assert graph.weights.bytes.tolist() == [3 * 4 + 3 * 8] and arguments(graph, 0) == [("x", 0), ("w", 1)]


def test_names_where_the_file_has_none(tmp_path):
    """Nodes without a name, or with one that repeats, take their first output's; a taken one gets a number."""
    nodes = [
        make_node("Relu", ["x"], ["a"]),
        make_node("Relu", ["a"], ["b"], name="twice"),
        make_node("Relu", ["b"], ["c"], name="twice"),
        make_node("Relu", ["c"], ["d"], name="a"),
        make_node("Relu", ["d"], ["y"], name="own"),
    ]
    graph = read(tmp_path, model(nodes, {"x": [4]}, ["y"]))
    assert graph.ops.name == ("a#2", "b", "c", "a", "own")


@pytest.mark.parametrize(
    ("name", "notes", "scope"),
    [
        ("/encoder/layer.0/attention/MatMul", {}, "encoder.layer.0.attention"),
        ("/layer1/layer1.0/conv1/Conv", {}, "layer1.0.conv1"),
        ("model/dense/MatMul", {}, "model.dense"),
        ("Conv_0", {}, ""),
        ("n", {"pkg.torch.onnx.name_scopes": "['', 'encoder', 'encoder.layer.0', 'linear_3']"}, "encoder.layer.0"),
        ("n", {"pkg.torch.onnx.name_scopes": "['', 'block@1', 'add']"}, "block"),
        ("n", {"pkg.torch.onnx.name_scopes": "['', '_empty_nn_module_stack_from_metadata_hook', 'add']"}, ""),
        ("n", {"pkg.torch.onnx.name_scopes": "[[[ not a list"}, ""),
        ("n", {"namespace": ": Model/head: torch.nn.Linear/head.fc: torch.nn.Linear/add: aten.add"}, "head.fc"),
    ],
)
def test_scopes(tmp_path, name, notes, scope):
    """Module paths come from what each exporter writes."""
    node = make_node("Relu", ["x"], ["y"], name=name)
    for key, value in notes.items():
        node.metadata_props.add(key=key, value=value)
    assert read(tmp_path, model([node], {"x": [4]}, ["y"])).ops.scope[0] == scope


def test_kinds_of_other_domains(tmp_path):
    """The standard domain goes without saying, also when it is spelled out; others stand before the kind."""
    nodes = [
        make_node("Relu", ["x"], ["a"], domain="ai.onnx"),
        make_node("Scaler", ["a"], ["b"], domain="ai.onnx.ml", scale=[1.0], offset=[0.0]),
        make_node("FastGelu", ["b"], ["c"], domain="com.microsoft"),
        make_node("Thing", ["c"], ["y"], domain="mine"),
    ]
    reading = read_onnx(
        saved(tmp_path, model(nodes, {"x": [4]}, ["y"], domains=["ai.onnx.ml", "com.microsoft", "mine"]))
    )
    assert list(reading.graph.ops.kind) == ["Relu", "ai.onnx.ml::Scaler", "com.microsoft::FastGelu", "mine::Thing"]
    assert any("mine::Thing (1 op) " in warning for warning in reading.warnings)
    assert not any("Scaler (" in warning or "FastGelu" in warning for warning in reading.warnings)


def test_attributes_are_plain_values(tmp_path):
    """Values are kept; of tensors only shape and dtype, of bodies the node count, of long lists the length."""
    body = make_graph([make_node("Relu", ["x"], ["r"])], "body", [], [make_tensor_value_info("r", 1, [4])])
    node = make_node(
        "Anything", ["x"], ["y"], domain="mine", i=3, f=0.1, s="same", ints=[1, 2], strings=["a"],
        t=integers("", [1, 2]), g=body, long=list(range(2000)), top=math.inf,
    )  # fmt: skip
    graph = read(tmp_path, model([node], {"x": [4]}, ["y"], domains=["mine"]))
    assert graph.ops.attributes[0] == {
        "i": 3, "f": 0.1, "s": "same", "ints": (1, 2), "strings": ("a",),
        "t": {"shape": (2,), "dtype": "int64"}, "g": {"nodes": 1}, "long": {"length": 2000}, "top": "inf",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("node", "dtype"),
    [
        (make_node("Gather", ["w", "ids"], ["y"]), "float32"),
        (make_node("Cast", ["x"], ["y"], to=TensorProto.INT32), "float32"),
        (make_node("Cast", ["ids"], ["y"], to=TensorProto.FLOAT16), "float16"),
        (make_node("Add", ["ids", "ids"], ["y"]), "int64"),
        (make_node("Shape", ["ids"], ["y"]), "int64"),
        (make_node("MatMulInteger", ["q", "q"], ["y"]), "int8"),
        (make_node("QLinearMatMul", ["q", "one", "zero", "q", "one", "zero", "one", "zero"], ["y"]), "int8"),
    ],
)
def test_compute_dtype(tmp_path, node, dtype):
    """The first floating type counts, else the first output's; integer kernels compute in their input's type."""
    q = onnx.numpy_helper.from_array(np.ones((4, 4), np.int8), "q")
    zero = onnx.numpy_helper.from_array(np.int8(0), "zero")
    weights = [weight("w", 4, 4), integers("ids", [0, 1]), q, weight("one"), zero]
    graph = read(tmp_path, model([node], {"x": [4]}, ["y"], weights))
    assert graph.ops.dtype_name(0) == dtype


def if_node():
    """Picks x + w (w from outside) or two layers of its own weight `k`; both branches name a weight `k`."""
    value = make_tensor_value_info("r", TensorProto.FLOAT, [4])
    then = make_graph([make_node("Add", ["x", "w"], ["s"]), make_node("Add", ["s", "k"], ["r"])], "then", [], [value])
    other = make_graph([make_node("Mul", ["inner", "k"], ["r"])], "other", [], [value])
    then.initializer.append(weight("k", 4))
    other.initializer.append(weight("k", 4))
    return make_node("If", ["flag"], ["y"], name="pick", then_branch=then, else_branch=other)


def test_if_stays_one_op(tmp_path):
    """Captured values become arguments behind the explicit ones, then come the weights of the bodies, `else` first."""
    flag = onnx.numpy_helper.from_array(np.array(True), "flag")
    nodes = [make_node("Relu", ["x"], ["inner"]), if_node()]
    graph = read(tmp_path, model(nodes, {"x": [4]}, ["y"], [flag, weight("w", 4)]))
    assert list(graph.ops.kind) == ["Relu", "If"] and graph.tensors.shape[2] == (4,)
    expected = [("flag", 0), ("inner", 1), ("x", 2), ("w", 3), ("pick/k", 4), ("pick/k#2", 5)]
    assert arguments(graph, 1) == expected
    attributes = dict(graph.ops.attributes[1])
    (body,) = attributes.pop("bodies")  # the condition is known
    assert attributes == {"then_branch": {"nodes": 2}, "else_branch": {"nodes": 1}}
    assert body["rounds"] == 1 and [(op["kind"], op["times"]) for op in body["ops"]] == [("Add", 2)]


def test_functions_are_inlined(tmp_path):
    """Calls of the model's own functions, nested too, are replaced by their bodies."""
    opsets = [make_opsetid("", 18), make_opsetid("mine", 1)]
    inner = make_function("mine", "Inner", ["a"], ["b"], [make_node("Relu", ["a"], ["b"])], opsets)
    calls = [make_node("Inner", ["a"], ["m"], domain="mine"), make_node("Inner", ["m"], ["b"], domain="mine")]
    outer = make_function("mine", "Outer", ["a"], ["b"], calls, opsets)
    content = model(
        [make_node("Outer", ["x"], ["y"], domain="mine")], {"x": [4]}, ["y"], domains=["mine"], functions=[inner, outer]
    )
    reading = read_onnx(saved(tmp_path, content))
    assert list(reading.graph.ops.kind) == ["Relu", "Relu"] and reading.warnings == ()
    assert reading.graph.tensors.bytes.tolist() == [16, 16, 16]


def test_nodes_may_stand_in_any_order(tmp_path):
    """An unsorted file is sorted; `origin` still says where each node stood."""
    nodes = [make_node("Relu", ["a"], ["y"]), make_node("Reshape", ["x", "to"], ["a"])]
    graph = read(tmp_path, model(nodes, {"x": [4]}, ["y"], [integers("to", [2, 2])]))
    assert list(graph.ops.kind) == ["Reshape", "Relu"] and list(graph.ops.origin) == [(1,), (0,)]
    assert graph.tensors.shape[2] == (2, 2)


@given(onnx_files.models())
def test_edges_are_the_nodes_inputs(tmp_path_factory, content):
    """On random models every argument of every node is one edge, at its place."""
    graph = read(tmp_path_factory.mktemp("random"), content, dims={"n": 2})
    assert graph.n_ops == len(content.graph.node)
    for op in range(graph.n_ops):
        node = content.graph.node[graph.ops.origin[op][0]]
        assert arguments(graph, op) == [(name, position) for position, name in enumerate(node.input)]
        assert [graph.tensors.name[tensor] for tensor in graph.outputs_of(op)] == list(node.output)
