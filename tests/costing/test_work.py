"""Signatures and the work of whole graphs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from costing_helpers import one_op
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

import placewise as pw
from placewise.costing import signatures as module
from placewise.costing.op_instance import CLASSES
from placewise.costing.signatures import fold_rows, pair_columns, signatures
from placewise.costing.work import work_of
from placewise.errors import ModelFileError
from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Source


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), max_size=4)), max_size=30))
def test_folded_codes_are_equal_exactly_for_equal_rows(rows):
    """Codes agree with comparing whole rows, whatever their lengths."""
    start = np.array([first for first, _ in rows], np.int64)
    offsets = np.cumsum([0, *(len(entries) for _, entries in rows)])
    entries = np.array([value for _, values in rows for value in values], np.int64)
    codes = fold_rows(start, offsets, entries).tolist()
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            assert (codes[i] == codes[j]) == (a == b)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=40))
def test_paired_codes_are_dense(pairs):
    """One code per distinct pair, from 0 without holes."""
    codes = pair_columns(np.array([a for a, _ in pairs]), np.array([b for _, b in pairs]))
    assert len(set(zip(codes.tolist(), pairs, strict=True))) == len(set(pairs))
    assert sorted(set(codes.tolist())) == list(range(len(set(pairs))))


def random_graph(draw):
    """Chains of ops with few kinds and shapes, so that signatures repeat; some tensors are never read."""
    builder = GraphBuilder()
    tensors = [builder.add_tensor(-1, shape=(4, 4), dtype="float32") for _ in range(2)]
    weights = [builder.add_weight(f"w{n}", shape=(4, 4 * n), dtype="float32") for n in (1, 2)]
    for number in range(draw(st.integers(1, 15))):
        kind = draw(st.sampled_from(["Add", "MatMul", "Relu", "Reshape", "my::Op"]))
        dtype = draw(st.sampled_from(["float32", "float16"]))
        op = builder.add_op(f"op{number}", kind, dtype=dtype, attributes={"x": draw(st.integers(0, 1))})
        builder.add_edge(draw(st.sampled_from(tensors)), op, 0)
        if kind in ("Add", "my::Op"):
            builder.add_edge(draw(st.sampled_from(tensors)), op, draw(st.integers(1, 2)))
        if kind == "MatMul":
            builder.use_weight(draw(st.sampled_from(weights)), op, 1)
        tensors.append(builder.add_tensor(op, shape=draw(st.sampled_from([(4, 4), (8, 4)])), dtype=dtype))
        if draw(st.booleans()):
            builder.add_tensor(op, dtype=dtype)  # of unknown shape, never read
    return builder.build()


def described(graph, op):
    """Everything that a cost may depend on, op by op."""
    tensors, weights = graph.tensors, graph.weights
    values = []
    for edges, offsets, table in (
        (graph.edges, graph.in_offsets, tensors),
        (graph.weight_edges, graph.weight_offsets, weights),
    ):
        for row in range(offsets[op], offsets[op + 1]):
            value = edges.value[row]
            values.append((table is weights, edges.position[row], table.shape[value], table.dtype[value]))
    outs = [(tensors.shape[t], tensors.dtype[t], tensors.bytes[t] < 0) for t in graph.outputs_of(op)]
    return graph.ops.kind[op], repr(graph.ops.attributes[op]), graph.ops.dtype[op], tuple(values), tuple(outs)


@examples(50)
@given(st.data())
def test_signatures_are_equal_exactly_for_equal_ops(data):
    """Vectorized codes agree with comparing every op's description in plain Python."""
    graph = random_graph(data.draw)
    codes = signatures(graph).tolist()
    described_ops = [described(graph, op) for op in range(graph.n_ops)]
    for i, a in enumerate(described_ops):
        for j, b in enumerate(described_ops):
            assert (codes[i] == codes[j]) == (a == b)


@examples(50)
@given(st.data())
def test_sharing_signatures_changes_no_cost(data):
    """Every op costs in the graph what it costs when nothing is shared."""
    graph = random_graph(data.draw)
    shared = work_of(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("placewise.costing.work.signatures", lambda graph: np.arange(graph.n_ops))
        alone = work_of(graph)
    for column in ("flops", "bytes", "dtype", "known"):
        assert np.array_equal(getattr(shared, column), getattr(alone, column))
    assert list(shared.op_class) == list(alone.op_class)
    assert shared.warnings == alone.warnings


def test_rows_of_many_arguments_are_like_no_other(monkeypatch):
    """Beyond the limit, equal rows may have different codes, and different rows still do."""
    monkeypatch.setattr(module, "MAX_ARGUMENTS", 2)
    codes = fold_rows(np.zeros(4, np.int64), np.array([0, 3, 6, 8, 10]), np.array([1, 1, 1, 1, 1, 2, 1, 1, 1, 1]))
    assert codes[0] != codes[1] and codes[2] == codes[3] and codes[0] not in codes[2:]


def test_a_wide_concat_is_priced():
    """Five hundred arguments: every one is read."""
    inputs = [(2, 3)] * 500
    assert work_of(one_op("Concat", inputs, [(1000, 3)])).bytes[0] == 2 * 4 * 3000


def test_the_position_of_an_argument_counts():
    """Clip's second argument is its minimum, its third the maximum: two signatures."""
    builder = GraphBuilder()
    x, limit = (builder.add_tensor(-1, shape=shape, dtype="float32") for shape in ((4,), ()))
    for number, position in enumerate((1, 2, 1)):
        op = builder.add_op(f"op{number}", "Clip", dtype="float32")
        builder.add_edge(x, op, 0)
        builder.add_edge(limit, op, position)
        builder.add_tensor(op, shape=(4,), dtype="float32")
    assert signatures(builder.build()).tolist() in ([0, 1, 0], [1, 0, 1])


@pytest.mark.parametrize("asked_for", ["read", "output"])
def test_an_unread_result_and_a_read_one_are_not_alike(asked_for):
    """Of two equal ops with a second result of unknown size, only the one that somebody reads is refused."""
    builder = GraphBuilder()
    x = builder.add_tensor(-1, shape=(4,), dtype="float32")
    for name in ("unread", "wanted"):
        op = builder.add_op(name, "Relu", dtype="float32")
        builder.add_edge(x, op)
        builder.add_tensor(op, shape=(4,), dtype="float32")
        second = builder.add_tensor(op, name=f"{name}:second")
    if asked_for == "output":
        builder.set_output(second)
    else:
        builder.add_edge(second, builder.add_op("view", "Identity"))
    with pytest.raises(ModelFileError, match=r"op 'wanted' .*'wanted:second' is unknown"):
        work_of(builder.build())


def test_empty_and_weightless_graphs():
    """A graph without ops has no work; ops without arguments have some."""
    assert len(work_of(GraphBuilder().build()).flops) == 0
    work = work_of(one_op("Constant", [], [(3,)]))
    assert (work.bytes[0], work.op_class[0]) == (0, "free")


def test_unknown_shapes_matter_only_where_they_are_needed():
    """Views and unread results may be of unknown shape; a needed one names op and tensor."""
    assert work_of(one_op("Reshape", [(-1, 3)], [(-1,)])).op_class[0] == "free"
    with pytest.raises(ModelFileError, match=r"op 'op' \(Relu\): the (shape|size) of tensor '\w+' is unknown"):
        work_of(one_op("Relu", [(-1, 3)], [(-1, 3)]))
    with pytest.raises(ModelFileError, match=r"op 'op' \(my::Op\): the size of tensor 'in0' is unknown"):
        work_of(one_op("my::Op", [(-1, 3)], [(1,)]))
    builder = GraphBuilder()
    op = builder.add_op("norm", "Relu", dtype="float32")
    builder.add_edge(builder.add_tensor(-1, shape=(4,), dtype="float32"), op)
    builder.add_tensor(op, shape=(4,), dtype="float32", output=True)
    builder.add_tensor(op, name="unread")
    assert work_of(builder.build()).bytes[0] == 32


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("my::Op", r"the output shapes of this op are not known; add value_info for its outputs"),
        ("Nonsense", r"the output shapes of this op are not known; add value_info for its outputs"),
        ("NonZero", r"the output size of this op depends on its data; add value_info"),
        ("Relu", r"no shape can be inferred for the outputs of this op; add value_info"),
    ],
)
def test_unknown_sizes_have_a_cause(kind, cause):
    """The sentence names file, op and tensor, says why the size is unknown and what helps."""
    with pytest.raises(ModelFileError, match=rf"^a/model.onnx: op 'odd' .*: the \w+ of tensor .* it: {cause}"):
        work_of(chain([("fine", "Relu"), ("odd", kind), ("last", "Relu")]))


@pytest.mark.parametrize("views", [0, 1, 3])
def test_unknown_sizes_are_traced_to_where_they_begin(views):
    """However many views behind it the op stands whose cost needs the size."""
    ops = [("fine", "Relu"), ("odd", "Reshape"), *((f"view{n}", "Unsqueeze") for n in range(views)), ("last", "Relu")]
    with pytest.raises(
        ModelFileError, match=r"op 'last' \(Relu\).*: the output size of op 'odd' \(Reshape\) depends on"
    ):
        work_of(chain(ops))


@pytest.mark.parametrize(
    ("form", "remedy"),
    [
        ("onnx", "add value_info for its outputs"),
        ("tensorflow", r"_output_shapes for its outputs, or give its inputs fixed shapes \(--dim\)"),
        ("openvino", "model.reshape"),
        ("torch-export", "export the model again with fixed shapes"),
        ("other", "give the shapes of its outputs, or export"),
    ],
)
def test_unknown_sizes_have_a_remedy_of_their_format(form, remedy):
    """Only ONNX has value_info."""
    with pytest.raises(ModelFileError, match=rf"depends on its data; .*{remedy}") as caught:
        work_of(chain([("odd", "NonZero"), ("last", "Relu")], form))
    assert ("value_info" in str(caught.value)) == (form == "onnx")


def chain(ops, form="onnx"):
    """x [4, 4] → ops in a row, of which only "fine" has a result of known shape."""
    builder = GraphBuilder()
    value = builder.add_tensor(-1, shape=(4, 4), dtype="float32", name="x")
    for name, what in ops:
        op = builder.add_op(name, what, dtype="float32")
        builder.add_edge(value, op)
        value = builder.add_tensor(op, shape=(4, 4) if name == "fine" else (-1,), dtype="float32", name=f"of {name}")
    return builder.build(Source("a/model.onnx", "", form))


def test_open_inputs_are_to_be_given():
    """Only where an input of the model itself is open are its dimensions asked for."""
    with pytest.raises(ModelFileError, match="an input of the model is open; give the model's open dimensions"):
        work_of(one_op("Relu", [(-1, 3)], [(-1, 3)]))


def test_the_first_op_in_order_is_the_one_refused():
    """Ops of later rows may have smaller signatures; the error is still that of the first."""
    builder = GraphBuilder()
    open_input = builder.add_tensor(-1, shape=(-1,), dtype="float32")
    for name, kind in (("one", "Tanh"), ("two", "Relu"), ("three", "Abs"), ("four", "Add")):
        op = builder.add_op(name, kind, dtype="float32")
        builder.add_edge(open_input, op)
        builder.add_tensor(op, shape=(-1,), dtype="float32")
    with pytest.raises(ModelFileError, match=r"^op 'one'"):
        work_of(builder.build())


def test_the_element_type_of_the_arithmetic():
    """The graph's word, else the first value's; integer kernels are int8."""
    builder = GraphBuilder()
    op = builder.add_op("op", "Relu")
    builder.add_edge(builder.add_tensor(-1, shape=(4,), dtype="float16"), op)
    builder.add_tensor(op, shape=(4,), dtype="float16")
    assert DTYPES[work_of(builder.build()).dtype[0]] == "float16"
    assert DTYPES[work_of(one_op("Relu", [(4,)], [(4,)], dtype="bfloat16")).dtype[0]] == "bfloat16"
    assert DTYPES[work_of(one_op("MatMulInteger", [(4, 4), (4, 4)], [(4, 4)], dtype="int32")).dtype[0]] == "int8"


def test_warnings_count_ops_by_kind():
    """One sentence per unknown kind, in alphabetical order."""
    builder = GraphBuilder()
    for number, kind in enumerate(["b::B", "a::A", "b::B"]):
        builder.add_tensor(builder.add_op(f"op{number}", kind), shape=(1,), dtype="float32")
    assert [text.split(" is assumed")[0] for text in work_of(builder.build()).warnings] == [
        "the cost of a::A (1 op)",
        "the cost of b::B (2 ops)",
    ]


def test_columns_are_frozen_and_classes_known():
    """Work is read-only; classes are of the one list."""
    work = work_of(one_op("Relu", [(4,)], [(4,)]))
    with pytest.raises(ValueError, match="read-only"):
        work.flops[0] = 1
    assert work.op_class.values == CLASSES
    assert max(Counter(CLASSES).values()) == 1


def test_attention_to_a_past_of_unknown_length_says_what_it_leaves_out():
    """OpenVINO's paged attention has a rule, which knows only the new tokens."""
    work = work_of(one_op("openvino::PagedAttentionExtension", [(9, 32), (9, 32), (9, 32)], [(9, 32)]))
    said = "the cost of openvino::PagedAttentionExtension (1 op) is assumed without the part that only a run reveals"
    assert work.warnings == (said,) and work.flops[0] == 9 * 9 * 4 * 32


@pytest.mark.parametrize("projected", [0, 4])
def test_recurrent_layers_read_their_state_matrices_at_every_step(projected: int) -> None:
    """All but the matrices of what a layer reads, in both directions and backward too."""
    torch = pytest.importorskip("torch")
    steps, layers = 7, 2
    module = torch.nn.LSTM(5, 8, layers, bidirectional=True, batch_first=True, proj_size=projected)
    options = pw.ProblemOptions(graph="training")
    graph = pw.build(module, "L4,cpu", options, example_inputs=(torch.zeros(3, steps, 5),)).graph
    work, kinds = work_of(graph), list(graph.ops.kind)
    again = 4 * (steps - 1) * sum(
        value.numel() for name, value in module.named_parameters() if name.startswith(("weight_hh", "weight_hr"))
    )  # fmt: skip
    for kind in ("aten::lstm", "gradient::aten::lstm"):
        op = kinds.index(kind)
        sizes = np.maximum(graph.tensors.bytes, 0)
        weights = graph.weights.bytes[graph.weights_of(op)].sum()
        moved = sizes[graph.inputs_of(op)].sum() + sizes[list(graph.outputs_of(op))].sum() + weights
        assert work.bytes[op] == moved + again, kind
