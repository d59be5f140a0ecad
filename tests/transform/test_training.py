"""to_training: what is in the graph of a training step, where it stands, what it keeps and what it costs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_files
import pytest
from hypothesis import given
from locations import EXAMPLES
from onnx.helper import make_node as node
from onnx_files import integers, saved, weight
from soak import examples

import placewise
from placewise.catalog import read_cluster
from placewise.costing.roofline import cost_table
from placewise.costing.work import work_of
from placewise.errors import GraphError, InputError
from placewise.model.builder import GraphBuilder
from placewise.model.graph import Graph
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.tables import Phase
from placewise.readers.onnx import read_onnx
from placewise.simulate.contiguity import contract
from placewise.transform.fold import fold
from placewise.transform.training import to_training


def graph_of(folder, nodes, weights, outputs=("y",), shape=(2, 3), domains=()):
    built = onnx_files.model(nodes, {"x": shape}, outputs, weights, domains=domains)
    return fold(read_onnx(saved(folder, built)).graph)


def mlp(folder, **options):
    """x · w → Relu → · v: two layers."""
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("MatMul", ["b", "v"], ["y"])]
    return graph_of(folder, nodes, [weight("w", 3, 4), weight("v", 4, 5)], **options)


def tied(folder):
    """Rows of a table looked up, a layer, and scores by the same table transposed."""
    nodes = [
        node("Cast", ["x"], ["ids"], to=onnx_files.INT64),
        node("Gather", ["table", "ids"], ["h"]),
        node("MatMul", ["h", "w"], ["g"]),
        node("Transpose", ["table"], ["back"], perm=[1, 0]),
        node("MatMul", ["g", "back"], ["y"]),
    ]
    return graph_of(folder, nodes, [weight("table", 7, 4), weight("w", 4, 4)], shape=(3,))


def backward_kinds(graph):
    return Counter(kind for kind, late in zip(graph.ops.kind, graph.ops.backward, strict=True) if late)


def reads(graph, op):
    """Names of all that an op reads."""
    tensors = {graph.tensors.name[t] for t in graph.inputs_of(op)}
    return tensors | {graph.weights.name[w] for w in graph.weights_of(op)}


def named(graph, name):
    return graph.ops.name.index(name)


def test_forward_ops_stay_as_they_are(tmp_path):
    """First in the graph, under their names and with their tensors; what they made for the user is no output now."""
    before = mlp(tmp_path)
    after = to_training(before)
    n = before.n_ops
    assert after.ops.name[:n] == before.ops.name and list(after.ops.kind)[:n] == list(before.ops.kind)
    assert set(before.tensors.name) < set(after.tensors.name) and after.weights.name == before.weights.name
    assert not after.ops.backward[: n + 1].any() and after.ops.backward[n + 1 :].all()
    assert [after.tensors.name[t] for t in np.flatnonzero(after.tensors.output)] == ["loss:0"]
    assert after.source.transforms == ("fold", "training:adam") and after.source.sha256 == before.source.sha256


def test_backward_ops_stand_with_their_forward_op(tmp_path):
    """In its group, scope and origin, and named after it."""
    graph = to_training(mlp(tmp_path))
    forward = {graph.ops.group[op]: op for op in np.flatnonzero(~graph.ops.backward)}
    for op in np.flatnonzero(graph.ops.backward).tolist():
        twin = forward[graph.ops.group[op]]
        assert graph.ops.scope[op] == graph.ops.scope[twin] and graph.ops.origin[op] == graph.ops.origin[twin]
        if "/grad:" in graph.ops.name[op]:
            assert graph.ops.name[op].startswith(graph.ops.name[twin] + "/grad:")


def test_groups_of_the_model_are_kept():
    """Ops that a model keeps together stay together with all of their backward ops."""
    builder = GraphBuilder()
    x = builder.add_tensor(-1, shape=(2, 3), dtype="float32", name="x")
    for number in range(3):
        op = builder.add_op(f"op{number}", "MatMul", group=4 if number < 2 else -1)
        builder.add_edge(x, op)
        builder.use_weight(builder.add_weight(f"w{number}", shape=(3, 3), dtype="float32"), op)
        x = builder.add_tensor(op, shape=(2, 3), dtype="float32", output=number == 2)
    graph = to_training(builder.build())
    group = {name: int(code) for name, code in zip(graph.ops.name, graph.ops.group, strict=True)}
    assert group["op0"] == group["op1"] == group["w0/update"] == group["op1/grad:0"] == 4
    assert group["op2"] == group["op2/grad:0"] == group["w2/update"] > 4
    assert group["loss"] == group["loss/grad:0"] not in (4, group["op2"])


def test_only_what_a_gradient_needs_is_kept(tmp_path):
    """Relu keeps its result, which the next product keeps anyway; sums keep nothing; the input needs no gradient."""
    graph = to_training(mlp(tmp_path), loss=False)
    late = np.flatnonzero(graph.ops.backward)
    kept = set().union(*(reads(graph, op) for op in late))
    assert "a" not in kept and {"x", "b", "v"} <= kept
    assert backward_kinds(graph) == {"com.microsoft::FusedMatMul": 3, "gradient::Relu": 1, "optimizer::Adam": 2}


def test_each_optimizer_keeps_its_state(tmp_path):
    """Per element: none, one moment, two, of four bytes each; 16-bit weights have a copy of 32 bits as well."""
    for optimizer, kept in (("sgd", 0), ("momentum", 4), ("adam", 8)):
        graph = to_training(mlp(tmp_path), optimizer=optimizer)
        updates = {
            graph.ops.name[op]: int(graph.ops.state_bytes[op])
            for op in range(graph.n_ops)
            if "update" in graph.ops.name[op]
        }
        assert updates == {"w/update": 12 * kept, "v/update": 20 * kept}
    builder = GraphBuilder()
    op = builder.add_op("op", "MatMul")
    builder.add_edge(builder.add_tensor(-1, shape=(2, 3), dtype="bfloat16"), op)
    builder.use_weight(builder.add_weight("w", shape=(3, 5), dtype="bfloat16"), op)
    builder.set_output(builder.add_tensor(op, shape=(2, 5), dtype="bfloat16"))
    half = builder.build()
    assert to_training(half).ops.state_bytes.sum() == 15 * (4 + 4 + 4)
    assert to_training(half, master_weights=False).ops.state_bytes.sum() == 15 * (4 + 4)


def test_updates_come_last(tmp_path):
    """After all gradients, which are therefore held till then; each reads its gradient and its weight."""
    graph = to_training(mlp(tmp_path))
    assert graph.ops.name[-2:] == ("w/update", "v/update")
    assert reads(graph, named(graph, "w/update")) == {"a/grad:0:0", "w"}
    assert reads(graph, named(graph, "v/update")) == {"y/grad:1:0", "v"}


def test_a_tied_weight_is_updated_once_and_sent_to_its_other_users(tmp_path):
    """The gradients add up in the shape of the first use, and the other user gets the new weight."""
    graph = to_training(tied(tmp_path))
    updates = [name for name in graph.ops.name if name.endswith("/update")]
    assert len(updates) == 2
    renewed = int(np.flatnonzero(graph.ops.kind.equals("optimizer::Renew"))[0])
    update = int(graph.tensors.producer[graph.inputs_of(renewed)[0]])
    gather, scores = (
        int(np.flatnonzero(graph.ops.kind.equals(kind))[at]) for kind, at in (("Gather", 0), ("MatMul", -1))
    )
    assert graph.ops.group[update] == graph.ops.group[gather] and graph.ops.group[renewed] == graph.ops.group[scores]
    assert graph.tensors.bytes[graph.inputs_of(renewed)[0]] == 7 * 4 * 4
    assert graph.tensors.shape[graph.inputs_of(update)[0]] == (7, 4)
    assert backward_kinds(graph)["Add"] == backward_kinds(graph)["Transpose"] == 1


def test_a_tied_weight_does_not_forbid_a_pipeline(tmp_path):
    """First and last layer share a table, and may still be in different stages."""
    graph = to_training(tied(tmp_path))
    cluster = read_cluster("2xL4,cpu")
    problem = Problem(graph, cluster, cost_table(graph, cluster), Objective("throughput"), Constraints(contiguous=True))
    assert contract(problem).n == 5, "a cast, a lookup, two products and the loss"


def test_the_loss_of_the_model_is_used(tmp_path):
    """A single number is where the gradient starts, and the only output."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("SoftmaxCrossEntropyLoss", ["a", "labels"], ["cost"], reduction="mean"),
        node("Softmax", ["a"], ["y"]),
    ]
    graph = to_training(graph_of(tmp_path, nodes, [weight("w", 3, 4), integers("labels", [1, 2])], ("y", "cost")))
    assert "Loss" not in list(graph.ops.kind) and backward_kinds(graph)["ConstantOfShape"] == 1
    assert [graph.tensors.name[t] for t in np.flatnonzero(graph.tensors.output)] == ["cost"]
    assert "gradient::Softmax" not in backward_kinds(graph)


def test_the_loss_reads_outputs_that_no_other_output_follows_from(tmp_path):
    """Hidden states that the model gives away get their gradient from the scores."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "v"], ["y"]), node("Relu", ["h"], ["z"])]
    weights = [weight("w", 3, 4), weight("v", 4, 5)]
    graph = to_training(graph_of(tmp_path, nodes, weights, ("h", "y", "z")))
    assert reads(graph, named(graph, "loss")) == {"y", "z"}


def test_without_a_loss_gradients_come_from_outside(tmp_path):
    """As inputs of the graph, like the outputs; the outputs stay outputs."""
    graph = to_training(mlp(tmp_path), loss=False)
    assert graph.tensors.name[:2] == ("x", "y/grad") and graph.tensors.shape[1] == (2, 5)
    assert [graph.tensors.name[t] for t in np.flatnonzero(graph.tensors.output)] == ["y"]


def test_frozen_weights_end_the_way_back(tmp_path):
    """Nothing is computed for them, nor for what comes before them."""
    graph = to_training(mlp(tmp_path), frozen=["^w$"])
    assert backward_kinds(graph) == {"com.microsoft::FusedMatMul": 1, "gradient::Loss": 1, "optimizer::Adam": 1}
    assert graph.ops.group[0] == graph.ops.group[1] == -1
    with pytest.raises(GraphError, match=r"all weights .* are frozen.*freeze fewer"):
        to_training(mlp(tmp_path), frozen=["."])


def test_constants_are_no_weights_to_train(tmp_path):
    """Scales, cosines, masks, indices and running means stay what they are."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Div", ["a", "root"], ["b"]),
        node("Mul", ["b", "cosines"], ["c"]),
        node("BatchNormalization", ["c", "s", "t", "mean", "var"], ["d"]),
        node("Gather", ["d", "rows"], ["e"]),
        node("Clip", ["e", "low", "high"], ["y"]),
    ]
    weights = [weight(n, *s) for n, s in (("w", (3, 4)), ("root", ()), ("cosines", (2, 4)), ("low", ()), ("high", ()))]
    weights += [weight(name, 4) for name in ("s", "t", "mean", "var")] + [integers("rows", [0, 1])]
    graph = to_training(graph_of(tmp_path, nodes, weights))
    assert {name.removesuffix("/update") for name in graph.ops.name if "update" in name} == {"w", "s", "t"}
    assert graph.ops.attributes[named(graph, "d")].get("training_mode") == 1


def test_no_gradient_passes_choices_and_whole_numbers(tmp_path):
    """What is compared, counted or rounded ends the way back; the other branch goes on."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("ArgMax", ["a"], ["i"], axis=1),
        node("Cast", ["i"], ["f"], to=1),
        node("Floor", ["a"], ["g"]),
        node("Add", ["f", "g"], ["h"]),
        node("Add", ["h", "a"], ["y"]),
    ]
    graph = to_training(graph_of(tmp_path, nodes, [weight("w", 3, 4)]))
    assert backward_kinds(graph) == {"com.microsoft::FusedMatMul": 1, "gradient::Loss": 1, "optimizer::Adam": 1}


def test_an_unknown_kind_gets_one_op_that_reads_all(tmp_path):
    """Also of a foreign format; its cost is assumed, and said to be."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Odd", ["a", "v"], ["b"], domain="mine"),
        node("Celu", ["b"], ["y"]),
    ]
    path = saved(
        tmp_path, onnx_files.model(nodes, {"x": [2, 3]}, ("y",), [weight("w", 3, 4), weight("v", 4)], domains=["mine"])
    )
    graph = to_training(fold(read_onnx(path).graph))
    odd = named(graph, "b/grad:0")
    assert graph.ops.kind[odd] == "gradient::mine::Odd" and {"a", "v"} <= reads(graph, odd)
    assert len(graph.outputs_of(odd)) == 2 and "v/update" in graph.ops.name
    unpriced = to_training(
        graph_of(tmp_path, [node("Mul", ["x", "w"], ["a"]), node("Det", ["a"], ["y"])], [weight("w", 3)], shape=(3, 3))
    )
    assert any("gradient::Det" in line and "twice" in line for line in work_of(unpriced).warnings)


def test_names_that_the_model_has_already_stay_apart(tmp_path):
    """A model whose ops are called like gradients."""
    nodes = [node("MatMul", ["x", "w"], ["a"], name="op"), node("Relu", ["a"], ["y"], name="op/grad:0")]
    graph = to_training(graph_of(tmp_path, nodes, [weight("w", 3, 4)]))
    assert "op/grad:0'" in graph.ops.name


def test_refusals(tmp_path):
    """Twice, with phases, with nothing to learn, by nobody: one sentence with a remedy."""
    graph = mlp(tmp_path)
    with pytest.raises(GraphError, match=r"trains already.*forward graph"):
        to_training(to_training(graph))
    with pytest.raises(InputError, match=r"'newton'.*adam"):
        to_training(graph, optimizer="newton")
    with pytest.raises(InputError, match="regular expression"):
        to_training(graph, frozen=["("])
    with pytest.raises(GraphError, match="no op uses a weight"):
        to_training(graph_of(tmp_path, [node("Relu", ["x"], ["y"])], []))
    with pytest.raises(GraphError, match="no tensor is an output"):
        builder = GraphBuilder()
        op = builder.add_op("op", "MatMul")
        builder.use_weight(builder.add_weight("w", shape=(2, 2), dtype="float32"), op)
        to_training(builder.build())
    with pytest.raises(GraphError, match="scores"):
        to_training(
            graph_of(tmp_path, [node("MatMul", ["x", "w"], ["a"]), node("ArgMax", ["a"], ["y"])], [weight("w", 3, 4)])
        )


def test_ops_that_are_none_of_their_kind_are_refused():
    """A product of one argument, which no reader lets pass: the op is named."""
    builder = GraphBuilder()
    op = builder.add_op("half", "MatMul")
    builder.use_weight(builder.add_weight("w", shape=(2, 2), dtype="float32"), op)
    builder.set_output(builder.add_tensor(op, shape=(2, 2), dtype="float32"))
    with pytest.raises(GraphError, match=r"'half'.*MatMul.*check the model"):
        to_training(builder.build())


def test_unknown_shapes_stay_unknown():
    """A sum of values of unknown rank and size has gradients of unknown size."""
    builder = GraphBuilder()
    x = builder.add_tensor(-1, name="x", shape=(4,), dtype="float32")
    for number in range(2):
        op = builder.add_op(f"op{number}", "Add")
        builder.add_edge(x, op, 0)
        builder.use_weight(builder.add_weight(f"w{number}", shape=(4,), dtype="float32"), op, 1)
        x = builder.add_tensor(op, dtype="float32")
    builder.set_output(x)
    graph = to_training(builder.build(), loss=False)
    assert graph.tensors.bytes[1] == -1 and graph.ops.name[-2:] == ("w0/update", "w1/update")


def test_graphs_that_generate_are_refused(tmp_path):
    """Phases that run several times are no training step; a single one is."""
    builder = GraphBuilder()
    op = builder.add_op("op", "MatMul")
    builder.add_edge(builder.add_tensor(-1, shape=(2, 3), dtype="float32"), op)
    builder.use_weight(builder.add_weight("w", shape=(3, 5), dtype="float32"), op)
    builder.set_output(builder.add_tensor(op, shape=(2, 5), dtype="float32"))
    graph = builder.build()
    once, often = (
        Graph(graph.ops, graph.tensors, graph.weights, graph.edges, graph.weight_edges, phases=(Phase("prefill", n),))
        for n in (1, 8)
    )
    assert to_training(once).n_ops == to_training(graph).n_ops
    with pytest.raises(GraphError, match="prefill"):
        to_training(often)


def flops(graph, kind):
    work = work_of(graph)
    return sorted(work.flops[graph.ops.kind.equals(kind)].tolist())


def test_convolutions_cost_as_much_backward_for_each_of_their_arguments(tmp_path):
    """The first layer's images need no gradient; a bias is summed."""
    nodes = [node("Conv", ["x", "w", "b"], ["h"], strides=[2, 2]), node("Conv", ["h", "v"], ["y"], group=2)]
    weights = [weight("w", 4, 3, 3, 3), weight("b", 4), weight("v", 6, 2, 2, 2)]
    graph = to_training(graph_of(tmp_path, nodes, weights, shape=(2, 3, 9, 9)))
    first, second = 2 * 2 * 4 * 16 * 27, 2 * 2 * 6 * 9 * 8
    assert flops(graph, "Conv") == sorted((first, second))
    assert flops(graph, "gradient::Conv") == sorted((first, second, second, 2 * 4 * 16))


def test_products_cost_as_much_backward_for_each_factor(tmp_path):
    """Also where one matrix serves a whole batch."""
    graph = to_training(mlp(tmp_path, shape=(6, 2, 3)))
    both = 2 * 12 * 3 * 4, 2 * 12 * 4 * 5
    assert flops(graph, "Einsum") == sorted(both) and flops(graph, "com.microsoft::FusedMatMul") == [both[1]]


def test_fused_attention_is_computed_again(tmp_path):
    """Five products backward for two forward."""
    builder = GraphBuilder()
    op = builder.add_op("op", "Attention")
    for position in range(3):
        made = builder.add_op(f"p{position}", "Gemm")
        builder.use_weight(builder.add_weight(f"w{position}", shape=(8, 8), dtype="float32"), made, 1)
        builder.add_edge(builder.add_tensor(made, shape=(2, 4, 16, 8), dtype="float32"), op, position)
    builder.set_output(builder.add_tensor(op, shape=(2, 4, 16, 8), dtype="float32"))
    for made in range(1, 4):
        builder.add_edge(builder.add_tensor(-1, shape=(2, 4, 16, 8), dtype="float32"), made, 0)
    graph = to_training(builder.build())
    assert flops(graph, "gradient::Attention") == [2.5 * flops(graph, "Attention")[0]]


def test_an_update_reads_and_writes_what_is_kept(tmp_path):
    """Gradient, and twice the weight and both moments: seven times its bytes, with Adam."""
    graph = to_training(mlp(tmp_path))
    work = work_of(graph)
    assert sorted(work.bytes[graph.ops.kind.equals("optimizer::Adam")].tolist()) == [7 * 12 * 4, 7 * 20 * 4]


@examples(40)
@given(onnx_files.models())
def test_any_model_has_a_training_graph_or_a_reason_why_not(folder_of, model):
    """Gradients have the shape of what they are the gradient of; every backward op is in a group with a forward op."""
    forward = fold(read_onnx(saved(folder_of, model), dims={"n": 2}).graph)
    try:
        graph = to_training(forward)
    except GraphError as error:
        assert error.remedy
        return
    assert work_of(graph).flops.min() >= 0
    homes = set(graph.ops.group[~graph.ops.backward].tolist())
    assert set(graph.ops.group[graph.ops.backward].tolist()) <= homes
    for op in np.flatnonzero(
        [kind.startswith("optimizer::") and kind != "optimizer::Renew" for kind in graph.ops.kind]
    ):
        assert graph.tensors.shape[graph.inputs_of(op)[0]] == graph.weights.shape[graph.weights_of(op)[0]]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("problem_options", [
    {"objective": "throughput"}, {"objective": "throughput", "schedule": "gpipe"}, {"objective": "latency"},
])  # fmt: skip
def test_examples_are_placed(problem_options):
    """ResNet-50's training step in stages and as one step: forward and backward of an op share a device."""
    graph = to_training(fold(read_onnx(EXAMPLES / "resnet50.onnx", dims={"batch": 8}).graph))
    plan = placewise.place(graph, "2xL4,cpu", budget=2.0, **problem_options)
    assert plan.status in ("optimal", "feasible") and 0 < plan.lower_bound <= plan.value
    device = plan.placement.device
    for group in np.unique(graph.ops.group[graph.ops.group >= 0]):
        assert len(set(device[graph.ops.group == group].tolist())) == 1
