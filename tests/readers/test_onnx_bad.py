"""The ONNX reader on bad input: one sentence with the file, the place and the remedy, and never a traceback."""

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.helper import make_function, make_graph, make_node, make_opsetid, make_tensor_value_info
from onnx_files import FLOAT, integers, model, saved, weight

from placewise.errors import GraphError, InputError, ModelFileError
from placewise.readers.onnx import read_onnx
from placewise.readers.onnx.file import without_values

GOOD = model([make_node("MatMul", ["x", "w"], ["h"]), make_node("Relu", ["h"], ["y"])], {"x": [2, 3]}, ["y"],
             [weight("w", 3, 4)])  # fmt: skip


def refused(path, match, error=ModelFileError):
    with pytest.raises(error, match=match) as caught:
        read_onnx(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text and caught.value.remedy


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04 this is a zip archive", "not an ONNX model"),
        (b'{"nodes": []}', "not an ONNX model"),
        (b"\x08\x07", "no graph in it"),
        (GOOD.SerializeToString()[:-30], "cut off|no opset"),
        (GOOD.SerializeToString()[:40], "cut off"),
    ],
)
def test_not_an_onnx_file(tmp_path, content, match):
    """Empty, foreign and truncated files."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    refused(path, match)


def test_every_truncation(tmp_path):
    """A file cut off anywhere is refused or, where nothing that matters is missing, read."""
    whole, path = GOOD.SerializeToString(), tmp_path / "model.onnx"
    read = 0
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            read += read_onnx(path).graph.n_ops == 2
        except InputError as error:
            assert str(error).startswith(str(path))
    assert read == 0


def test_missing_file_and_folder(tmp_path):
    """A path that is no file."""
    refused(tmp_path / "absent.onnx", "cannot be read")
    refused(tmp_path, "cannot be read")


def test_graph_without_nodes(tmp_path):
    """One that hands its input on is whole: to export it again would not help."""
    refused(saved(tmp_path, model([], {"x": [2]}, ["x"])), "its inputs are its outputs.*nothing to place")
    refused(saved(tmp_path, model([], {"x": [2]}, [])), "no nodes; export the model again")


def test_no_opset(tmp_path):
    """A model without opset is refused with the way out."""
    content = model([make_node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"])
    del content.opset_import[:]
    refused(saved(tmp_path, content), "names no opset")


def test_cycle(tmp_path):
    """A cycle is shown."""
    nodes = [make_node("Add", ["x", "b"], ["a"], name="one"), make_node("Relu", ["a"], ["b"], name="two")]
    refused(saved(tmp_path, model(nodes, {"x": [2]}, ["b"])), "cycle: 'one' → 'two' → 'one'", GraphError)


def test_edges_to_nowhere(tmp_path):
    """A node, a body and an output that read what nobody makes."""
    refused(saved(tmp_path, model([make_node("Relu", ["gone"], ["y"])], {"x": [2]}, ["y"])), "'y' reads 'gone'")
    refused(saved(tmp_path, model([make_node("Relu", ["x"], ["y"])], {"x": [2]}, ["gone"])), "output 'gone'")
    branch = make_graph([make_node("Relu", ["gone"], ["r"])], "b", [], [make_tensor_value_info("r", FLOAT, [2])])
    node = make_node("If", ["flag"], ["y"], name="pick", then_branch=branch, else_branch=branch)
    flag = onnx.numpy_helper.from_array(np.array(True), "flag")
    refused(saved(tmp_path, model([node], {"x": [2]}, ["y"], [flag])), "'pick' reads 'gone'")


def test_values_made_twice(tmp_path):
    """Two nodes, a node and an input, two initializers."""
    twice = [make_node("Relu", ["x"], ["y"], name="one"), make_node("Tanh", ["x"], ["y"], name="two")]
    refused(saved(tmp_path, model(twice, {"x": [2]}, ["y"])), "'y' is defined twice, by node 'y' and by node|twice")
    refused(saved(tmp_path, model([make_node("Relu", ["x"], ["x"])], {"x": [2]}, ["x"])), "by an input and by node")
    weights = [weight("w", 2), weight("w", 2)]
    refused(saved(tmp_path, model([make_node("Add", ["x", "w"], ["y"])], {"x": [2]}, ["y"], weights)), "defined twice")


def test_broken_initializers(tmp_path):
    """Negative dimensions, unknown element types and sizes beyond any memory, in bodies too."""
    for tensor, match in (
        (TensorProto(name="w", data_type=FLOAT, dims=[-2]), r"dimensions \[-2\]"),
        (TensorProto(name="w", data_type=99, dims=[2]), "element type 99"),
        (TensorProto(name="w", data_type=FLOAT, dims=[1 << 40, 1 << 40]), "absurd shape"),
    ):
        refused(saved(tmp_path, model([make_node("Add", ["x", "w"], ["y"])], {"x": [2]}, ["y"], [tensor])), match)
        body = make_graph([make_node("Relu", ["x"], ["r"])], "b", [], [make_tensor_value_info("r", FLOAT, [2])])
        body.initializer.append(tensor)
        flag = onnx.numpy_helper.from_array(np.array(True), "flag")
        node = make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body)
        refused(saved(tmp_path, model([node], {"x": [2]}, ["y"], [flag])), match)


def test_absurd_shapes(tmp_path):
    """Inputs, results and indices of impossible size are refused before anybody adds them up."""
    content = model([make_node("Add", ["x", "w"], ["y"])], {"x": [4]}, ["y"])
    indices = TensorProto(data_type=onnx.TensorProto.INT64, dims=[1 << 60])
    content.graph.sparse_initializer.append(onnx.SparseTensorProto(values=weight("w", 3), indices=indices, dims=[4]))
    refused(saved(tmp_path, content), "'w' has the absurd")
    refused(saved(tmp_path, model([make_node("Relu", ["x"], ["y"])], {"x": [1 << 62, 8]}, ["y"])), "'x' has the absurd")
    node = make_node("ConstantOfShape", ["to"], ["y"])
    huge = [integers("to", [1 << 40, 1 << 40])]
    refused(saved(tmp_path, model([node], {"x": [2]}, ["y"], huge)), "'y' has the absurd")


def test_absurd_numbers_of_scanned_inputs(tmp_path):
    """A scan over 2^60 inputs, of which there are two, is refused, and takes no memory."""
    body = make_graph([make_node("Add", ["s", "r"], ["t"])], "b",
                      [make_tensor_value_info(name, FLOAT, [3]) for name in ("s", "r")],
                      [make_tensor_value_info("t", FLOAT, [3])])  # fmt: skip
    node = make_node("Scan", ["zeros", "x"], ["y"], body=body, num_scan_inputs=1 << 60)
    refused(saved(tmp_path, model([node], {"x": [2, 3]}, ["y"], [weight("zeros", 3)])), "cannot exceed the number of")


def test_functions_that_call_themselves_or_explode(tmp_path):
    """Recursion and doubling calls are refused before they are inlined."""
    opsets = [make_opsetid("", 18), make_opsetid("mine", 1)]

    def calling(name, *called):
        nodes = [make_node(kind, ["a"], [f"b{i}"], domain="mine") for i, kind in enumerate(called)]
        return make_function("mine", name, ["a"], ["b0"], nodes, opsets)

    def content(functions):
        call = make_node("F0", ["x"], ["y"], domain="mine")
        return model([call], {"x": [2]}, ["y"], domains=["mine"], functions=functions)

    refused(saved(tmp_path, content([calling("F0", "F1"), calling("F1", "F0")])), "calls itself")
    doubling = [calling(f"F{i}", f"F{i + 1}", f"F{i + 1}") for i in range(40)]
    leaf = make_function("mine", "F40", ["a"], ["b"], [make_node("Relu", ["a"], ["b"])], opsets)
    refused(saved(tmp_path, content([*doubling, leaf])), "unfold to more than")


def test_names_that_are_not_text(tmp_path):
    """Bytes in place of a name."""
    broken = GOOD.SerializeToString().replace(b"MatMul", b"Mat\xff\xfel")
    path = tmp_path / "model.onnx"
    path.write_bytes(broken)
    refused(path, "a name in the file is not text")


@pytest.mark.parametrize(
    "node",
    [
        make_node("Split", ["x"], ["y", "b"], num_outputs=3),
        make_node("LayerNormalization", ["x", "w"], ["y"], axis=2**63 - 1),
        make_node("Conv", ["x"], ["y"]),
        make_node("MatMul", ["x", ""], ["y"]),
        make_node("Concat", ["x", "x"], ["y"]),
        make_node("Concat", ["x", "x"], ["y"], axis="one"),
        make_node("Nonsense", ["x"], ["y"]),
    ],
)
def test_malformed_nodes_only_lose_their_shapes(tmp_path, node):
    """Nodes that break the rules of their op (and would crash inference) are kept, with unknown shapes."""
    content = model([node, make_node("Relu", ["x"], ["z"])], {"x": [2, 3]}, ["y", "z"], [weight("w", 3)])
    reading = read_onnx(saved(tmp_path, content))
    sizes = dict(zip(reading.graph.tensors.name, reading.graph.tensors.bytes.tolist(), strict=True))
    assert sizes["y"] == -1 and sizes["z"] == 24 and any("unknown (first: 'y'" in text for text in reading.warnings)


@settings(derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes(tmp_path, data):
    """Whatever bytes are changed, the answer is a graph or an error of ours."""
    content = bytearray(GOOD.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    try:
        assert read_onnx(path).graph.n_ops > 0
    except InputError as error:
        assert str(error).startswith(str(path))


@given(st.lists(st.integers(0, 3000), max_size=4), st.sampled_from(["raw", "typed"]))
def test_values_are_dropped_before_parsing(sizes, form):
    """Without its long values a message parses to the same model without those values; short ones stay."""
    content = onnx.ModelProto()
    content.CopyFrom(GOOD)
    for index, size in enumerate(sizes):
        values = np.full(size, index + 1, np.int64)
        tensor = onnx.numpy_helper.from_array(values, f"t{index}")
        if form == "typed":
            tensor = onnx.helper.make_tensor(f"t{index}", TensorProto.INT64, [size], values)
        content.graph.initializer.append(tensor)
    data = content.SerializeToString()
    slim = onnx.ModelProto.FromString(bytes(without_values(memoryview(data), longest=1024)))
    for tensor in content.graph.initializer:
        for field in ("raw_data", "int64_data"):
            width = 8 if field == "raw_data" else 1
            if len(tensor.raw_data) > 1024 or len(tensor.int64_data) * width > 1024:
                tensor.ClearField(field)
    assert slim == content


@given(st.binary(max_size=60))
def test_foreign_bytes_come_back_as_they_are(data):
    """What is no message is left to the parser; what is one keeps its length when nothing is long."""
    assert len(without_values(memoryview(data), longest=1024)) == len(data)
