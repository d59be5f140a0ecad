"""The TensorFlow reader on files that TensorFlow wrote (scripts/make_tensorflow_graphs.py): counts, FLOPs, formats."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from tensorflow_files import DATA

from placewise.costing.work import work_of
from placewise.readers.tensorflow import looks_like_tensorflow, read_tensorflow
from placewise.transform.fold import fold

BATCH = 2
FLOPS = json.loads((DATA / "flops.json").read_text())


def folded(name, **options):
    reading = read_tensorflow(DATA / name, **options)
    assert reading.warnings == ()
    graph = fold(reading.graph)
    assert (graph.tensors.bytes >= 0).all()
    return graph


def kinds(graph):
    return Counter(graph.ops.kind)


@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("classifier.pb", set()),
        ("attention.pb", {"Rsqrt", "SquaredDifference"}),
        ("training.pb", {"Mul", "BiasAddGrad"}),
    ],
)
def test_flops_are_those_of_tensorflows_profiler(name, apart):
    """Every kind of op that both count costs the same.

    Apart from these: a square root and a division are two FLOPs here, a difference squared two, sums of n values n
    additions, not n − 1; and what only initializes variables is left out.
    """
    graph = folded(name, dims={"batch": BATCH})
    work = work_of(graph)
    assert work.known.all() and not work.warnings
    count = Counter()
    for op, flops in enumerate(work.flops.tolist()):
        kind = graph.ops.kind[op].removeprefix("tf::")
        count[graph.ops.attributes[op].get("op", kind)] += int(flops)
    shared = (count.keys() & FLOPS[name.removesuffix(".pb")].keys()) - apart
    assert len(shared) >= 5
    assert {op: count[op] for op in shared} == {op: FLOPS[name.removesuffix(".pb")][op] for op in shared}


@pytest.mark.parametrize("name", ["classifier", "attention", "lstm", "training"])
def test_shapes_are_those_that_tensorflow_infers(name):
    """Every value that both know has one shape."""
    inferred = json.loads((DATA / "shapes.json").read_text())[name]
    tensors = read_tensorflow(DATA / f"{name}.pb", dims={"batch": BATCH}).graph.tensors
    shared = {value: number for number, value in enumerate(tensors.name) if value in inferred}
    assert len(shared) > 20
    assert {value: list(tensors.shape[number]) for value, number in shared.items()} == {
        value: inferred[value] for value in shared
    }


def test_attention():
    """Two products by einsum, two batched ones and two plain ones, in FLOPs counted by hand."""
    graph = folded("attention.pb", dims={"batch": BATCH})
    rows, width = BATCH * 12, 64
    products = {"Einsum": 2 * rows * width * width * 4, "BatchMatMulV2": 2 * 2 * BATCH * 4 * 12 * 12 * 16}
    products |= {"MatMul": 2 * 2 * rows * width * 256}
    assert kinds(graph)["MatMul"] + kinds(graph)["Einsum"] == 6
    work = work_of(graph)
    found = Counter()
    for op in np.flatnonzero(work.op_class.equals("matmul")).tolist():
        found[graph.ops.attributes[op].get("op", graph.ops.kind[op])] += int(work.flops[op])
    assert found == products


def test_weights_have_their_sizes():
    """A classifier's parameters, whose values are not in the file."""
    graph = folded("classifier.pb", dims={"batch": BATCH})
    sizes = [7 * 7 * 3 * 16, 3 * 3 * 16 * 16, 3 * 3 * 16 * 16, 3 * 3 * 16 * 2, 32 * 16, 16 * 10]
    large = sorted((math.prod(shape) for shape in graph.weights.shape if math.prod(shape) > 64), reverse=True)
    assert large == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", ["lstm.pb", "lstm"])
def test_recurrent_layers_are_written_out(name):
    """Twenty steps of an LSTM of 48 units: forty products, from a frozen graph and from a SavedModel."""
    graph = folded(name, dims={"batch": BATCH})
    assert kinds(graph)["MatMul"] == 2 * 20 and kinds(graph)["Sigmoid"] == 3 * 20 and not kinds(graph)["Loop"]
    work = work_of(graph)
    dense = 2 * BATCH * 20 * 48 * 100
    cells = 2 * BATCH * 20 * (32 + 48) * 4 * 48
    assert work.known.all()
    known_start = 2 * BATCH * 48 * 4 * 48  # the first step's product with zeros is known before the model runs
    assert work.flops[work.op_class.equals("matmul")].sum() in (cells + dense, cells + dense - known_start)
    assert not any("List" in kind or kind == "TensorScatter" for kind in kinds(graph))
    (joined,) = (op for op, kind in enumerate(graph.ops.kind) if kind == "Concat" and len(graph.inputs_of(op)) == 20)
    assert graph.tensors.shape[graph.outputs_of(joined)[0]] == (20, BATCH, 48)
    large = [shape for shape in graph.weights.shape if math.prod(shape) > 1000]
    assert sorted(large) == [(32, 192), (48, 100), (48, 192), (1000, 32)]


def test_formats_agree():
    """The same graph as binary, as text and as a MetaGraphDef."""
    digests = {read_tensorflow(DATA / name, dims={"batch": 4}).graph.digest()
               for name in ("training.pb", "training.pbtxt", "training.meta")}  # fmt: skip
    assert len(digests) == 1
    assert all(looks_like_tensorflow(path) for path in DATA.iterdir() if path.suffix != ".json")


def test_training_graph():
    """Convolutions with momentum: gradients are backward, with their op and its variable, on the op's device."""
    graph = folded("training.pb", dims={"batch": BATCH})
    assert kinds(graph)["tf::ApplyMomentum"] == 5 and kinds(graph)["tf::Conv2DBackpropFilter"] == 2
    assert not kinds(graph)["tf::Assign"] and not kinds(graph)["tf::SaveV2"]
    where = {name: op for op, name in enumerate(graph.ops.name)}
    group = graph.ops.group.tolist()
    for number, convolution in enumerate(("Conv2D", "Conv2D_1")):
        together = (convolution, f"gradients/{convolution}_grad/Conv2DBackpropFilter",
                    f"Momentum/update_kernel{number}/ApplyMomentum")  # fmt: skip
        assert len({group[where[name]] for name in together}) == 1 and group[where[convolution]] >= 0
    assert group[where["Conv2D"]] != group[where["Conv2D_1"]]
    backward = graph.ops.backward.tolist()
    assert all(backward[op] == ("grad" in name or "Apply" in name) for name, op in where.items())
    device = {name: graph.ops.attributes[op].get("device") for name, op in where.items()}
    assert device["Conv2D"] == "/device:CPU:0" and device["Reshape"] == "/device:CPU:1"


def test_gradients_of_a_loop():
    """Twelve rounds of a TF1 loop and twelve back: what one pushed on a stack, the other pops."""
    graph = folded("loop_training.pb")
    assert kinds(graph)["MatMul"] == 3 * 12 and not kinds(graph)["Loop"] and not kinds(graph)["tf::StackPopV2"]
    work = work_of(graph)
    assert work.known.all()
    products = work.op_class.equals("matmul")
    assert work.flops[products].sum() == 3 * 12 * 2 * 8 * 48 * 128
    assert (work.flops[products & graph.ops.backward]).sum() == 2 * 12 * 2 * 8 * 48 * 128
    assert {graph.weights.shape[weight] for op in np.flatnonzero(products) for weight in graph.weights_of(int(op))} == {
        (48, 128)
    }


def test_gradients_of_a_while():
    """What the forward rounds pile up, the backward rounds take: edges between them, and no list is ever made."""
    graph = folded("recurrent_learner", dims={"batch": BATCH})
    assert kinds(graph)["MatMul"] == 6 * (2 + 4) and not kinds(graph)["Loop"]
    assert not any("List" in kind or kind == "TensorScatter" for kind in kinds(graph))
    work = work_of(graph)
    assert work.known.all()
    assert work.flops[work.op_class.equals("matmul")].sum() == 3 * 6 * 2 * BATCH * (8 + 16) * 4 * 16
    assert kinds(graph)["tf::AssignSubVariableOp"] == 3


def test_training_step_of_a_saved_model():
    """A signature that learns: six products of gradients beside three forward, and three variables that change."""
    graph = folded("learner", dims={"batch": BATCH})
    assert kinds(graph)["MatMul"] == 3 + 5 and kinds(graph)["tf::AssignSubVariableOp"] == 3
    assert graph.ops.group.max() == 2 and graph.ops.backward.sum() > 10
    products = [op for op, kind in enumerate(graph.ops.kind) if kind == "MatMul"]
    assert sum(work_of(graph).flops[products]) == 2 * BATCH * (20 * 32 * 2 + 32 * 32 * 3 + 32 * 5 * 3)


@pytest.mark.parametrize("name", ["costs.pb", "costs.pbtxt"])
def test_measured_costs(name):
    """Times in microseconds by op, transfers between devices as edges, tensors with their sizes."""
    reading = read_tensorflow(DATA / name)
    graph, seconds = reading.graph, reading.op_seconds
    assert seconds is not None and len(seconds) == graph.n_ops and 1e-5 < seconds.sum() < 1
    where = {op: number for number, op in enumerate(graph.ops.name)}
    assert "Relu_1/_4" not in where and "Relu_1/_5" not in where
    reshape = where["Reshape"]
    assert "Relu_1" in [graph.tensors.name[tensor] for tensor in graph.inputs_of(reshape)]
    relu = graph.outputs_of(where["Relu_1"])[0]
    assert graph.tensors.bytes[relu] == 8 * 8 * 8 * 32 * 4 and (graph.tensors.bytes >= 0).all()
    assert graph.ops.attributes[where["Relu"]]["device"].endswith("CPU:0")
    forward = [name for name, op in where.items() if not graph.ops.backward[op]]
    assert {"Relu", "matmul"} <= set(forward) and not any("grad/MatMul" in name or "update" in name for name in forward)
    assert "no time in the file" in reading.warnings[0]


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("loop_training.pb", {}),
        ("recurrent_learner", {"batch": BATCH}),
        ("learner", {"batch": BATCH}),
        ("training.pb", {"batch": BATCH}),
        ("training.meta", {"batch": BATCH}),
    ],
)
def test_no_forward_op_follows_a_backward_one(name, dims):
    """Through tensors and through control edges, in the raw view and in the folded one."""
    raw = read_tensorflow(DATA / name, dims=dims).graph
    for graph in (raw, fold(raw)):
        ops, producer = graph.ops, graph.tensors.producer[graph.edges.value]
        late = (producer >= 0) & ops.backward[producer] & ~ops.backward[graph.edges.consumer]
        assert [ops.name[op] for op in graph.edges.consumer[late].tolist()] == []
        assert 0 < ops.backward.sum() < ops.backward.size
