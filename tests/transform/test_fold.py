"""fold: what is known before a run goes, what a run needs stays, and every raw op is accounted for."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_files
import pytest
from folded_origins import project_back
from hypothesis import given
from onnx.helper import make_node
from onnx_files import integers, model, saved, weight

from placewise.errors import GraphError
from placewise.model.builder import GraphBuilder
from placewise.model.tables import Interned
from placewise.readers.onnx import read_onnx
from placewise.transform.fold import fold


def raw_of(folder, nodes, outputs=("y",), weights=(), **extra):
    return read_onnx(saved(folder, model(nodes, {"x": [2, 3]}, outputs, weights, **extra))).graph


def arguments(graph, op):
    """By position, what op `op` reads: ("tensor" or "weight", name)."""
    found = {}
    tables = (("tensor", graph.tensors, graph.edges), ("weight", graph.weights, graph.weight_edges))
    for what, table, edges in tables:
        for row in np.flatnonzero(edges.consumer == op):
            found[int(edges.position[row])] = (what, table.name[edges.value[row]])
    return found


def test_constants_become_weights(tmp_path):
    """A Constant node's value is a weight of its consumer, with its shape, dtype and bytes."""
    value = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32))
    graph = fold(raw_of(tmp_path, [make_node("Constant", [], ["c"], value=value), make_node("Add", ["x", "c"], ["y"])]))
    assert list(graph.ops.kind) == ["Add"] and arguments(graph, 0) == {0: ("tensor", "x"), 1: ("weight", "c")}
    assert graph.weights.shape[0] == (2, 3) and graph.weights.bytes.tolist() == [24]
    assert graph.weights.dtype_name(0) == "float32" and graph.ops.origin[0] == (1, 0)


def test_shape_arithmetic_goes(tmp_path):
    """Shape → Gather → Concat → Reshape: only Reshape stays, and its target is a weight."""
    nodes = [
        make_node("Relu", ["x"], ["h"]),
        make_node("Shape", ["h"], ["s"]),
        make_node("Gather", ["s", "one"], ["last"]),
        make_node("Concat", ["last", "two"], ["to"], axis=0),
        make_node("Reshape", ["h", "to"], ["y"]),
    ]
    graph = fold(raw_of(tmp_path, nodes, weights=[integers("one", [1]), integers("two", [2])]))
    assert list(graph.ops.kind) == ["Relu", "Reshape"] and graph.weights.name == ("to",)
    assert arguments(graph, 1) == {0: ("tensor", "h"), 1: ("weight", "to")}
    assert list(graph.ops.origin) == [(0,), (4, 1, 2, 3)]


@pytest.mark.parametrize("length", [3, 300])
def test_long_arithmetic_of_known_values_goes(length):
    """However many ops follow from a constant one after the other, all of them go."""
    builder = GraphBuilder()
    known = builder.add_tensor(builder.add_op("c", "Constant"), shape=(2,), dtype="float32")
    for number in range(length):
        op = builder.add_op(f"n{number}", "Neg")
        builder.add_edge(known, op)
        known = builder.add_tensor(op, shape=(2,), dtype="float32", name=f"v{number}")
    add = builder.add_op("add", "Add")
    for tensor in (builder.add_tensor(-1, shape=(2,), dtype="float32"), known):
        builder.add_edge(tensor, add)
    builder.add_tensor(add, shape=(2,), dtype="float32", output=True)
    graph = fold(builder.build())
    assert graph.ops.name == ("add",) and graph.weights.name == (f"v{length - 1}",)


def test_nothing_to_fold():
    """A graph of which all is needed comes back as it is; a word that no op uses any more is forgotten."""
    builder = GraphBuilder()
    op = builder.add_op("a", "Relu", scope="s")
    builder.add_edge(builder.add_tensor(-1, nbytes=4), op)
    builder.add_tensor(op, nbytes=4, output=True)
    graph = builder.build()
    assert fold(graph) is graph
    wordy = replace(graph, ops=replace(graph.ops, scope=Interned(("s", "t"), graph.ops.scope.codes)))
    assert fold(wordy).ops.scope.values == ("s",)


def test_shape_that_is_unknown_stays(tmp_path):
    """What a run must find out is not folded: NonZero's length, and all that follows from it."""
    nodes = [
        make_node("NonZero", ["x"], ["n"]),
        make_node("Shape", ["n"], ["s"]),
        make_node("ConstantOfShape", ["s"], ["y"]),
    ]
    assert fold(raw_of(tmp_path, nodes)).n_ops == 3


def test_values_from_weights_are_weights(tmp_path):
    """A transposed weight keeps storage, and its name if that is free; a computed one is new; unused ones go."""
    nodes = [make_node("Transpose", ["w"], ["t"], perm=[1, 0]), make_node("MatMul", ["x", "t"], ["y"])]
    weights = [weight("w", 4, 3), weight("idle", 4)]
    graph = fold(raw_of(tmp_path, nodes, weights=weights))
    assert graph.weights.name == ("w",) and graph.weights.shape[0] == (3, 4)
    nodes.append(make_node("MatMul", ["y", "w"], ["z"]))
    graph = fold(raw_of(tmp_path, nodes, ("z",), weights=weights))
    assert graph.weights.name == ("w", "t") and graph.weights.storage[0] == graph.weights.storage[1]
    nodes[0] = make_node("Neg", ["w"], ["t"])
    nodes[1] = make_node("Gemm", ["x", "t"], ["y"], transB=1)
    graph = fold(raw_of(tmp_path, nodes[:2], weights=weights))
    assert graph.weights.name == ("t",)


@pytest.mark.parametrize(("batch", "kinds"), [(2, ["Add"]), (300, ["Expand", "Gather", "Add"])])
def test_constants_do_not_grow_into_weights(tmp_path, batch, kinds):
    """A lookup for ids expanded to the batch folds while it is small; else both ops stay, and the table is the file's.

    Ids [1, 2] of 8 bytes become [batch, 2], and the result [batch, 2, 3] of 4: 24·2 or 24·300 bytes.
    """
    nodes = [
        make_node("Shape", ["x"], ["s"], end=2),
        make_node("Expand", ["ids", "s"], ["all"]),
        make_node("Gather", ["table", "all"], ["g"]),
        make_node("Add", ["x", "g"], ["y"]),
    ]
    values = [integers("ids", [[0, 1]]), weight("table", 2, 3)]
    raw = read_onnx(saved(tmp_path, model(nodes, {"x": [batch, 2, 3]}, ["y"], values))).graph
    graph = fold(raw)
    assert list(graph.ops.kind) == kinds and graph.weights.bytes.sum() < 100
    assert fold(graph).digest() == graph.digest()
    if batch == 300:
        assert arguments(graph, 0) == {0: ("weight", "ids"), 1: ("weight", "s")}
        assert arguments(graph, 1) == {0: ("weight", "table"), 1: ("tensor", "all")}


def test_tables_do_not_shrink_to_what_is_looked_up(tmp_path):
    """The first positions of a table of 512 are looked up at every run; a small table may go."""
    nodes = [make_node("Gather", ["table", "ids"], ["g"]), make_node("Add", ["x", "g"], ["y"])]
    graph = fold(raw_of(tmp_path, nodes, weights=[integers("ids", [0, 1]), weight("table", 512, 3)]))
    assert list(graph.ops.kind) == ["Gather", "Add"] and graph.weights.bytes.sum() == 512 * 12 + 16
    graph = fold(raw_of(tmp_path, nodes, weights=[integers("ids", [0, 1]), weight("table", 5, 3)]))
    assert list(graph.ops.kind) == ["Add"] and graph.weights.bytes.sum() == 24


def test_weights_of_another_type_fold(tmp_path):
    """A cast of a weight has as many entries as the weight, so its growth in bytes is none in entries."""
    half = onnx.numpy_helper.from_array(np.ones((1000, 3), np.float16), "half")
    nodes = [make_node("Cast", ["half"], ["c"], to=onnx.TensorProto.FLOAT), make_node("MatMul", ["x", "t"], ["y"])]
    nodes.insert(1, make_node("Transpose", ["c"], ["t"], perm=[1, 0]))
    graph = fold(raw_of(tmp_path, nodes, weights=[half]))
    assert list(graph.ops.kind) == ["MatMul"] and graph.weights.bytes.tolist() == [12_000]


def test_identities_and_dropout_are_bypassed(tmp_path):
    """Identity and Dropout pass their input on; an identity of a weight is that weight, not a copy."""
    nodes = [
        make_node("Identity", ["w"], ["i"]),
        make_node("Identity", ["i"], ["j"]),
        make_node("Relu", ["x"], ["h"]),
        make_node("Dropout", ["h"], ["d", "mask"]),
        make_node("Identity", ["d"], ["e"]),
        make_node("Add", ["e", "j"], ["s"]),
        make_node("Add", ["s", "w"], ["y"]),
    ]
    graph = fold(raw_of(tmp_path, nodes, weights=[weight("w", 2, 3)]))
    assert list(graph.ops.kind) == ["Relu", "Add", "Add"] and graph.weights.name == ("w",)
    assert arguments(graph, 1) == {0: ("tensor", "h"), 1: ("weight", "w")}
    assert list(graph.ops.origin) == [(2,), (5, 0, 1, 3, 4), (6,)]


def test_dropout_that_may_drop_stays(tmp_path):
    """Dropout with a training switch, or with a mask that somebody reads."""
    switch = onnx.numpy_helper.from_array(np.array(True), "on")
    nodes = [make_node("Dropout", ["x", "", "on"], ["d"]), make_node("Relu", ["d"], ["y"])]
    assert fold(raw_of(tmp_path, nodes, weights=[switch])).n_ops == 2
    nodes = [make_node("Dropout", ["x"], ["d", "m"]), make_node("Where", ["m", "d", "x"], ["y"])]
    assert fold(raw_of(tmp_path, nodes)).n_ops == 2


def test_dropout_whose_mask_is_only_measured_goes(tmp_path):
    """The mask's only reader folds away first, then the dropout."""
    nodes = [
        make_node("Dropout", ["x"], ["d", "m"]),
        make_node("Shape", ["m"], ["s"]),
        make_node("Reshape", ["d", "s"], ["y"]),
    ]
    graph = fold(raw_of(tmp_path, nodes))
    assert list(graph.ops.kind) == ["Reshape"] and sorted(graph.ops.origin[0]) == [0, 1, 2]


@pytest.mark.parametrize(
    "node",
    [
        make_node("RandomNormalLike", ["w"], ["r"]),
        make_node("Bernoulli", ["w"], ["r"]),
        make_node("QuantizeLinear", ["w", "scale"], ["r"]),
        make_node("Mystery", ["w"], ["r"], domain="their"),
    ],
)
def test_what_must_not_be_folded(tmp_path, node):
    """Random, quantizing and foreign ops stay, though all that they read are weights."""
    nodes = [node, make_node("Add", ["x", "r"], ["y"])]
    graph = fold(raw_of(tmp_path, nodes, weights=[weight("w", 2, 3), weight("scale")], domains=["their"]))
    assert graph.n_ops == 2 and "w" in graph.weights.name


def test_dequantized_weights_stay_small(tmp_path):
    """Weights stored in eight bits are not blown up to 32."""
    q = onnx.numpy_helper.from_array(np.ones((2, 3), np.int8), "q")
    nodes = [make_node("DequantizeLinear", ["q", "scale"], ["r"]), make_node("Add", ["x", "r"], ["y"])]
    assert fold(raw_of(tmp_path, nodes, weights=[q, weight("scale")])).weights.bytes.tolist() == [6, 4]


def test_unused_ops_go_and_outputs_stay(tmp_path):
    """Ops that no output needs are dropped in chains; a known value or identity that is an output keeps its op."""
    nodes = [
        make_node("Relu", ["x"], ["a"]),
        make_node("Tanh", ["a"], ["b"]),
        make_node("Shape", ["x"], ["known"]),
        make_node("Identity", ["x"], ["same"]),
        make_node("Sigmoid", ["same"], ["y"]),
    ]
    graph = fold(raw_of(tmp_path, nodes, ("y", "known", "same")))
    assert list(graph.ops.kind) == ["Shape", "Identity", "Sigmoid"] and arguments(graph, 2) == {0: ("tensor", "same")}
    assert [graph.tensors.name[row] for row in np.flatnonzero(graph.tensors.output)] == ["known", "same", "y"]


def test_graph_without_outputs_keeps_its_ops():
    """Where no output is marked, nothing counts as unused."""
    builder = GraphBuilder()
    op = builder.add_op("only", "Relu")
    builder.add_edge(builder.add_tensor(-1, shape=[2], dtype="float32"), op)
    builder.add_tensor(op, shape=[2], dtype="float32")
    assert fold(builder.build()).n_ops == 1


def training_graph():
    """Transpose of a weight, dropout and a constant in the forward part; one backward op in a group."""
    builder = GraphBuilder()
    x = builder.add_tensor(-1, shape=[2, 2], dtype="float32", name="x")
    turn = builder.add_op("turn", "Transpose", origin=(0,))
    drop = builder.add_op("drop", "Dropout", origin=(1,))
    constant = builder.add_op("two", "Constant", origin=(2,))
    multiply = builder.add_op("multiply", "MatMul", scope="layer", attributes={"a": 1}, group=4, origin=(3,))
    cache = builder.add_op("cache", "Constant", state_bytes=7, origin=(4,))
    back = builder.add_op("back", "MatMul", backward=True, group=4, origin=(5,))
    made = {op: builder.add_tensor(op, shape=[2, 2], dtype="float32") for op in range(6)}
    builder.use_weight(builder.add_weight("w", shape=[2, 2], dtype="float32"), turn)
    builder.add_edge(x, drop)
    for position, op in enumerate((turn, drop, constant, cache)):
        builder.add_edge(made[op], multiply, position)
    builder.add_edge(made[multiply], back)
    builder.set_output(made[multiply])
    return builder.build()


def test_training_keeps_what_changes():
    """With backward ops, weights change and dropout drops: only true constants fold. All columns are kept."""
    raw = training_graph()
    graph = fold(raw)
    assert sorted(graph.ops.name) == ["back", "cache", "drop", "multiply", "turn"]
    row = graph.ops.name.index("multiply")
    assert graph.ops.group[row] == 4 and graph.ops.scope[row] == "layer" and graph.ops.attributes[row] == {"a": 1}
    assert graph.ops.backward.sum() == 1 and graph.ops.state_bytes.sum() == 7 and graph.source is None


def test_backward_identities_go():
    """A gradient that is only passed on is read where it was made; other backward ops stay."""
    builder = GraphBuilder()
    ops = [builder.add_op(kind.lower(), kind, backward=kind != "Relu") for kind in ("Relu", "Neg", "Identity", "Exp")]
    made = [builder.add_tensor(op, shape=(4,), dtype="float32", output=op == 3) for op in ops]
    for tensor, consumer in zip(made, ops[1:], strict=False):
        builder.add_edge(tensor, consumer)
    folded = fold(builder.build())
    assert folded.ops.name == ("relu", "neg", "exp") and folded.inputs_of(2).tolist() == [1]


def test_source_says_folded(tmp_path):
    """The view and the transform are recorded, once."""
    graph = fold(raw_of(tmp_path, [make_node("Relu", ["x"], ["y"])]))
    assert graph.source.view == "folded" and graph.source.transforms == ("fold",)
    assert fold(graph).source == graph.source and graph.source.format == "onnx"


def boundary(*kinds):
    """A graph of ops that read one another in a row, each making a tensor but for an Output."""
    builder, tensor = GraphBuilder(), None
    for kind in kinds:
        op = builder.add_op(kind.lower(), kind)
        if tensor is not None:
            builder.add_edge(tensor, op)
        tensor = None if kind == "Output" else builder.add_tensor(op, shape=(1,), dtype="float32", name=f"of_{kind}")
    return builder.build()


@pytest.mark.parametrize("kinds", [("Input",), ("Input", "Output"), ("Input", "Identity"), ("Constant",)])
def test_nothing_left(kinds):
    """A graph of which nothing is left to run is refused, and one of no ops stays as it is."""
    with pytest.raises(GraphError, match="nothing in it computes a result; export"):
        fold(boundary(*kinds))
    assert fold(GraphBuilder().build()).n_ops == 0


def rebuilt(content, folded):
    """The folded graph as an ONNX model again; new weights take the values that the raw model computes for them."""
    values = onnx_files.run(content, 0) | {t.name: onnx.numpy_helper.to_array(t) for t in content.graph.initializer}
    again = onnx.ModelProto()
    again.CopyFrom(content)
    del again.graph.node[:], again.graph.initializer[:]
    for op in range(folded.n_ops):
        node = again.graph.node.add()
        node.CopyFrom(content.graph.node[folded.ops.origin[op][0]])
        for position, (_, name) in arguments(folded, op).items():
            node.input[position] = name
    for name in folded.weights.name:
        again.graph.initializer.append(onnx.numpy_helper.from_array(values[name], name))
    return again


@given(onnx_files.models())
def test_folded_graphs_compute_the_same(tmp_path_factory, content):
    """On other inputs than those that gave its weights their values, the folded graph gives the raw outputs."""
    raw = read_onnx(saved(tmp_path_factory.mktemp("random"), content), dims={"n": 2}).graph
    again = rebuilt(content, fold(raw))
    expected, found = onnx_files.run(content, 1), onnx_files.run(again, 1)
    for output in content.graph.output:
        np.testing.assert_array_equal(found[output.name], expected[output.name])


@given(onnx_files.models())
def test_fold_properties(tmp_path_factory, content):
    """Idempotent; smaller; each raw op at most once in `origin`, exactly once if it leads to a kept op."""
    raw = read_onnx(saved(tmp_path_factory.mktemp("random"), content), dims={"n": 2}).graph
    folded = fold(raw)
    again = fold(folded)
    assert again.digest() == folded.digest() and again.ops.name == folded.ops.name
    assert again.weights.name == folded.weights.name and list(again.ops.origin) == list(folded.ops.origin)
    origins = [node for origin in folded.ops.origin for node in origin]
    assert len(origins) == len(set(origins)) and folded.n_ops <= raw.n_ops
    kept = {origin[0] for origin in folded.ops.origin}
    leads = {}
    for op in reversed(range(raw.n_ops)):
        users = {int(user) for tensor in raw.outputs_of(op) for user in raw.consumers_of(tensor)}
        leads[op] = raw.ops.origin[op][0] in kept or any(leads[user] for user in users)
    assert set(origins) == {raw.ops.origin[op][0] for op, leading in leads.items() if leading}
    devices = project_back(raw, folded, np.arange(folded.n_ops, dtype=np.int32))
    by_name = dict(zip(raw.ops.name, devices.tolist(), strict=True))
    assert [by_name[name] for name in folded.ops.name] == list(range(folded.n_ops))


@given(onnx_files.models())
def test_nothing_known_is_left(tmp_path_factory, content):
    """In a folded graph every op makes an output or depends on an input of the model, and every weight is used."""
    raw = read_onnx(saved(tmp_path_factory.mktemp("random"), content), dims={"n": 2}).graph
    folded = fold(raw)
    used = set(folded.weight_edges.value.tolist())
    assert used == set(range(len(folded.weights)))
    for op, kind in enumerate(folded.ops.kind):
        makes_output = any(folded.tensors.output[tensor] for tensor in folded.outputs_of(op))
        assert makes_output or (len(folded.inputs_of(op)) and kind not in ("Shape", "Identity", "Dropout", "Constant"))
