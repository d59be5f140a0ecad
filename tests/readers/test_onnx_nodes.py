"""The ONNX reader, op by op: definitions without a shape rule, inputs that do not fit, newer opsets, bodies."""

from collections import defaultdict

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_function, make_graph, make_node, make_opsetid, make_tensor_value_info
from onnx_files import FLOAT, INT64, integers, model, saved, weight

from placewise.errors import ModelFileError
from placewise.readers.onnx import read_onnx
from placewise.readers.onnx.nodes import infer_node
from placewise.readers.onnx.types import shape_of

WITHOUT_RULE = {
    "GreaterOrEqual": (12, 13, 14, 15),
    "LessOrEqual": (12, 13, 14, 15),
    "GroupNormalization": (21,),
    "MeanVarianceNormalization": (9, 13),
    "Compress": (9,),
}


def shapes(reading):
    graph = reading.graph
    return {name: graph.tensors.shape[row] if graph.tensors.bytes[row] >= 0 else None
            for row, name in enumerate(graph.tensors.name)}  # fmt: skip


def test_ops_without_a_shape_rule_are_those_known():
    """Every definition of the standard domain in force from opset 9 to 23 has its rule, but for the list above."""
    versions = defaultdict(dict)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            versions[schema.name][schema.since_version] = schema
    found = set()
    for opset in range(9, 24):
        for name, schemas in versions.items():
            schema = schemas.get(max((since for since in schemas if since <= opset), default=0))
            if schema is not None and not schema.deprecated and not schema.has_type_and_shape_inference_function:
                found.add(name)
    assert found <= set(WITHOUT_RULE)


@pytest.mark.parametrize("kind", ["GreaterOrEqual", "LessOrEqual"])
@pytest.mark.parametrize("opset", [12, 14, 15, 16])
def test_comparisons_defined_by_a_function(tmp_path, kind, opset):
    """Their shape is that of a broadcast, also where other shapes before them had to be evaluated."""
    axes = {"axes": [1]} if opset < 13 else {}
    nodes = [
        make_node("Shape", ["x"], ["s"]),
        make_node("Gather", ["s", "one"], ["n"]),
        make_node("Range", ["zero", "n", "one"], ["row"]),
        make_node("Unsqueeze", ["row"] if axes else ["row", "axis"], ["column"], **axes),
        make_node(kind, ["row", "column"], ["mask"]),
        make_node("Where", ["mask", "x", "w"], ["y"]),
    ]
    values = [integers("zero", 0), integers("one", 1), integers("axis", [1]), weight("w", 1)]
    reading = read_onnx(saved(tmp_path, model(nodes, {"x": ["b", "b"]}, ["y"], values, opset=opset)), dims={"b": 6})
    assert shapes(reading)["mask"] == (6, 6) == shapes(reading)["y"] and reading.warnings == ()


@pytest.mark.parametrize(
    ("node", "opset", "shape"),
    [
        (make_node("GroupNormalization", ["x", "w", "w"], ["y"], num_groups=2), 18, (1, 4, 8)),
        (make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 2]), 9, (1, 4, 8)),
        (make_node("MaxUnpool", ["x", "i", "to"], ["y"], kernel_shape=[2]), 11, (1, 4, 16)),
        (make_node("Max", ["i", "i"], ["y"]), 9, (1, 4, 8)),
    ],
)
def test_nodes_that_their_own_definition_leaves_open(node, opset, shape):
    """Like the first input, by an output shape, or (integers in an old Max) by a later definition."""
    content = model([node], {"x": [1, 4, 8]}, ["y"], opset=opset)
    kinds = {"x": (FLOAT, [1, 4, 8]), "w": (FLOAT, [2]), "i": (INT64, [1, 4, 8]), "to": (INT64, [3])}
    types = {name: onnx.helper.make_tensor_type_proto(*kind) for name, kind in kinds.items()}
    found, objection = infer_node(content, node, types, {"to": np.array([1, 4, 16])})
    assert shape_of(found["y"]) == shape and objection == ""


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (make_node("MatMul", ["x", "w"], ["y"], name="product"), "MatMul 'product' do not fit together: 4×63, 64×64"),
        (make_node("Add", ["x", "w"], ["y"]), "Add 'y' do not fit together: 4×63, 64×64"),
        (make_node("Concat", ["x", "w"], ["y"], axis=0), "Concat 'y' do not fit together: 4×63, 64×64"),
    ],
)
def test_inputs_that_do_not_fit(tmp_path, node, said):
    """They are refused by the reader, with the file, the node and the shapes."""
    path = saved(tmp_path, model([node], {"x": ["b", 63]}, ["y"], [weight("w", 64, 64)]))
    with pytest.raises(ModelFileError) as caught:
        read_onnx(path, dims={"b": 4})
    assert str(caught.value).startswith(f"{path}: the inputs of {said} (") and "ShapeInference" not in str(caught.value)


@pytest.mark.parametrize("opset", [1, 5, 6, 7, 8])
def test_old_opsets(tmp_path, opset):
    """They are read too; before opset 7 the second argument is broadcast to the first from an axis on."""
    broadcast = {"broadcast": 1, "axis": 1} if opset < 7 else {}
    nodes = [
        make_node("Conv", ["x", "k"], ["c"], kernel_shape=[3, 3]),
        make_node("Relu", ["c"], ["r"]),
        make_node("Add", ["r", "b"], ["y"], **broadcast),
    ]
    weights = [weight("k", 4, 3, 3, 3), weight("b", *((4,) if broadcast else (4, 1, 1)))]
    reading = read_onnx(saved(tmp_path, model(nodes, {"x": [1, 3, 8, 8]}, ["y"], weights, opset=opset)))
    assert shapes(reading)["y"] == (1, 4, 6, 6) and reading.warnings == ()


def test_all_open_dimensions_are_told_at_once(tmp_path):
    """Those of every input, with the options that close them."""
    nodes = [make_node("MatMul", ["x", "z"], ["y"])]
    with pytest.raises(ModelFileError, match="dimensions 'a', 'k', 'b' of its inputs are symbolic") as caught:
        read_onnx(saved(tmp_path, model(nodes, {"x": ["a", "k"], "z": ["k", "b"]}, ["y"])))
    assert caught.value.remedy.endswith("--dim a=1 --dim k=1 --dim b=1")


def test_newer_opset_than_onnx_knows(tmp_path):
    """It is read, with a warning that names both numbers."""
    content = model([make_node("Relu", ["x"], ["y"])], {"x": [4]}, ["y"], opset=99)
    reading = read_onnx(saved(tmp_path, content))
    newest = onnx.defs.onnx_opset_version()
    assert shapes(reading)["y"] == (4,) and len(reading.warnings) == 1
    assert "opset 99" in reading.warnings[0] and f"read as opset {newest}," in reading.warnings[0]


def test_the_standard_domain_inside_functions_and_bodies(tmp_path):
    """``ai.onnx`` spelled out is the empty domain wherever it stands."""
    opsets = [make_opsetid("ai.onnx", 18)]
    inner = make_function("mine", "F", ["a"], ["b"], [make_node("Relu", ["a"], ["b"], domain="ai.onnx")], opsets)
    nodes = [make_node("F", ["x"], ["h"], domain="mine"), make_node("MatMul", ["h", "w"], ["y"], domain="ai.onnx")]
    content = model(nodes, {"x": [2, 3]}, ["y"], [weight("w", 3, 4)], domains=["mine"], functions=[inner])
    content.opset_import[0].domain = "ai.onnx"
    reading = read_onnx(saved(tmp_path, content))
    assert list(reading.graph.ops.kind) == ["Relu", "MatMul"] and shapes(reading)["y"] == (2, 4)
    assert reading.warnings == ()


def looping(nodes, gives, *, trips="five", noted=("k", "m")):
    """A model x [2, 3] → Loop over these nodes with state `state`; the body's outputs have no known shape."""
    body = make_graph(
        [make_node("Identity", ["go"], ["on"]), *nodes],
        "body",
        [
            make_tensor_value_info("i", INT64, []),
            make_tensor_value_info("go", TensorProto.BOOL, []),
            make_tensor_value_info("state", FLOAT, None),
        ],
        [
            make_tensor_value_info("on", TensorProto.BOOL, []),
            *(make_tensor_value_info(name, FLOAT, list(noted)) for name in gives),
        ],
    )
    outputs = [f"y{index}" for index in range(len(gives))]
    loop = make_node("Loop", [trips, "", "x"], outputs, body=body)
    count = [make_node("ReduceSum", ["x"], ["sum"], keepdims=0), make_node("Cast", ["sum"], ["some"], to=INT64)]
    return model([*count, loop, make_node("Relu", ["y0"], ["z"])], {"x": [2, 3]}, ["z", *outputs],
                 [integers("five", 5), weight("w", 3, 3), weight("one", 2, 1)], opset=13)  # fmt: skip


def test_loops_give_back_their_state_and_stacks(tmp_path):
    """State that keeps its shape, and one entry of a stack per trip where their number is constant."""
    nodes = [make_node("MatMul", ["state", "w"], ["next"]), make_node("MatMul", ["next", "w"], ["row"])]
    found = shapes(read_onnx(saved(tmp_path, looping(nodes, ["next", "row"]))))
    assert found["y0"] == (2, 3) == found["z"] and found["y1"] == (5, 2, 3)
    found = shapes(read_onnx(saved(tmp_path, looping(nodes, ["next", "row"], trips="some"))))
    assert found["y0"] == (2, 3) == found["z"] and found["y1"] is None


def test_loops_whose_state_grows_stay_unknown(tmp_path):
    """A state that is one wider after every trip has no shape before the run."""
    reading = read_onnx(saved(tmp_path, looping([make_node("Concat", ["state", "one"], ["next"], axis=1)], ["next"])))
    assert shapes(reading)["y0"] is None and "made by Loop" in reading.warnings[-1]


def choosing(other, condition):
    """x [2, 3] → Loop → If: the product of its state, or what `other` gives."""
    content = looping([make_node("MatMul", ["state", "w"], ["next"])], ["next"])
    then = make_graph([make_node("Neg", ["y0"], ["a"])], "then", [], [make_tensor_value_info("a", FLOAT, ["p", "q"])])
    branch = make_graph([other], "else", [], [make_tensor_value_info("b", FLOAT, ["p", "q"])])
    choice = make_node("If", [condition], ["chosen"], then_branch=then, else_branch=branch)
    flag = make_node("Greater", ["sum", "sum"], ["flag"])
    content.graph.node.extend([flag, choice, make_node("Relu", ["chosen"], ["end"])])
    content.graph.initializer.append(onnx.numpy_helper.from_array(np.array(False), "never"))
    content.graph.output.append(onnx.ValueInfoProto(name="end"))
    return content


@pytest.mark.parametrize(
    ("other", "condition", "shape"),
    [
        (make_node("Abs", ["y0"], ["b"]), "flag", (2, 3)),
        (make_node("Concat", ["y0", "one"], ["b"], axis=1), "flag", (2, 4)),
        (make_node("ReduceSum", ["y0"], ["b"]), "flag", (2, 3)),
        (make_node("ReduceSum", ["y0"], ["b"]), "never", (1, 1)),
    ],
)
def test_ifs_give_back_what_their_branches_do(tmp_path, other, condition, shape):
    """Both agree; or the larger one; or the one that a known condition picks."""
    assert shapes(read_onnx(saved(tmp_path, choosing(other, condition))))["end"] == shape


def test_loops_in_loops_end(tmp_path):
    """However deep the bodies lie in each other, trying shapes in them takes bounded time."""
    content = looping([make_node("Concat", ["state", "one"], ["next"], axis=1)], ["next"])
    for _ in range(20):
        loop = next(node for node in content.graph.node if node.op_type == "Loop")
        body = make_graph(
            [make_node("Identity", ["going"], ["still"]), make_node("Loop", ["five", "", "outer"], ["inner"])],
            "body",
            [
                make_tensor_value_info("number", INT64, []),
                make_tensor_value_info("going", TensorProto.BOOL, []),
                make_tensor_value_info("outer", FLOAT, None),
            ],
            [make_tensor_value_info("still", TensorProto.BOOL, []), make_tensor_value_info("inner", FLOAT, ["k"])],
        )
        body.node[1].attribute.append(loop.attribute[0])
        loop.attribute[0].g.CopyFrom(body)
    assert shapes(read_onnx(saved(tmp_path, content)))["y0"] is None
