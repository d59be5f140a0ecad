"""The ONNX reader: symbolic dimensions, shapes that models compute, and what stays unknown."""

import shlex

import numpy as np
import onnx
import onnx_files
import pytest
from hypothesis import given
from onnx.helper import make_graph, make_node, make_tensor_type_proto, make_tensor_value_info
from onnx_files import FLOAT, INT64, integers, model, saved, weight

from placewise.cli.options import parse_dims
from placewise.costing.work import work_of
from placewise.errors import ModelFileError
from placewise.readers.onnx import read_onnx
from placewise.readers.onnx.submodels import value_types


def shapes(reading):
    graph = reading.graph
    return {name: graph.tensors.shape[row] if graph.tensors.bytes[row] >= 0 else None
            for row, name in enumerate(graph.tensors.name)}  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"found:0": 9}])
def test_sizes_that_depend_on_data_can_be_given(tmp_path, more):
    """By value and axis, where inference leaves them open; what is known is not changed, and the error names them."""
    nodes = [make_node("NonZero", ["x"], ["found"]), make_node("Cast", ["found"], ["y"], to=FLOAT)]
    path = saved(tmp_path, model(nodes, {"x": [4, 3]}, ["y"]))
    open_graph = read_onnx(path).graph
    with pytest.raises(ModelFileError, match="or give the sizes: --dim found:1=100"):
        work_of(open_graph)
    reading = read_onnx(path, dims={"found:1": 5, **more})
    assert reading.graph.tensors.shape[1] == (2, 5) == reading.graph.tensors.shape[2] and not reading.warnings
    kinds = value_types(reading.graph)  # as they are handed over between sub-models: the run tells how many there are
    assert kinds["x"][1] == (4, 3) and kinds["found"] == ("int64", (-1, -1)) and kinds["y"] == ("float32", (-1, -1))
    with pytest.raises(ModelFileError, match="no dimension 'lost:1'"):
        read_onnx(path, dims={"lost:1": 5})


def test_dims_are_put_in_everywhere(tmp_path):
    """Numbers for symbolic dimensions reach every tensor, and the source remembers them."""
    nodes = [make_node("MatMul", ["x", "w"], ["h"]), make_node("Add", ["h", "z"], ["y"])]
    content = model(nodes, {"x": ["batch", "seq", 8], "z": ["batch", "seq", 4]}, ["y"], [weight("w", 8, 4)])
    reading = read_onnx(saved(tmp_path, content), dims={"batch": 2, "seq": 5})
    assert shapes(reading) == {"x": (2, 5, 8), "z": (2, 5, 4), "h": (2, 5, 4), "y": (2, 5, 4)}
    assert reading.graph.source.options == {"dims": {"batch": 2, "seq": 5}}


def test_missing_dim_is_named_with_its_remedy(tmp_path):
    """A symbolic dimension without a number stops, naming the input, the dimension and the option."""
    path = saved(tmp_path, model([make_node("Relu", ["x"], ["y"])], {"x": ["batch", "seq", 3]}, ["y"]))
    with pytest.raises(ModelFileError, match=r"'seq' of input 'x' is symbolic; give a number: --dim seq=1"):
        read_onnx(path, dims={"batch": 2})


def test_a_remedy_can_be_pasted(tmp_path):
    """Names with spaces and quotes stand in quotes: what is proposed, as a shell parts it, is what fixes the model."""
    dims = ["batch", "seq len", "it's", "a=b"]
    path = saved(tmp_path, model([make_node("Relu", ["x"], ["y"])], {"x": dims}, ["y"]))
    with pytest.raises(ModelFileError, match=r"--dim batch=1 --dim 'seq len=1' ") as caught:
        read_onnx(path)
    said = shlex.split(caught.value.remedy.removeprefix("give a number: "))
    assert said[::2] == ["--dim"] * 4 and parse_dims(said[1::2]) == dict.fromkeys(dims, 1)
    assert shapes(read_onnx(path, dims=parse_dims(said[1::2])))["y"] == (1, 1, 1, 1)
    nodes = [make_node("NonZero", ["x"], ["how many"]), make_node("Cast", ["how many"], ["y"], to=FLOAT)]
    open_graph = read_onnx(saved(tmp_path, model(nodes, {"x": [4]}, ["y"]))).graph
    with pytest.raises(ModelFileError, match="or give the sizes: --dim 'how many:1=100'"):
        work_of(open_graph)


def test_unknown_dim_lists_the_known_ones(tmp_path):
    """A name that the model does not have stops, with those of its inputs, and not those that exporters give inside."""
    content = model([make_node("Relu", ["x"], ["y"])], {"x": ["batch", 3]}, ["y"])
    content.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "Relu_y_dim_0"
    path = saved(tmp_path, content)
    with pytest.raises(ModelFileError, match=r"no dimension 'bach'; its symbolic dimensions are 'batch'$"):
        read_onnx(path, dims={"bach": 2})
    fixed = saved(tmp_path, model([make_node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"]))
    with pytest.raises(ModelFileError, match="none: all its shapes are fixed"):
        read_onnx(fixed, dims={"batch": 2})


def test_dims_must_be_positive(tmp_path):
    """No model runs on a batch of zero."""
    path = saved(tmp_path, model([make_node("Relu", ["x"], ["y"])], {"x": ["batch", 3]}, ["y"]))
    with pytest.raises(ModelFileError, match="'batch' is 0; give a number from 1"):
        read_onnx(path, dims={"batch": 0})


def test_dimension_without_a_name(tmp_path):
    """A dimension with neither number nor name is called by its input and axis."""
    path = saved(tmp_path, model([make_node("Relu", ["x"], ["y"])], {"x": [None, -1, 3]}, ["y"]))
    with pytest.raises(ModelFileError, match="--dim x:0=1 --dim x:1=1"):
        read_onnx(path)
    assert shapes(read_onnx(path, dims={"x:0": 2, "x:1": 7}))["y"] == (2, 7, 3)


def test_input_without_a_shape(tmp_path):
    """An input of unknown rank cannot be helped by a number."""
    content = model([make_node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"])
    content.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelFileError, match="input 'x' has no shape"):
        read_onnx(saved(tmp_path, content))


def test_shapes_that_the_model_computes(tmp_path):
    """The reshape that exporters write as Shape → Gather → Mul → Concat is followed through."""
    nodes = [
        make_node("Shape", ["x"], ["s"]),
        make_node("Gather", ["s", "zero"], ["b"]),
        make_node("Gather", ["s", "one"], ["t"]),
        make_node("Mul", ["b", "t"], ["n"]),
        make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        make_node("Concat", ["n1", "rest"], ["to"], axis=0),
        make_node("Reshape", ["x", "to"], ["flat"]),
        make_node("Range", ["zero", "n", "one"], ["ids"]),
        make_node("ConstantOfShape", ["to2"], ["mask"]),
        make_node("Concat", ["n1", "n1"], ["to2"], axis=0),
        make_node("Expand", ["mask", "to2"], ["y"]),
    ]
    values = [integers("zero", 0), integers("one", 1), integers("axis", [0]), integers("rest", [-1, 4])]
    reading = read_onnx(saved(tmp_path, model(nodes, {"x": ["b", 5, 8]}, ["flat", "ids", "y"], values)), dims={"b": 3})
    found = shapes(reading)
    assert found["flat"] == (15, 2, 4) and found["ids"] == (15,) and found["y"] == (15, 15) == found["mask"]
    assert reading.warnings == ()


def test_old_attribute_forms(tmp_path):
    """Ops are evaluated as their opset defines them: axes as an attribute before opset 13."""
    nodes = [
        make_node("Shape", ["x"], ["s"]),
        make_node("Slice", ["s"], ["head"], starts=[0], ends=[1]),
        make_node("Squeeze", ["head"], ["n"], axes=[0]),
        make_node("Unsqueeze", ["n"], ["n1"], axes=[0]),
        make_node("Concat", ["n1", "rest"], ["to"], axis=0),
        make_node("Reshape", ["x", "to"], ["y"]),
    ]
    content = model(nodes, {"x": ["b", 2, 3]}, ["y"], [integers("rest", [6])], opset=9)
    assert shapes(read_onnx(saved(tmp_path, content), dims={"b": 4}))["y"] == (4, 6)


def test_stale_notes_lose_against_inference(tmp_path):
    """Shapes noted for another batch do not survive, inside bodies neither."""
    content = model([make_node("Relu", ["x"], ["h"]), make_node("Relu", ["h"], ["y"])], {"x": ["batch", 3]}, ["y"])
    content.graph.value_info.append(make_tensor_value_info("h", FLOAT, [1, 3]))
    content.graph.output[0].type.CopyFrom(make_tensor_type_proto(FLOAT, [1, 3]))
    reading = read_onnx(saved(tmp_path, content), dims={"batch": 8})
    assert shapes(reading) == {"x": (8, 3), "h": (8, 3), "y": (8, 3)} and reading.warnings == ()


def test_notes_help_where_inference_ends(tmp_path):
    """A data-dependent shape is taken from the file's notes, with the user's numbers in it, and a warning."""
    nodes = [make_node("NonZero", ["x"], ["found"]), make_node("Cast", ["found"], ["y"], to=FLOAT)]
    content = model(nodes, {"x": ["batch", 3]}, ["y"])
    content.graph.value_info.append(make_tensor_value_info("found", INT64, [2, "batch"]))
    reading = read_onnx(saved(tmp_path, content), dims={"batch": 4})
    assert shapes(reading) == {"x": (4, 3), "found": (2, 4), "y": (2, 4)}
    assert reading.warnings == ("1 shape is taken from the file's value_info, not inferred (first: 'found')",)


def test_notes_that_contradict_are_not_taken(tmp_path):
    """NonZero has as many rows as its input has axes, whatever the file notes."""
    content = model([make_node("NonZero", ["x"], ["y"])], {"x": [4, 3]}, ["y"])
    content.graph.value_info.append(make_tensor_value_info("y", INT64, [7, 9]))
    reading = read_onnx(saved(tmp_path, content))
    assert shapes(reading)["y"] is None and reading.graph.tensors.shape[1] == (2, -1)
    assert reading.graph.tensors.bytes.tolist() == [48, -1]
    assert reading.warnings == ("the shape of 1 of 2 tensors stays unknown (first: 'y', made by NonZero)",)


def test_unknown_domains_keep_their_notes(tmp_path):
    """Behind an op that onnx does not define, inference goes on from the file's notes, with the dims put in."""
    nodes = [make_node("Mystery", ["x"], ["h"], domain="their"), make_node("Relu", ["h"], ["y"])]
    content = model(nodes, {"x": ["batch", 3]}, ["y"], domains=["their"])
    blind = read_onnx(saved(tmp_path, content), dims={"batch": 4})
    assert shapes(blind)["y"] is None and len(blind.warnings) == 2 and "their::Mystery (1 op) " in blind.warnings[0]
    content.graph.value_info.append(make_tensor_value_info("h", FLOAT, ["batch", 6]))
    told = read_onnx(saved(tmp_path, content), dims={"batch": 4})
    assert shapes(told)["y"] == (4, 6) and len(told.warnings) == 1


def test_dropout_mask_before_opset_12(tmp_path):
    """The mask, which onnx leaves open there, is as long as the data and boolean."""
    content = model([make_node("Dropout", ["x"], ["y", "mask"])], {"x": [4, 3]}, ["y"], opset=10)
    graph = read_onnx(saved(tmp_path, content)).graph
    assert graph.tensors.bytes.tolist() == [48, 48, 12] and graph.tensors.dtype_name(2) == "bool"


def test_group_normalization_keeps_the_shape(tmp_path):
    """An op for which onnx has no shape rule."""
    node = make_node("GroupNormalization", ["x", "s", "s"], ["y"], num_groups=2)
    content = model([node], {"x": [2, 4, 8]}, ["y"], [weight("s", 4)], opset=21)
    assert shapes(read_onnx(saved(tmp_path, content)))["y"] == (2, 4, 8)


def test_loop_state(tmp_path):
    """A loop gives back state of the shape that its body gives back; what the body captures are arguments."""
    body = make_graph(
        [make_node("Identity", ["go"], ["on"]), make_node("Add", ["state", "w"], ["next"])],
        "body",
        [
            make_tensor_value_info("i", INT64, []),
            make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            make_tensor_value_info("state", FLOAT, [2, 3]),
        ],
        [make_tensor_value_info("on", onnx.TensorProto.BOOL, []), make_tensor_value_info("next", FLOAT, [2, 3])],
    )
    content = model([make_node("Loop", ["five", "", "x"], ["y"], body=body)], {"x": [2, 3]}, ["y"],
                    [integers("five", 5), weight("w", 3)])  # fmt: skip
    reading = read_onnx(saved(tmp_path, content))
    assert shapes(reading)["y"] == (2, 3) and reading.graph.weight_edges.position.tolist() == [0, 3]
    assert reading.warnings == ()


def test_huge_ranges_are_not_made(tmp_path):
    """A model that computes with enormous constants is read in bounded memory."""
    nodes = [
        make_node("Range", ["zero", "huge", "one"], ["r"]),
        make_node("ConstantOfShape", ["lots"], ["c"]),
        make_node("Shape", ["r"], ["s"]),
        make_node("Expand", ["x", "s"], ["y"]),
    ]
    values = [integers("zero", 0), integers("one", 1), integers("huge", 1 << 40), integers("lots", [1 << 20, 1 << 20])]
    found = shapes(read_onnx(saved(tmp_path, model(nodes, {"x": [1]}, ["y", "c"], values))))
    assert found["r"] == (1 << 40,) == found["y"] and found["c"] == (1 << 20, 1 << 20)


@given(onnx_files.models())
def test_shapes_are_those_of_a_run(tmp_path_factory, content):
    """On random models every tensor has the shape and the bytes that onnx's reference run gives it."""
    graph = read_onnx(saved(tmp_path_factory.mktemp("random"), content), dims={"n": 2}).graph
    values = onnx_files.run(content, 0)
    for row, name in enumerate(graph.tensors.name):
        assert graph.tensors.shape[row] == values[name].shape and graph.tensors.bytes[row] == values[name].nbytes
        assert np.dtype(graph.tensors.dtype_name(row)) == values[name].dtype
