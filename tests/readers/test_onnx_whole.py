"""Whole ONNX models: weights from where they lie, random ones where they are lost, nodes where `origin` counts them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from placewise.errors import ModelFileError
from placewise.readers.onnx import read_onnx
from placewise.readers.onnx.model import load_with_weights, oldest_ir

SHAPES = {"k": (4, 3, 3, 3), "scale": (4,), "bias": (4,), "mean": (4,), "var": (4,)}


def saved(folder, nodes, tensors, *, outputs=("y",), functions=()):
    """A model of the input x [batch, 3, 8, 8]."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "it", [x], made, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(functions))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def outside(values, name, location, offset=0):
    tensor = numpy_helper.from_array(values, name)
    onnx.external_data_helper.set_external_data(tensor, location, offset, values.nbytes)
    tensor.ClearField("raw_data")
    return tensor


def normalized(folder, shapes=SHAPES):
    """Convolution and normalization, whose weights are lost."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], "conv"),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["y"], "norm"),
    ]
    return saved(folder, nodes, [outside(np.zeros(s, np.float32), name, "lost.bin") for name, s in shapes.items()])


def arrays(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_lost_weights_are_drawn_by_their_role(tmp_path):
    """Variances and scales near 1, others small, sums of convolutions about 1; always the same; a note says so."""
    model, notes = load_with_weights(normalized(tmp_path))
    found = arrays(model)
    assert {name: array.shape for name, array in found.items()} == SHAPES
    assert found["var"].min() >= 1 and abs(found["scale"] - 1).max() < 0.2 and abs(found["mean"]).max() < 0.2
    assert 0.5 < found["k"].std() * np.sqrt(27) < 1.5
    assert notes == ("5 weights of the model are missing (lost.bin is not here): random numbers stand in for them",)
    again = arrays(load_with_weights(normalized(tmp_path))[0])
    assert all(np.array_equal(found[name], again[name]) for name in found)


def test_a_weight_is_the_same_whatever_is_around_it(tmp_path):
    """It depends on its name alone, so that parts of a model can be filled one by one."""
    whole = arrays(load_with_weights(normalized(tmp_path))[0])["k"]
    lost = outside(np.zeros(SHAPES["k"], np.float32), "k", "lost.bin")
    part = saved(tmp_path, [helper.make_node("Conv", ["x", "k"], ["y"], "conv")], [lost])
    assert np.array_equal(arrays(load_with_weights(part)[0])["k"], whole)


def test_whole_numbers_are_zero_and_truth_is_true(tmp_path):
    """0 is an index into every table; a mask that hides everything would make sums of nothing."""
    tensors = [outside(np.ones(5, dtype), str(dtype), "lost.bin") for dtype in ("int64", "bool")]
    found = arrays(load_with_weights(saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"], "relu")], tensors))[0])
    assert not found["int64"].any() and found["bool"].all()


def test_weights_that_are_there_are_loaded(tmp_path):
    """From the file beside the model, at their place in it; no note, nothing external left."""
    values = np.arange(8, dtype=np.float32)
    (tmp_path / "here.bin").write_bytes(np.concatenate(([7.0] * 16, values)).astype(np.float32).tobytes())
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], "mul")]
    model, notes = load_with_weights(saved(tmp_path, nodes, [outside(values, "w", "here.bin", 64)]), {"batch": 3})
    assert np.array_equal(arrays(model)["w"], values) and not notes
    assert model.graph.initializer[0].data_location == TensorProto.DEFAULT
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3


def test_nodes_stand_where_origin_counts_them(tmp_path):
    """Functions are inlined as the reader does: `origin` of an op is the place of its node."""
    inner = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Exp", ["b"], ["c"])]
    function = helper.make_function("mine", "Both", ["a"], ["c"], inner, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Both", ["x"], ["m"], "both", domain="mine"),
        helper.make_node("Tanh", ["m"], ["y"], "tanh", domain="ai.onnx"),
    ]
    path = saved(tmp_path, nodes, [], functions=[function])
    graph, model = read_onnx(path, dims={"batch": 1}).graph, load_with_weights(path)[0]
    kinds = [model.graph.node[int(graph.ops.origin[op][0])].op_type for op in range(graph.n_ops)]
    assert kinds == list(graph.ops.kind) == ["Relu", "Exp", "Tanh"]


@pytest.mark.parametrize("content", [b"", b"what is this?", None])
def test_what_is_no_model(tmp_path, content):
    """A file that is not there, empty or something else: its name and why."""
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"bad\.onnx"):
        load_with_weights(path)


def test_a_file_of_weights_that_is_too_short(tmp_path):
    """The weight is named."""
    (tmp_path / "short.bin").write_bytes(b"1234")
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], "mul")]
    path = saved(tmp_path, nodes, [outside(np.zeros(8, np.float32), "w", "short.bin", 64)])
    with pytest.raises(ModelFileError, match=r"model\.onnx.*'w'"):
        load_with_weights(path)


@pytest.mark.parametrize("location", ["../secret.bin", "{folder}/secret.bin", "link.bin"])
def test_weights_outside_the_folder_are_not_read(tmp_path, location):
    """A path that leads out, an absolute one and a link: refused, though the file is there and fits."""
    values, folder = np.arange(8, dtype=np.float32), tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(values.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], "mul")]
    path = saved(folder, nodes, [outside(values, "w", location.format(folder=tmp_path))])
    with pytest.raises(ModelFileError, match=r"model\.onnx.*'w' cannot be read from"):
        load_with_weights(path)
    assert read_onnx(path, dims={"batch": 1}).graph.weights.bytes.tolist() == [32]


@pytest.mark.parametrize("dims", [(10**9, 10**9), (1 << 60,)])
def test_lost_weights_beyond_any_memory(tmp_path, dims):
    """Nobody draws 10^18 numbers."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], "mul")]
    path = saved(tmp_path, nodes, [TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)])
    with pytest.raises(ModelFileError, match=r"model\.onnx.*'w' is missing, and .* too large to draw"):
        load_with_weights(path)


def versioned(opsets, ir_version, **extra):
    """A model that holds nothing but what is said."""
    given = {"nodes": [], "name": "it", "inputs": [], "outputs": [], **extra}
    imports = [helper.make_opsetid(*opset) for opset in opsets]
    return helper.make_model(helper.make_graph(**given), opset_imports=imports, ir_version=ir_version)


@pytest.mark.parametrize(
    ("opsets", "ir_version", "oldest"),
    [
        ([("", 17)], 14, 8),
        ([("", 7)], 14, 4),
        ([("", 8)], 3, 3),
        ([("", 17)], 6, 6),
        ([("", 17), ("ai.onnx.ml", 4)], 14, 9),
        ([("ai.onnx", 24), ("com.microsoft", 1)], 14, 12),
        ([("", 1000)], 14, 14),
        ([("mine", 1000)], 14, 4),
    ],
)
def test_the_ir_version_is_what_the_opsets_need(opsets, ir_version, oldest):
    """From 4 on, where weights need not be inputs; never above its own, which stays for unknown opsets."""
    assert oldest_ir(versioned(opsets, ir_version)) == oldest


def body_of_if(element):
    """A node with bodies, one of which takes a value of this type."""
    inner = helper.make_graph([], "then", [helper.make_tensor_value_info("v", element, [2])], [])
    return {"nodes": [helper.make_node("If", ["c"], ["y"], then_branch=inner)]}


SMALL = TensorProto(name="w", data_type=TensorProto.INT4, dims=[2], raw_data=b"1")
MAYBE = helper.make_value_info("m", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2])))


@pytest.mark.parametrize(
    ("extra", "oldest"),
    [
        ({"initializer": [SMALL]}, 10),
        ({"nodes": [helper.make_node("Constant", [], ["k"], value=SMALL)]}, 10),
        ({"inputs": [helper.make_tensor_value_info("x", TensorProto.FLOAT8E4M3FN, [2])]}, 9),
        (body_of_if(TensorProto.FLOAT4E2M1), 11),
        (body_of_if(TensorProto.FLOAT), 7),
        ({"outputs": [MAYBE]}, 8),
    ],
)
def test_the_ir_version_has_what_is_in_the_model(extra, oldest):
    """Element types and fields that came with later versions, wherever they are."""
    model = versioned([("", 13)], 14, **extra)
    model.metadata_props.add(key="author", value="none")
    assert oldest_ir(model) == oldest
    model.graph.metadata_props.add(key="author", value="none")
    assert oldest_ir(model) == max(oldest, 10)
