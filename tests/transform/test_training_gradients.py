"""Training graphs compute gradients: their backward ops, run in numpy, against differences of the model's outputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.helper import make_node as node
from soak import examples
from training_numpy import backward, forward, model

from placewise.errors import GraphError
from placewise.readers.onnx import read_onnx
from placewise.transform.fold import fold
from placewise.transform.training import to_training

STEP = 1e-5


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def checked(folder, nodes, weights, inputs=None, *, trained=None, exact=True, folded=True, rel=1e-5):
    """The training graph of a model, with the gradient of every weight checked along a random direction."""
    inputs = {"x": random(2, 3)} if inputs is None else inputs
    path = folder / "model.onnx"
    path.write_bytes(model(nodes, inputs, weights, ["y"]).SerializeToString())
    raw = read_onnx(path).graph
    graph = to_training(fold(raw) if folded else raw, loss=False, optimizer="sgd")
    values = forward(nodes, inputs, weights)
    cotangent = random(*values["y"].shape, seed=1)
    found = backward(graph, {**values, "y/grad": cotangent})
    floats = {name for name, value in weights.items() if value.dtype == np.float64}
    if exact:
        assert set(found) == (floats if trained is None else set(trained))
    for number, (name, gradient) in enumerate(found.items()):
        way = random(*weights[name].shape, seed=2 + number)
        ends = [
            (forward(nodes, inputs, {**weights, name: weights[name] + sign * STEP * way})["y"] * cotangent).sum()
            for sign in (1, -1)
        ]
        assert (gradient * way).sum() == pytest.approx((ends[0] - ends[1]) / (2 * STEP), rel=rel, abs=1e-7), name
    return graph


def integers(*values):
    return np.array(values, np.int64)


ACTIVATIONS = (
    "Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Gelu", "Softplus", "LeakyRelu", "Abs", "Neg", "Softmax", "LogSoftmax",
    "Identity", "Flatten",
)  # fmt: skip


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind, tmp_path):
    """Each from its input or its result, whichever it keeps."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node(kind, ["h"], ["a"]), node("Mul", ["a", "a"], ["y"])]
    approximate = kind in ("Erf", "Gelu")  # as onnx computes them
    checked(tmp_path, nodes, {"w": random(3, 4)}, rel=3e-3 if approximate else 1e-5)


@pytest.mark.parametrize("kind", ["Sqrt", "Log", "Reciprocal"])
def test_activations_of_positive_numbers(kind, tmp_path):
    """Behind an exponential, so that they are defined."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Exp", ["h"], ["e"]), node(kind, ["e"], ["y"])]
    checked(tmp_path, nodes, {"w": random(3, 4)})


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (4,), (3, 1), (2, 1, 4), (1, 3, 1)])
def test_arithmetic_is_summed_where_it_was_broadcast(kind, shape, tmp_path):
    """Both arguments have a gradient in their own shape, on either side."""
    nodes = [node("Exp", ["w"], ["a"]), node("Exp", ["v"], ["b"]), node(kind, ["a", "b"], ["h"])]
    nodes += [node("Add", ["h", "x"], ["y"])]
    weights = {"w": random(2, 3, 4), "v": random(*shape)}
    checked(tmp_path, nodes, weights, {"x": random(2, 3, 4)}, folded=False)
    nodes[2] = node(kind, ["b", "a"], ["h"])
    checked(tmp_path, nodes, weights, {"x": random(2, 3, 4)}, folded=False)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((6, 5, 2, 3), (5, 3, 4)),
        ((6, 1, 2, 3), (1, 5, 3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 4)),
    ],
)
def test_products_of_any_rank(left, right, tmp_path):
    """Batched, broadcast, and of vectors: both factors train."""
    nodes = [node("Tanh", ["a"], ["p"]), node("Tanh", ["b"], ["q"]), node("MatMul", ["p", "q"], ["h"])]
    nodes += [node("Mul", ["h", "x"], ["y"])]
    checked(tmp_path, nodes, {"a": random(*left), "b": random(*right)}, {"x": random(1)}, folded=False)


@pytest.mark.parametrize("flips", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm_in_all_orders(flips, tmp_path):
    """With factors and a bias of a row; what comes before it trains too."""
    a, b = ((3, 2) if flips[0] else (2, 3)), ((4, 3) if flips[1] else (3, 4))
    gemm = node("Gemm", ["p", "b", "c"], ["h"], transA=flips[0], transB=flips[1], alpha=0.5, beta=2.0)
    nodes = [node("Add", ["x", "a"], ["p"]), gemm, node("Tanh", ["h"], ["y"])]
    checked(tmp_path, nodes, {"a": random(*a), "b": random(*b), "c": random(4)}, {"x": random(*a)})


@pytest.mark.parametrize("equation", ["bij,jk->bik", "ij,bjk->bki", "bij,bij->b", "ij,jk,kl->il", "bii,ij->bj"])
def test_einsum(equation, tmp_path):
    """By labels changing places; a diagonal is left to a fused op."""
    sizes = dict(zip("bijkl", (2, 3, 3, 4, 5), strict=True))
    terms = equation.partition("->")[0].split(",")
    weights = {f"w{at}": random(*(sizes[label] for label in term)) for at, term in enumerate(terms)}
    nodes = [node("Tanh", [f"w{at}"], [f"t{at}"]) for at in range(len(terms))]
    nodes += [node("Einsum", [f"t{at}" for at in range(len(terms))], ["h"], equation=equation)]
    nodes += [node("Mul", ["h", "x"], ["y"])]
    checked(tmp_path, nodes, weights, {"x": random(1)}, folded=False)


@pytest.mark.parametrize(
    ("groups", "attributes"),
    [(1, {}), (1, {"strides": [2, 2], "pads": [1, 1, 1, 1]}), (2, {"dilations": [2, 1], "pads": [2, 1, 0, 1]})],
)
def test_convolutions(groups, attributes, tmp_path):
    """Two in a row, so that an input, kernels and biases have gradients."""
    first = node("Conv", ["x", "w", "b"], ["h"], pads=[1, 1, 1, 1])
    nodes = [first, node("Conv", ["h", "v", "c"], ["y"], group=groups, **attributes)]
    weights = {"w": random(4, 3, 3, 3), "b": random(4), "v": random(6, 4 // groups, 3, 3), "c": random(6)}
    graph = checked(tmp_path, nodes, weights, {"x": random(2, 3, 6, 7)})
    made = [
        (graph.ops.name[op], graph.ops.attributes[op]["wrt"])
        for op in np.flatnonzero(graph.ops.kind.equals("gradient::Conv"))
    ]
    assert len(made) == 5, "the images need no gradient"


@pytest.mark.parametrize(
    "pool",
    [
        node("MaxPool", ["h"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxPool", ["h"], ["y"], kernel_shape=[3, 3], strides=[1, 2]),
        node("AveragePool", ["h"], ["y"], kernel_shape=[2, 3], strides=[1, 1]),
        node("GlobalAveragePool", ["h"], ["y"]),
    ],
    ids=lambda pool: pool.op_type,
)
def test_pooling(pool, tmp_path):
    """Windows that overlap, and the whole map."""
    nodes = [node("Conv", ["x", "w"], ["h"]), pool]
    checked(tmp_path, nodes, {"w": random(2, 3, 2, 2)}, {"x": random(2, 3, 6, 7)})


def test_batch_normalization_in_training(tmp_path):
    """Over the batch's own mean and deviation; the running ones do not train."""
    nodes = [node("Conv", ["x", "w"], ["h"])]
    nodes += [node("BatchNormalization", ["h", "s", "b", "m", "v"], ["n", "m1", "v1"], training_mode=1)]
    nodes += [node("Tanh", ["n"], ["y"])]
    weights = {"w": random(2, 3, 2, 2), "s": random(2), "b": random(2), "m": random(2), "v": abs(random(2))}
    checked(tmp_path, nodes, weights, {"x": random(2, 3, 4, 5)}, trained="wsb")


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_normalization(kind, axis, tmp_path):
    """Input, scale and bias."""
    weights = {"w": random(3, 4), "s": random(*(4,) if axis == -1 else (5, 4))}
    given = ["h", "s"]
    if kind == "LayerNormalization":
        weights["b"] = random(*weights["s"].shape)
        given.append("b")
    nodes = [node("MatMul", ["x", "w"], ["h"]), node(kind, given, ["n"], axis=axis), node("Tanh", ["n"], ["y"])]
    checked(tmp_path, nodes, weights, {"x": random(2, 5, 3)})


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize(("axes", "keep"), [([1], 1), ([0, 2], 0), ([-1], 0)])
def test_reductions(kind, axes, keep, tmp_path):
    """Spread over what was reduced, with and without the dimension kept."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node(kind, ["h", "axes"], ["r"], keepdims=keep),
        node("Tanh", ["r"], ["y"]),
    ]
    weights = {"w": random(3, 4), "axes": integers(*axes)}
    checked(tmp_path, nodes, weights, {"x": random(2, 5, 3)})


def test_movement(tmp_path):
    """Views, transposes, joins, parts, padding, broadcasts and choices."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Transpose", ["h"], ["t"], perm=[2, 0, 1]),
        node("Reshape", ["t", "to"], ["r"]),
        node("Concat", ["r", "v", "r"], ["c"], axis=1),
        node("Split", ["c"], ["p", "q"], axis=0, num_outputs=2),
        node("Slice", ["q", "starts", "ends", "axes", "steps"], ["s"]),
        node("Unsqueeze", ["s", "front"], ["u"]),
        node("Expand", ["u", "wide"], ["e"]),
        node("Pad", ["e", "pads"], ["d"]),
        node("Tanh", ["d"], ["g"]),
        node("Greater", ["g", "half"], ["b"]),
        node("Where", ["b", "g", "u2"], ["o"]),
        node("Trilu", ["o"], ["y"]),
    ]
    weights = {
        "w": random(3, 4), "v": random(4, 2), "u2": random(1, 1), "half": np.array(0.1),
        "to": integers(4, 10), "starts": integers(20, 0), "ends": integers(1, 2), "axes": integers(1, 0),
        "steps": integers(-2, 1), "front": integers(0), "wide": integers(3, 2, 10), "pads": integers(0, 1, 0, 0, 0, 2),
    }  # fmt: skip
    checked(tmp_path, nodes, weights, {"x": random(2, 5, 3)}, trained="wv")


def test_lookups_add_up(tmp_path):
    """A row that is looked up twice has both gradients; the table's gradient is dense."""
    nodes = [
        node("Gather", ["table", "ids"], ["h"]),
        node("Mul", ["h", "h"], ["q"]),
        node("GatherND", ["q", "at"], ["g"]),
    ]
    nodes += [node("CumSum", ["g", "axis"], ["y"])]
    weights = {"table": random(7, 4), "at": integers([0, 1], [1, 0], [0, 1]), "axis": np.array(0, np.int64)}
    graph = checked(tmp_path, nodes, weights, {"ids": integers([3, 1], [3, 6])})
    scatter = int(np.flatnonzero(graph.ops.kind.equals("gradient::Gather"))[0])
    assert graph.tensors.shape[graph.outputs_of(scatter)[0]] == (7, 4)


def test_a_tensor_read_many_times_adds_its_gradients_up(tmp_path):
    """A residual connection, a square and a weight that three ops use, one of them transposed."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Tanh", ["a"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Mul", ["c", "c"], ["d"]),
        node("MatMul", ["d", "w"], ["e"]),
        node("Transpose", ["w"], ["wt"]),
        node("MatMul", ["e", "wt"], ["f"]),
        node("Sum", ["f", "d", "a"], ["y"]),
    ]
    weights = {"w": random(3, 3)}
    checked(tmp_path, nodes, weights, folded=False)


def test_attention_of_onnx_ops(tmp_path):
    """Two heads with a mask, a residual connection and a normalization, from the embedding on."""
    nodes = [node("Gather", ["table", "ids"], ["h"])]
    for name in "qkv":
        nodes += [
            node("MatMul", ["h", f"w{name}"], [f"{name}1"]),
            node("Add", [f"{name}1", f"b{name}"], [f"{name}2"]),
            node("Reshape", [f"{name}2", "heads"], [f"{name}3"]),
            node("Transpose", [f"{name}3"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["s1"]),
        node("Mul", ["s1", "scale"], ["s2"]),
        node("Where", ["mask", "s2", "low"], ["s3"]),
        node("Softmax", ["s3"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o1"]),
        node("Transpose", ["o1"], ["o2"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o2", "flat"], ["o3"]),
        node("MatMul", ["o3", "wo"], ["o4"]),
        node("Add", ["o4", "h"], ["r"]),
        node("LayerNormalization", ["r", "s", "b"], ["y"]),
    ]
    weights = {f"w{name}": random(6, 6, seed=ord(name)) for name in "qkvo"}
    weights |= {f"b{name}": random(6, seed=ord(name)) for name in "qkv"}
    weights |= {
        "table": random(9, 6), "s": random(6), "b": random(6, seed=5), "scale": np.array(0.5), "low": np.array(-9.0),
        "mask": np.tril(np.ones((4, 4), bool)), "heads": integers(2, 4, 2, 3), "flat": integers(2, 4, 6),
    }  # fmt: skip
    trained = set(weights) - {"scale", "low", "mask", "heads", "flat"}
    checked(tmp_path, nodes, weights, {"ids": integers([1, 2, 3, 1], [0, 8, 8, 4])}, trained=trained)


def test_layers_over_a_sequence(tmp_path):
    """An LSTM is one op forward and one backward, with gradients for all of its weights."""
    nodes = [node("MatMul", ["x", "u"], ["h"]), node("LSTM", ["h", "w", "r", "b"], ["all", "last"], hidden_size=2)]
    nodes += [node("ReduceSum", ["all"], ["t"], keepdims=0), node("ReduceSum", ["last"], ["l"], keepdims=0)]
    nodes += [node("Add", ["t", "l"], ["y"])]
    weights = {"u": random(3, 3), "w": random(1, 8, 3), "r": random(1, 8, 2), "b": random(1, 16)}
    checked(tmp_path, nodes, weights, {"x": random(3, 2, 3)})


@st.composite
def networks(draw):
    """Nodes over [3, 3] values, any of which many others may read, and the weights among them."""
    values, nodes, weights = ["x"], [], {}
    for number in range(draw(st.integers(2, 10))):
        if draw(st.booleans()):
            values.append(f"w{number}")
            weights[values[-1]] = random(*draw(st.sampled_from([(3, 3), (3,), (1, 3), (3, 1)])), seed=10 + number)
        kind = draw(st.sampled_from(["Add", "Sub", "Mul", "MatMul", "Tanh", "Sigmoid", "Softmax", "Transpose", "Max"]))
        wide = [value for value in values if value not in weights or weights[value].shape == (3, 3)]
        given = [draw(st.sampled_from(wide))]
        if kind in ("Add", "Sub", "Mul", "MatMul", "Max"):
            given.append(draw(st.sampled_from(wide if kind == "MatMul" else values)))
        nodes.append(node(kind, given, [f"v{number}"]))
        values.append(f"v{number}")
    read = {name for made in nodes for name in made.input}
    return [*nodes, node("Sum", [value for value in values if value not in read], ["y"])], weights


@examples(60)
@given(networks())
def test_any_network(folder, network):
    """Values with many readers, weights on several paths, ops that read a value twice."""
    nodes, weights = network
    try:
        checked(folder, nodes, weights, {"x": random(3, 3)}, exact=False, folded=False, rel=1e-4)
    except GraphError as error:
        assert "train" in str(error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")
