"""Cost rules against counts by hand, torch's counter, and ONNX's own list of ops and single-op models."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import onnx
import pytest
from costing_helpers import one_op
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

from placewise.costing.flops import CONTROL, RULES
from placewise.costing.op_instance import CLASSES
from placewise.costing.work import work_of
from placewise.errors import ModelFileError
from placewise.model.dtypes import DTYPES
from placewise.readers.onnx import read_onnx


def cost(*args, **kwargs):
    """(FLOPs, bytes, class) of a one-op graph."""
    work = work_of(one_op(*args, **kwargs))
    assert work.known[0] and not work.warnings
    return float(work.flops[0]), float(work.bytes[0]), work.op_class[0]


def test_matrix_products_by_hand():
    """2·M·N·K for plain, batched, transposed and vector products; a bias is free but read."""
    assert cost("MatMul", [(3, 4), (4, 5)], [(3, 5)]) == (2 * 3 * 4 * 5, 4 * (12 + 20 + 15), "matmul")
    assert cost("MatMul", [(2, 7, 3, 4), (4, 5)], [(2, 7, 3, 5)])[0] == 2 * 14 * 3 * 4 * 5
    assert cost("MatMul", [(4,), (4, 5)], [(5,)])[0] == 2 * 4 * 5
    assert cost("MatMul", [(4,), (4,)], [()])[0] == 2 * 4
    gemm = cost("Gemm", [(4, 3)], [(3, 5)], weights={1: (5, 4), 2: (5,)}, transA=1, transB=1)
    assert gemm == (2 * 3 * 4 * 5, 4 * (12 + 20 + 5 + 15), "matmul")
    assert cost("com.microsoft::FusedMatMul", [(2, 4, 3), (2, 4, 5)], [(2, 3, 5)], transA=1)[0] == 2 * 2 * 3 * 4 * 5


def test_convolutions_by_hand():
    """2 · outputs · kernel · channels per group; a transposed one counts its inputs instead."""
    flops, nbytes, op_class = cost(
        "Conv", [(1, 3, 224, 224)], [(1, 64, 112, 112)], weights={1: (64, 3, 7, 7), 2: (64,)}
    )
    assert flops == 2 * 64 * 112 * 112 * 3 * 7 * 7
    assert nbytes == 4 * (3 * 224 * 224 + 64 * 147 + 64 + 64 * 112 * 112)
    assert op_class == "conv"
    assert (
        cost("Conv", [(2, 32, 8, 8)], [(2, 32, 8, 8)], weights={1: (32, 1, 3, 3)}, group=32)[0] == 2 * 2 * 32 * 64 * 9
    )
    assert cost("ConvTranspose", [(1, 8, 5, 5), (8, 4, 2, 2)], [(1, 4, 10, 10)])[0] == 2 * 8 * 25 * 4 * 4


@pytest.mark.parametrize(
    ("kind", "shapes", "out", "attributes"),
    [
        ("MatMul", [(4, 5), (6, 7)], (4, 7), {}),
        ("MatMul", [(4, 5), (7, 5)], (4, 7), {}),
        ("MatMul", [(5,), (6,)], (), {}),
        ("MatMul", [(4, 5), (6,)], (4,), {}),
        ("MatMul", [(2, 4, 5), (3, 5, 7)], (2, 4, 7), {}),
        ("MatMul", [(4, 5), (5, 7)], (4, 7), {"transB": 1}),
        ("Gemm", [(4, 5), (5, 7)], (5, 7), {"transA": 1}),
        ("com.microsoft::FusedMatMul", [(4, 5), (5, 7)], (4, 7), {"transB": 1}),
        ("QLinearMatMul", {0: (4, 5), 1: (), 2: (), 3: (6, 7)}, (4, 7), {}),
        ("Conv", [(1, 3, 8, 8), (4, 8, 3, 3)], (1, 4, 6, 6), {}),
        ("Conv", [(1, 4, 8, 8), (4, 4, 3, 3)], (1, 4, 6, 6), {"group": 2}),
        ("Conv", [(1, 4, 8, 8), (3, 2, 1, 3, 3)], (1, 6, 6, 6), {"kernel_layout": "GOI"}),
        ("Conv", [(1, 8, 8, 5), (3, 3, 2, 4)], (1, 6, 6, 4), {"kernel_layout": "HWIO"}),
        ("Conv", [(1, 3, 8, 6), (3, 3, 2, 4)], (1, 4, 6, 6), {"kernel_layout": "HWIO", "data_format": "NCHW"}),
        ("Conv", [(1, 8, 8, 4), (3, 3, 2, 1)], (1, 6, 6, 2), {"kernel_layout": "HWGO"}),
        ("QLinearConv", {0: (1, 3, 8, 8), 3: (4, 2, 3, 3)}, (1, 4, 6, 6), {}),
        ("ConvTranspose", [(1, 8, 5, 5), (4, 8, 2, 2)], (1, 8, 10, 10), {}),
        ("CausalConvWithState", [(1, 8, 5), (4, 1, 3)], (1, 8, 5), {}),
    ],
)
def test_factors_that_do_not_fit(kind, shapes, out, attributes):
    """Inner lengths, batches and channels that contradict each other are refused."""
    with pytest.raises(ModelFileError, match="do not fit its kind; check the model"):
        cost(kind, shapes, [out], **attributes)


def test_factors_that_fit():
    """Other layouts, groups, a missing batch, broadcast batches, and weights packed in their own shape."""
    assert cost("MatMul", [(2, 1, 4, 5), (3, 5, 7)], [(2, 3, 4, 7)])[0] == 2 * 5 * 6 * 28
    assert cost("Gemm", [(5, 4), (5,)], [(4,)], transA=1, transB=1)[0] == 2 * 20
    assert cost("MatMul", [(4, 16), (1, 1, 32, 4)], [(4, 8)], dtypes={1: "int32"})[0] == 2 * 16 * 32
    assert cost("Conv", [(8, 5), (4, 8, 3)], [(4, 3)])[0] == 2 * 12 * 24
    for shapes, attributes in (
        (((1, 8, 8, 6), (3, 3, 2, 4)), {"kernel_layout": "HWIO"}),
        (((1, 6, 8, 8), (3, 3, 2, 4)), {"kernel_layout": "HWIO", "data_format": "NCHW"}),
        (((1, 6, 8, 8), (3, 2, 2, 3, 3)), {"kernel_layout": "GOI"}),
    ):
        assert cost("Conv", list(shapes), [(1, 6, 6, 4)], **attributes)[0] == 2 * 144 * 18
    assert cost("com.microsoft::NhwcFusedConv", [(1, 8, 8, 6), (4, 6, 3, 3)], [(1, 6, 6, 4)])[0] == 144 * 109
    assert cost("CausalConvWithState", [(1, 8, 5), (8, 1, 3)], [(1, 8, 5)])[0] == 2 * 40 * 3


def test_integer_products_count_as_int8():
    """QLinear and Integer kinds take their kernel from the right argument and compute in int8."""
    scale = {1: (), 2: (), 4: (), 5: (), 6: (), 7: ()}
    for kind, shapes, out, expected in (
        ("QLinearConv", {0: (1, 3, 8, 8), **scale, 3: (4, 3, 3, 3)}, (1, 4, 6, 6), (2 * 27 + 4) * 4 * 36),
        ("QLinearMatMul", {0: (3, 4), **scale, 3: (4, 5)}, (3, 5), (2 * 4 + 4) * 15),
        ("MatMulInteger", {0: (3, 4), 1: (4, 5)}, (3, 5), 2 * 4 * 15),
        ("ConvInteger", {0: (1, 3, 8, 8), 1: (4, 3, 3, 3)}, (1, 4, 6, 6), 2 * 27 * 4 * 36),
    ):
        work = work_of(one_op(kind, shapes, [out], dtype="uint8"))
        assert (float(work.flops[0]), work.op_class[0]) == (expected, "matmul" if "MatMul" in kind else "conv")
        assert DTYPES[int(work.dtype[0])] == "int8"


@pytest.mark.parametrize(
    ("equation", "shapes", "out", "flops", "op_class"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)], (3, 5), 2 * 60, "matmul"),
        ("bij,bjk", [(2, 3, 4), (2, 4, 5)], (3, 5), 2 * 120, "matmul"),
        ("...ij,...jk->...ik", [(7, 2, 3, 4), (2, 4, 5)], (7, 2, 3, 5), 2 * 7 * 120, "matmul"),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)], (2, 3, 4, 6), 2 * 2 * 3 * 4 * 6 * 5, "matmul"),
        ("i,j->ij", [(3,), (4,)], (3, 4), 12, "elementwise"),
        ("ij->ji", [(3, 4)], (4, 3), 0, "movement"),
        ("ij->i", [(3, 4)], (3,), 12, "elementwise"),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], (2, 5), 2 * 24 + 2 * 40, "matmul"),
        ("ij,jk -> ik", [(3, 1), (1, 5)], (3, 5), 15, "elementwise"),
    ],
)
def test_einsum_by_hand(equation, shapes, out, flops, op_class):
    """Sums over labels are products, the rest is elementwise; operands join from left to right."""
    found = cost("Einsum", shapes, [out], equation=equation)
    assert (found[0], found[2]) == (flops, op_class)


def test_attention_by_hand():
    """Two products of the scores' size and a softmax of five FLOPs per score, in all packings."""
    core = 2 * 3 * 4 * 9 * (2 * 8 + 2 * 5 + 5)
    four = [(2, 3, 4, 8), (2, 3, 9, 8), (2, 3, 9, 5)]
    assert cost("Attention", four, [(2, 3, 4, 5)])[0::2] == (core, "attention")
    three = [(2, 4, 24), (2, 9, 24), (2, 9, 15)]
    assert cost("Attention", three, [(2, 4, 15)], q_num_heads=3, kv_num_heads=3)[0] == core
    grouped = [(2, 4, 4 * 8), (2, 9, 2 * 8), (2, 9, 2 * 5)]
    assert cost("Attention", grouped, [(2, 4, 20)], q_num_heads=4, kv_num_heads=2)[0] == core * 4 / 3
    past = {0: (2, 3, 1, 8), 1: (2, 3, 1, 8), 2: (2, 3, 1, 8), 4: (2, 3, 6, 8), 5: (2, 3, 6, 8)}
    assert cost("Attention", past, [(2, 3, 1, 8)])[0] == 2 * 3 * 1 * 7 * 37
    packed = cost("com.microsoft::Attention", [(2, 4, 10)], [(2, 4, 12)], weights={1: (10, 36)}, num_heads=3)
    assert packed[0] == 2 * 8 * 360 + 2 * 3 * 4 * 4 * (8 + 8 + 5)
    heads = [(2, 4, 24), (2, 9, 24), (2, 9, 15)]
    assert cost("com.microsoft::MultiHeadAttention", heads, [(2, 4, 15)], num_heads=3)[0] == core
    one = [(2, 4, 3, 3, 8)]
    assert cost("com.microsoft::MultiHeadAttention", one, [(2, 4, 24)], num_heads=3)[0] == 2 * 3 * 16 * 37
    query = {0: (1, 1, 32), 1: (1, 1, 16), 2: (1, 1, 16), 3: (1, 2, 10, 8), 4: (1, 2, 10, 8)}
    outs = [(1, 1, 32), (1, 2, 11, 8), (1, 2, 11, 8)]
    assert cost("com.microsoft::GroupQueryAttention", query, outs, num_heads=4, kv_num_heads=2)[0] == 4 * 11 * 37


def test_recurrent_layers_by_hand():
    """Both products for every step and direction, and the arithmetic of the gates."""
    x, w, r = (7, 2, 5), (2, 12, 5), (2, 12, 3)
    flops, nbytes, op_class = cost("LSTM", [x], [(7, 2, 2, 3)], weights={1: w, 2: r}, hidden_size=3)
    assert nbytes == 4 * (7 * 2 * 5 + 2 * 12 * 5 + 7 * 2 * 12 * 3 + 7 * 2 * 2 * 3)  # R at each of seven steps
    batched = cost("LSTM", [x], [(7, 2, 2, 3)], weights={1: w, 2: r}, hidden_size=3, layout=1)
    assert nbytes - batched[1] == 4 * (7 - 2) * 2 * 12 * 3
    assert flops == 2 * 7 * 2 * (2 * 12 * 5 + 2 * 12 * 3) + 30 * 7 * 2 * 2 * 3
    assert op_class == "matmul"
    gru = cost("GRU", [x], [(7, 1, 2, 3)], weights={1: (1, 9, 5), 2: (1, 9, 3)})
    assert gru[0] == 2 * 14 * (45 + 27) + 23 * 14 * 3


def test_elementwise_and_reductions_by_hand():
    """A fixed number of FLOPs per element of output or input, and everything read and written."""
    assert cost("Add", [(4, 5), (5,)], [(4, 5)]) == (20, 4 * (20 + 5 + 20), "elementwise")
    assert cost("Sigmoid", [(4, 5)], [(4, 5)], dtype="float16") == (80, 80, "elementwise")
    assert cost("Sum", [(4,), (4,), (4,)], [(4,)])[0] == 8
    assert cost("Mean", [(4,), (4,), (4,)], [(4,)])[0] == 12
    assert cost("BatchNormalization", [(2, 3, 4)], [(2, 3, 4)], weights=dict.fromkeys((1, 2, 3, 4), (3,)))[0] == 48
    assert cost("Softmax", [(4, 5)], [(4, 5)]) == (100, 160, "reduction")
    assert cost("LayerNormalization", [(4, 5)], [(4, 5)], weights={1: (5,), 2: (5,)})[0] == 140
    assert cost("ReduceMean", [(4, 5)], [(4, 1)], weights={1: (1,)}) == (20, 4 * (20 + 1 + 4), "reduction")
    assert cost("MaxPool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], kernel_shape=[3, 3])[0] == 9 * 32
    assert cost("GlobalAveragePool", [(1, 2, 8, 8)], [(1, 2, 1, 1)])[0] == 128
    assert cost("LRN", [(1, 8, 2, 2)], [(1, 8, 2, 2)], size=5)[0] == 10 * 32
    assert cost("TopK", [(4, 16)], [(4, 4), (4, 4)])[0] == 64 * 3


def test_views_move_nothing_and_lookups_move_rows():
    """Reshapes are free; Gather and Slice move only what goes out, whatever the table's size."""
    for kind in ("Reshape", "Squeeze", "Identity", "Flatten", "Dropout", "Shape"):
        assert cost(kind, [(4, 5)], [(20,)]) == (0, 0, "free")
    gather = cost("Gather", {1: (2, 7)}, [(2, 7, 768)], weights={0: (30522, 768)}, dtypes={1: "int64"})
    assert gather == (0, 2 * 4 * 14 * 768 + 14 * 8, "movement")
    assert cost("Slice", [(100, 100), (1,), (1,)], [(2, 100)], dtypes={1: "int64", 2: "int64"})[1] == 2 * 800 + 16
    assert cost("Concat", [(2, 3), (4, 3)], [(6, 3)])[1] == 4 * 36
    assert cost("TensorScatter", [(1, 4, 100, 8), (1, 4, 1, 8), (1,)], [(1, 4, 100, 8)])[1] == 2 * 128 + 4


def test_transposes_of_length_one_are_views():
    """A copy, unless only dimensions of length 1 change places."""
    assert cost("Transpose", [(1, 5, 1, 7)], [(5, 1, 1, 7)], perm=[1, 0, 2, 3]) == (0, 0, "free")
    assert cost("Transpose", [(1, 5, 7)], [(1, 7, 5)], perm=[0, 2, 1]) == (0, 280, "movement")
    assert cost("Transpose", [(5, 7)], [(7, 5)])[2] == "movement"


def test_resize_counts_neighbours():
    """Nearest is a copy; linear weighs 2 neighbours per dimension that changes, cubic 4."""
    shapes = [(1, 3, 4, 4)], [(1, 3, 8, 8)]
    assert cost("Resize", *shapes)[0] == 0
    assert cost("Resize", *shapes, mode="linear")[0] == 2 * 4 * 192
    assert cost("Resize", *shapes, mode="cubic")[0] == 2 * 16 * 192


def test_unknown_kinds_are_counted_by_bytes_and_named():
    """No FLOPs, inputs and outputs as bytes, known is false, and one warning per kind."""
    work = work_of(one_op("my::Thing", [(4, 5)], [(3,)], weights={1: (2,)}))
    assert (work.flops[0], work.bytes[0], work.op_class[0], work.known[0]) == (0, 4 * 25, "unknown", False)
    assert work.warnings == ("the cost of my::Thing (1 op) is assumed from the bytes it reads and writes",)
    assert work_of(one_op("Loop", [(4,)], [(4,)])).op_class[0] == "control"


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes"),
    [
        ("Conv", [(1, 3, 8, 8)], {}),
        ("MatMul", [(), ()], {}),
        ("MaxPool", [(1, 3, 8, 8)], {}),
        ("MaxPool", [(1, 3, 8, 8)], {"kernel_shape": "wide"}),
        ("MaxPool", [(1, 3, 8, 8)], {"kernel_shape": [-3]}),
        ("Einsum", [(2, 3, 4)], {"equation": "ij->i"}),
        ("Einsum", [(2, 3)], {"equation": "ijk->i"}),
        ("Einsum", [(2, 3)], {}),
        ("Attention", [(2, 3, 4), (2, 3, 4), (2, 3, 4)], {}),
        ("Transpose", [(2, 3)], {"perm": [0, 5]}),
        ("LSTM", [(2,)], {}),
        ("com.microsoft::GroupQueryAttention", [(1, 2, 8)], {}),
    ],
)
def test_arguments_that_do_not_fit_are_a_clear_error(kind, inputs, attributes):
    """Wrong ranks, missing arguments and wrong attributes name the op, its kind and its shapes."""
    with pytest.raises(ModelFileError, match=rf"op 'op' \({kind}\): its arguments .* do not fit its kind"):
        work_of(one_op(kind, inputs, [(1,)], **attributes))


@examples(80)
@given(
    st.sampled_from(sorted(RULES)),
    st.lists(st.lists(st.integers(-1, 5), max_size=5), max_size=5),
    st.lists(st.lists(st.integers(-1, 5), max_size=5), max_size=3),
    st.dictionaries(
        st.sampled_from(
            ["perm", "kernel_shape", "axis", "num_heads", "q_num_heads", "kv_num_heads", "mode", "size", "N"]
        ),
        st.integers(-3, 5) | st.lists(st.integers(-3, 5), max_size=4) | st.text(max_size=3) | st.just({"length": 9}),
    ),
)
def test_no_op_breaks_the_rules(kind, inputs, outputs, attributes):
    """Any shapes and attributes give finite costs ≥ 0 or an error that names the op."""
    try:
        work = work_of(one_op(kind, inputs, outputs, **attributes))
    except ModelFileError as error:
        assert "op 'op'" in str(error)
        return
    assert math.isfinite(work.flops[0]) and work.flops[0] >= 0
    assert math.isfinite(work.bytes[0]) and work.bytes[0] >= 0
    assert work.op_class[0] in CLASSES


_WITHOUT_RULE = {"ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"}


def test_every_standard_op_has_a_rule():
    """All ops that ONNX defines, but those on text and images and those with bodies."""
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert standard - set(RULES) - CONTROL == _WITHOUT_RULE & standard
    assert not RULES.keys() & CONTROL


@pytest.fixture(scope="module")
def single_op_models(tmp_path_factory):
    """One model of ONNX's own backend tests for every op type, as files."""
    folder = tmp_path_factory.mktemp("ops")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    paths = {}
    for case in cases:
        if case.model is not None and len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type not in paths:
            path = folder / f"{case.name}.onnx"
            onnx.save(case.model, path)
            paths[case.model.graph.node[0].op_type] = path
    return paths


def test_onnx_single_op_models_can_be_priced(single_op_models):
    """All are read. What has known shapes has a cost; only data-dependent sizes are refused."""
    priced = 0
    for kind, path in single_op_models.items():
        graph = read_onnx(Path(path), dims={"N": 2} if kind == "SequenceMap" else {}).graph
        try:
            work_of(graph)
            priced += 1
        except ModelFileError as error:
            assert "is unknown, and the cost of the op depends on it" in str(error)
            assert (graph.tensors.bytes < 0).any()
    assert priced > 150


def test_torch_counts_the_same():
    """Products, convolutions and attention against torch's own counter, on the same shapes."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    functional = torch.nn.functional
    x, image, kernel = torch.zeros(2, 7, 3, 4), torch.zeros(2, 6, 9, 9), torch.zeros(8, 3, 3, 3)
    q, k = torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 9, 8)
    cases = [
        ("MatMul", (x, torch.zeros(2, 7, 4, 5)), torch.matmul, {}),
        ("MatMul", (torch.zeros(3, 4), torch.zeros(4, 5)), torch.matmul, {}),
        ("Conv", (image, kernel), lambda a, b: functional.conv2d(a, b, stride=2, groups=2), {"group": 2}),
        (
            "ConvTranspose",
            (torch.zeros(2, 8, 5, 5), kernel),
            lambda a, b: functional.conv_transpose2d(a, b, stride=2),
            {},
        ),
    ]
    for kind, arguments, run, attributes in cases:
        with FlopCounterMode(display=False) as counter:
            result = run(*arguments)
        shapes = [tuple(argument.shape) for argument in arguments]
        assert cost(kind, shapes, [tuple(result.shape)], **attributes)[0] == counter.get_total_flops(), kind
    with FlopCounterMode(display=False) as counter:
        result = torch.matmul(torch.softmax(torch.matmul(q, k.transpose(2, 3)), -1), k)
    scores = 2 * 3 * 5 * 9
    attention = cost("Attention", [tuple(q.shape), tuple(k.shape), tuple(k.shape)], [tuple(result.shape)])[0]
    assert attention - 5 * scores == counter.get_total_flops()
