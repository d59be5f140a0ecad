"""Rules by kind: how an op is split, given how its arguments are, worked by hand."""

from __future__ import annotations

import pytest

from placewise.costing.flops import RULES as COSTS
from placewise.costing.sharding.rules import KEEP_FREE, LINEAR, RULES
from placewise.costing.sharding.strategies import FREE, SplitOp
from placewise.model.sharding import SUMMAND, WHOLE, Indivisible

W = "weight"


def ask(kind, arguments, results, t=2, tokens=False, **attributes):
    """The answers for arguments given as (shape, form), where the form of a weight is `W`."""
    shapes = {at: shape for at, (shape, _) in enumerate(arguments) if shape is not None}
    forms = {at: FREE if form == W else form for at, (shape, form) in enumerate(arguments) if shape is not None}
    weights = frozenset(at for at, (_, form) in enumerate(arguments) if form == W)
    return RULES[kind](SplitOp(kind, attributes, shapes, tuple(results), weights, forms, t, tokens))


def only(kind, arguments, results, **more):
    """Style, reads, forms of the results, and share of the only answer."""
    (answer,) = ask(kind, arguments, results, **more)
    return answer.style, dict(answer.reads), answer.makes, answer.share


SAME = ((2, 8, 6), (2, 8, 6))
PRODUCTS = [
    # columns of W [K, N]
    ("MatMul", [((2, 3, 4), WHOLE), ((4, 6), W)], [(2, 3, 6)], {}, ("colwise", {1: 1}, (2,), 0.5)),
    # columns of W [N, K] with its bias
    ("Gemm", [((3, 4), WHOLE), ((6, 4), W), ((6,), W)], [(3, 6)], {"transB": 1}, ("colwise", {1: 0, 2: 0}, (1,), 0.5)),
    # rows, where the argument is split along K; the bias is added once
    ("Gemm", [((3, 4), 1), ((6, 4), W), ((6,), W)], [(3, 6)], {"transB": 1},
     ("rowwise", {0: 1, 1: 1}, (SUMMAND,), 0.5)),
    # a split batch stays split
    ("MatMul", [((2, 3, 4), 0), ((4, 6), W)], [(2, 3, 6)], {}, ("follows", {0: 0}, (0,), 0.5)),
    # heads of two activations
    ("MatMul", [((2, 4, 3, 5), 1), ((2, 4, 5, 3), 1)], [(2, 4, 3, 3)], {}, ("heads", {0: 1, 1: 1}, (1,), 0.5)),
    # rows of the left factor meet all of the right one
    ("MatMul", [((2, 4, 6, 5), 2), ((2, 4, 5, 3), WHOLE)], [(2, 4, 6, 3)], {}, ("follows", {0: 2}, (2,), 0.5)),
    # the contracted dimension of both
    ("MatMul", [((4, 6), 1), ((6, 4), 0)], [(4, 4)], {}, ("rowwise", {0: 1, 1: 0}, (SUMMAND,), 0.5)),
    ("Einsum", [((2, 3, 8), WHOLE), ((8, 4, 2), W)], [(2, 3, 4, 2)], {"equation": "bsw,whd->bshd"},
     ("colwise", {1: 1}, (2,), 0.5)),
    ("Einsum", [((2, 3, 4, 2), 2), ((4, 2, 8), W)], [(2, 3, 8)], {"equation": "bshd,hdw->bsw"},
     ("rowwise", {0: 2, 1: 0}, (SUMMAND,), 0.5)),
    # convolutions [out, in, …]
    ("Conv", [((1, 4, 5, 5), WHOLE), ((6, 4, 3, 3), W), ((6,), W)], [(1, 6, 5, 5)], {},
     ("colwise", {1: 0, 2: 0}, (1,), 0.5)),
    ("Conv", [((1, 4, 5, 5), 1), ((6, 4, 3, 3), W), ((6,), W)], [(1, 6, 5, 5)], {},
     ("rowwise", {0: 1, 1: 1}, (SUMMAND,), 0.5)),
    ("Conv", [((4, 4, 5, 5), 0), ((6, 4, 3, 3), W)], [(4, 6, 5, 5)], {}, ("follows", {0: 0}, (0,), 0.5)),
    ("Conv", [((1, 4, 5, 5), 1), ((4, 1, 3, 3), W)], [(1, 4, 5, 5)], {"group": 4},
     ("follows", {0: 1, 1: 0}, (1,), 0.5)),
    ("ConvTranspose", [((1, 4, 5, 5), WHOLE), ((4, 6, 3, 3), W)], [(1, 6, 5, 5)], {}, ("colwise", {1: 1}, (1,), 0.5)),
    # TensorFlow's layout
    ("Conv", [((1, 5, 5, 4), 3), ((3, 3, 4, 6), W)], [(1, 5, 5, 6)], {"kernel_layout": "HWIO"},
     ("rowwise", {0: 3, 1: 2}, (SUMMAND,), 0.5)),
    # a vocabulary's rows, and scores for 5 words on 2 devices: 3 of 5
    ("Gather", [((64, 16), W), ((2, 3), WHOLE)], [(2, 3, 16)], {}, ("embedding", {0: 0}, (SUMMAND,), 0.5)),
    ("Gather", [((16, 8), 1), ((3,), WHOLE)], [(3, 8)], {"axis": 0}, ("follows", {0: 1}, (1,), 0.5)),
    ("Gemm", [((3, 2), WHOLE), ((5, 2), W)], [(3, 5)], {"transB": 1}, ("colwise", {1: 0}, (1,), 0.6)),
    # packed weights [N, blocks, bytes] and their scales
    ("com.microsoft::MatMulNBits", [((3, 64), WHOLE), ((8, 2, 16), W), ((8, 2), W)], [(3, 8)], {"N": 8, "K": 64},
     ("colwise", {1: 0, 2: 0}, (1,), 0.5)),
]  # fmt: skip
OTHERS = [
    ("Add", [((2, 8, 6), 2), ((6,), W)], [(2, 8, 6)], {}, ("follows", {0: 2, 1: 0}, (2,), 0.5)),
    ("Add", [((2, 8, 6), WHOLE), ((8, 6), 0)], [(2, 8, 6)], {}, ("follows", {0: 1, 1: 0}, (1,), 0.5)),
    ("Where", [((8, 1), WHOLE), ((2, 8, 6), 2), ((), W)], [(2, 8, 6)], {}, ("follows", {1: 2}, (2,), 0.5)),
    ("Softmax", [((2, 8, 6), 1)], [(2, 8, 6)], {"axis": -1}, ("follows", {0: 1}, (1,), 0.5)),
    ("LayerNormalization", [((2, 8, 6), 1), ((6,), W), ((6,), W)], [(2, 8, 6)], {"axis": -1},
     ("follows", {0: 1}, (1,), 0.5)),
    ("BatchNormalization", [((2, 8, 3, 3), 1), ((8,), W), ((8,), W), ((8,), W), ((8,), W)], [(2, 8, 3, 3)], {},
     ("follows", {0: 1, 1: 0, 2: 0, 3: 0, 4: 0}, (1,), 0.5)),
    ("GroupNormalization", [((2, 8, 3, 3), 1), ((8,), W), ((8,), W)], [(2, 8, 3, 3)], {"num_groups": 4},
     ("follows", {0: 1, 1: 0, 2: 0}, (1,), 0.5)),
    ("MaxPool", [((2, 8, 4, 4), 1)], [(2, 8, 2, 2)], {"kernel_shape": (2, 2)}, ("follows", {0: 1}, (1,), 0.5)),
    ("ReduceMean", [((2, 8, 6), 1)], [(2, 8, 1)], {"axes": (2,), "keepdims": 1}, ("follows", {0: 1}, (1,), 0.5)),
    ("ReduceSum", [((2, 8, 6), 1)], [(2, 6)], {"axes": (1,)}, ("follows", {0: 1}, (SUMMAND,), 0.5)),
    ("ReduceMax", [((2, 8, 6), 2)], [(2, 6)], {"axes": (1,)}, ("follows", {0: 2}, (1,), 0.5)),
    ("Transpose", [((2, 8, 6), 1)], [(6, 2, 8)], {"perm": (2, 0, 1)}, ("follows", {0: 1}, (2,), 0.5)),
    ("Expand", [((1, 8, 1), 1)], [(4, 2, 8, 6)], {}, ("follows", {0: 1}, (2,), 0.5)),
    ("Slice", [((2, 8, 6), 1)], [(2, 8, 3)], {"dim": 2, "start": 3}, ("follows", {0: 1}, (1,), 0.5)),
    ("Slice", [((2, 8, 6), 1)], [(8, 6)], {"dim": 0, "index": 1}, ("follows", {0: 1}, (0,), 0.5)),
    ("Split", [((2, 8, 6), 1)], [(2, 8, 2), (2, 8, 4)], {"axis": 2}, ("follows", {0: 1}, (1, 1), 0.5)),
    ("Concat", [((2, 8, 2), 1), ((2, 8, 4), WHOLE)], [(2, 8, 6)], {"axis": 2}, ("follows", {0: 1, 1: 1}, (1,), 0.5)),
    ("DequantizeLinear", [((8, 6), 0), ((8,), W)], [(8, 6)], {"axis": 0}, ("follows", {0: 0, 1: 0}, (0,), 0.5)),
    ("CacheUpdate", [((1, 4, 2, 8), 1), ((1, 4, 2, 8), 1)], [(1, 4, 9, 8)] * 2, {},
     ("heads", {0: 1, 1: 1}, (1, 1), 0.5)),
    ("Attention", [((1, 4, 2, 8), 1), ((1, 2, 9, 8), 1), ((1, 2, 9, 8), 1), ((1, 1, 2, 9), WHOLE)], [(1, 4, 2, 8)], {},
     ("heads", {0: 1, 1: 1, 2: 1}, (1,), 0.5)),
    ("Attention", [((1, 4, 2, 8), 1)] * 3, [(1, 2, 4, 8)], {"window": 0}, ("heads", {0: 1, 1: 1, 2: 1}, (2,), 0.5)),
    ("Attention", [((1, 2, 32), 2)] * 3, [(1, 2, 32)], {"q_num_heads": 4, "kv_num_heads": 4},
     ("heads", {0: 2, 1: 2, 2: 2}, (2,), 0.5)),
    ("com.microsoft::GroupQueryAttention", [((1, 2, 64), 2)], [(1, 2, 32)], {"num_heads": 4, "kv_num_heads": 2},
     ("heads", {0: 2}, (2,), 0.5)),
    ("com.microsoft::MultiHeadAttention", [((1, 2, 32), 2)] * 3, [(1, 2, 32)], {"num_heads": 4},
     ("heads", {0: 2, 1: 2, 2: 2}, (2,), 0.5)),
    ("com.microsoft::Attention", [((1, 2, 16), WHOLE), ((16, 48), W), ((48,), W)], [(1, 2, 16)], {"num_heads": 4},
     ("heads", {1: 1, 2: 0}, (2,), 0.5)),
    ("Experts", [((6, 8), WHOLE), ((6, 2), WHOLE), ((6, 2), WHOLE), ((4, 20, 8), W), ((4, 8, 10), W)], [(6, 8)], {},
     ("experts", {3: 0, 4: 0}, (SUMMAND,), 0.5)),
    ("com.microsoft::MoE", [((6, 8), WHOLE), ((6, 4), WHOLE), ((4, 10, 8), W), (None, W), ((4, 8, 10), W)], [(6, 8)],
     {"k": 1}, ("experts", {2: 0, 4: 0}, (SUMMAND,), 0.5)),
    # three experts on two devices: each is split inside
    ("Experts", [((6, 8), WHOLE), ((6, 2), WHOLE), ((6, 2), WHOLE), ((3, 20, 8), W), ((3, 8, 10), W)], [(6, 8)], {},
     ("experts", {3: 1, 4: 2}, (SUMMAND,), 0.5)),
    ("Expert", [((6, 8), WHOLE), ((20, 8), W), ((8, 10), W)], [(6, 8)], {}, ("experts", {1: 0, 2: 1}, (SUMMAND,), 0.5)),
]  # fmt: skip


@pytest.mark.parametrize("case", PRODUCTS + OTHERS, ids=lambda case: case[0])
def test_rule(case):
    """An op is split as worked by hand: style, what it reads and makes, and its share."""
    kind, arguments, results, attributes, expected = case
    assert only(kind, arguments, results, **attributes) == expected


NEEDS_WHOLE = [
    ("Softmax", [((2, 8, 6), 2)], [(2, 8, 6)], {"axis": -1}),
    ("LayerNormalization", [((2, 8, 6), 2), ((6,), W), ((6,), W)], [(2, 8, 6)], {"axis": -1}),
    ("RMSNormalization", [((2, 8, 6), 1), ((8, 6), W)], [(2, 8, 6)], {"normalized_shape": (8, 6)}),
    ("ArgMax", [((2, 8), 1)], [(2, 1)], {"axis": 1}),
    ("TopK", [((2, 8), 1)], [(2, 2), (2, 2)], {"axis": 1}),
    ("CumSum", [((2, 8), 0)], [(2, 8)], {"axis": 0}),
    ("Slice", [((2, 8, 6), 1)], [(2, 5, 6)], {"dim": 1, "start": 0}),
    ("Expand", [((1, 8), 0)], [(4, 8)], {}),
    ("aten::glu", [((2, 8), 1)], [(2, 4)], {"dim": 1}),
    ("Gather", [((16, 8), 0), ((3,), WHOLE)], [(3, 8)], {"axis": 0}),
    ("MaxPool", [((2, 8, 4, 4), 2)], [(2, 8, 2, 2)], {"kernel_shape": (2, 2)}),
    ("Conv", [((1, 4, 6, 6), 2), ((6, 4, 3, 3), W)], [(1, 6, 6, 6)], {}),
    ("com.microsoft::FusedGemm", [((3, 4), 1), ((4, 6), W)], [(3, 6)], {"activation": "Relu"}),
    ("BatchNormalization", [((4, 8, 3, 3), 0), ((8,), W)], [(4, 8, 3, 3)], {"training_mode": 1}),
]


@pytest.mark.parametrize("case", NEEDS_WHOLE, ids=lambda case: case[0])
def test_needs_whole(case):
    """Ops that combine what is split need all of it."""
    kind, arguments, results, attributes = case
    assert ask(kind, arguments, results, **attributes) == []


INDIVISIBLE = [
    ("Attention", [((1, 6, 2, 8), WHOLE), ((1, 3, 9, 8), WHOLE), ((1, 3, 9, 8), WHOLE)], [(1, 6, 2, 8)], {},
     Indivisible(3, "key-value heads")),
    ("Attention", [((1, 5, 2, 8), WHOLE)] * 3, [(1, 5, 2, 8)], {}, Indivisible(5, "heads")),
    ("MatMul", [((2, 5, 3, 4), WHOLE), ((2, 5, 4, 3), WHOLE)], [(2, 5, 3, 3)], {}, Indivisible(5, "heads")),
    ("Conv", [((1, 4, 5, 5), WHOLE), ((7, 4, 3, 3), W)], [(1, 7, 5, 5)], {}, Indivisible(7, "channels")),
    ("Gemm", [((3, 4), WHOLE), ((5, 4), W)], [(3, 5)], {"transB": 1}, Indivisible(5, "columns")),
    ("Experts", [((6, 8), WHOLE), ((6, 2), WHOLE), ((6, 2), WHOLE), ((3, 10, 8), W), ((3, 8, 5), W)], [(6, 8)], {},
     Indivisible(3, "experts")),
]  # fmt: skip


@pytest.mark.parametrize("case", INDIVISIBLE, ids=lambda case: str(case[-1]))
def test_indivisible(case):
    """A degree that divides neither heads, channels, columns nor experts says so."""
    kind, arguments, results, attributes, expected = case
    assert ask(kind, arguments, results, **attributes) == [expected]


RESHAPES = [
    # heads: the leading factor
    ((2, 3, 8), (2, 3, 4, 2), 2, (2, (1,), None)),
    # and back
    ((2, 3, 4, 2), (2, 3, 8), 2, (2, None, None)),
    # batch and length are merged
    ((2, 4, 8), (8, 8), 2, (1, None, None)),
    ((2, 4, 8), (8, 8), 1, (0, (1,), (1, 1))),
    # three matrices side by side: 3 is not divisible by 2, the heads are
    ((2, 12), (2, 3, 2, 2), 1, (2, (1, 1, 1), None)),
    ((2, 3, 2, 2), (2, 12), 2, (1, (1,), (1, 1, 1))),
    # dimensions of length 1 come and go
    ((1, 8, 6), (8, 6), 1, (0, None, None)),
    ((8, 6), (1, 8, 1, 6), 0, (1, None, None)),
]


@pytest.mark.parametrize("case", RESHAPES, ids=str)
def test_reshape(case):
    """A split dimension goes where its leading factor goes; parts side by side are tracked."""
    source, result, place, (target, cuts, joins) = case
    answer = ask("Reshape", [(source, place)], [result])[0]
    assert (answer.makes, answer.cuts, answer.joins) == ((target,), cuts, joins)
    assert dict(answer.reads) == {0: place}


def test_reshape_of_odd_heads():
    """Three heads of width 2 on two devices: only a layout that is known to be of three parts could be split."""
    strict, refusal = ask("Reshape", [((2, 6), 1)], [(2, 3, 2)])
    assert strict.strict
    assert refusal == Indivisible(3, "blocks")


def test_concat_along_the_split():
    """Parts side by side are each split: the ratio of their lengths is remembered."""
    (answer,) = ask("Concat", [((2, 4), 1), ((2, 8), 1)], [(2, 12)], axis=1)
    assert (answer.makes, answer.cuts, answer.joins) == ((1,), (1,), (1, 2))


def test_tokens():
    """With tokens split, a product is offered columns of gathered tokens first, and experts exchange tokens."""
    columns, rows = ask("MatMul", [((2, 4, 8), 1), ((8, 6), W)], [(2, 4, 6)], tokens=True)
    assert (columns.style, dict(columns.reads), columns.opens) == ("colwise", {1: 1}, True)
    assert (rows.style, rows.makes) == ("tokens", (1,))
    arguments = [((6, 8), 0), ((6, 2), 0), ((6, 2), 0), ((4, 20, 8), W), ((4, 8, 10), W)]
    (experts,) = ask("Experts", arguments, [(6, 8)], tokens=True)
    assert [(e.kind, e.is_result, e.times_bytes) for e in experts.exchanges] == [
        ("all-to-all", False, 2.0), ("all-to-all", True, 2.0),
    ]  # fmt: skip
    assert experts.makes == (0,)


def test_vocabulary_loss():
    """A loss over split scores exchanges three numbers of four bytes per row, and makes the whole loss."""
    (answer,) = ask("Loss", [((2, 3, 8), 2)], [()])
    assert answer.makes == (WHOLE,)
    assert [(e.kind, e.bytes_per_row) for e in answer.exchanges] == [("all-reduce", 4.0)] * 3


def test_linear():
    """Sums, views and multiples of summands are summands; what is not linear is not in the table."""

    def decide(kind, *forms):
        shapes = dict.fromkeys(range(len(forms)), (4, 6))
        return LINEAR[kind](SplitOp(kind, {}, shapes, ((4, 6),), frozenset(), dict(enumerate(forms)), 2))

    assert decide("Add", SUMMAND, SUMMAND).makes == (SUMMAND,)
    assert decide("Add", SUMMAND, WHOLE) is None
    assert decide("Mul", SUMMAND, WHOLE).makes == (SUMMAND,)
    assert decide("Mul", SUMMAND, SUMMAND) is None
    assert decide("Div", WHOLE, SUMMAND) is None
    assert decide("Reshape", SUMMAND).share == 1.0
    assert not {"Relu", "Softmax", "Cast", "LayerNormalization", "Dropout"} & LINEAR.keys()


def test_tables_know_real_kinds():
    """Kinds of the tables are kinds with a cost rule."""
    assert set(RULES) | set(LINEAR) | KEEP_FREE <= set(COSTS) | {"aten::fill_", "aten::zero"}
