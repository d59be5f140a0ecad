"""Products: weights are split by columns, and where the argument is split already, by rows (Megatron-LM).

Shoeybi et al. 2019, section 3: a product with whole arguments is column-parallel; one whose argument is split along
the contracted dimension is row-parallel, and its results are summands. Products of two activations are split by their
batch, as the heads of an attention are. All of them are contractions with a label per dimension, as in Einsum (Xu et
al. 2021, GSPMD, section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.costing.rules.linear import label_einsum
from placewise.costing.sharding.strategies import (
    SUMMAND,
    WHOLE,
    Answer,
    Indivisible,
    Rule,
    ShardingStrategy,
    SplitOp,
    follow,
    padded_share,
)

VOCABULARY = 2
"""A matrix with so many times more columns than rows scores a vocabulary, which is padded where need be."""
_LETTER = ord("A")


def matmul(op: SplitOp, *, right: int = 1, bias: int = -1, nonlinear: bool = False) -> list[Answer]:
    """[…, M, K] · […, K, N], each possibly transposed, plus a bias."""
    if right not in op.shapes or 0 not in op.shapes:
        return []
    a, b = op.shapes[0], op.shapes[right]
    if op.number("transBatchA") or op.number("transBatchB") or not a or not b:
        return []
    labels = _product_labels(len(a), len(b), bool(op.number("transA")), bool(op.number("transB")))
    return _contract(op, {0: labels[0], right: labels[1]}, labels[2], bias=bias, nonlinear=nonlinear)


def _product_labels(left: int, right: int, flip_a: bool, flip_b: bool) -> tuple[str, str, str]:
    batch = "".join(chr(_LETTER + k) for k in range(max(left, right, 2) - 2))
    of_a = "k" if left == 1 else "kr" if flip_a else "rk"
    of_b = "k" if right == 1 else "ck" if flip_b else "kc"
    front_a, front_b = batch[len(batch) - max(left - 2, 0) :], batch[len(batch) - max(right - 2, 0) :]
    return front_a + of_a, front_b + of_b, batch + "r" * (left > 1) + "c" * (right > 1)


def einsum(op: SplitOp) -> list[Answer]:
    """A contraction in its own labels."""
    terms, result = label_einsum(str(op.attributes.get("equation", "")), [op.shapes[at] for at in sorted(op.shapes)])
    of = dict(zip(sorted(op.shapes), terms, strict=True))
    if any(len(set(term)) < len(term) for term in (*terms, result)):
        return []
    return _contract(op, of, result)


def _contract(
    op: SplitOp, terms: Mapping[int, str], result: str, *, bias: int = -1, nonlinear: bool = False
) -> list[Answer]:
    """The ways to split a contraction of labelled arguments."""
    if not op.results or len(result) != len(op.results[0]):
        return []
    moving = [at for at in terms if not op.is_stationary(at)]
    split = next(((at, op.forms[at]) for at in moving if op.forms[at] >= 0), None)
    if split is None:
        return _open(op, terms, result, moving, bias)
    length = op.shapes[split[0]][split[1]]
    if not op.divides(length):
        return [Indivisible(length, "columns")]
    label = terms[split[0]][split[1]]
    reads = {at: term.index(label) for at, term in terms.items() if label in term and _is_long(op, at, term, label)}
    if label not in result:
        if nonlinear:
            return []
        return [ShardingStrategy("rowwise", reads, (SUMMAND,) * len(op.results), 1 / op.degree)]
    place = result.index(label)
    reads |= _read_bias(op, bias, place)
    is_batch = len(moving) > 1 and all(label in terms[at] for at in moving)
    answers: list[Answer] = [follow(op, reads, _all(op, place), "heads" if is_batch and not op.tokens else "")]
    if op.tokens and len(moving) == 1:
        return [*_open(op, terms, result, moving, bias), *answers]
    return answers


def _open(op: SplitOp, terms: Mapping[int, str], result: str, moving: list[int], bias: int) -> list[Answer]:
    """Split the columns of the weights, if an activation meets some."""
    if len(moving) != 1:
        return _refuse_heads(op, terms, moving)
    own = terms[moving[0]]
    columns = {
        label: (at, length)
        for at, term in terms.items()
        for label, length in zip(term, op.shapes[at], strict=True)
        if at != moving[0] and label in result and label not in own
    }
    if not columns:
        return []
    label, (at, length) = max(columns.items(), key=lambda item: item[1][1])
    inner = max((op.shapes[at][k] for k, name in enumerate(terms[at]) if name not in result), default=1)
    if not op.divides(length) and length < VOCABULARY * inner:
        return [Indivisible(length, "columns")] if length >= op.degree else []
    place = result.index(label)
    reads = {at: term.index(label) for at, term in terms.items() if label in term}
    share = padded_share(length, op.degree)
    return [ShardingStrategy("colwise", reads | _read_bias(op, bias, place), _all(op, place), share, opens=True)]


def _refuse_heads(op: SplitOp, terms: Mapping[int, str], moving: list[int]) -> list[Answer]:
    """A batch of products with two batch dimensions is an attention that is written out; the second are its heads."""
    if len(moving) == 2 and len(terms) == 2 and min(len(op.shapes[at]) for at in moving) >= 4:
        heads = op.shapes[moving[0]][-3]
        if heads > 1 and not op.divides(heads):
            return [Indivisible(heads, "heads")]
    return []


def _is_long(op: SplitOp, at: int, term: str, label: str) -> bool:
    return op.shapes[at][term.index(label)] > 1


def _read_bias(op: SplitOp, bias: int, place: int) -> dict[int, int]:
    """How a bias that is added to the result is read where dimension `place` of the result is split."""
    if bias not in op.shapes:
        return {}
    own = place - (len(op.results[0]) - len(op.shapes[bias]))
    return {bias: own} if own >= 0 and op.shapes[bias][own] > 1 else {}


def _all(op: SplitOp, place: int) -> tuple[int, ...]:
    """All results split along one dimension; further ones of another shape stay whole."""
    return tuple(place if shape == op.results[0] else WHOLE for shape in op.results)


def packed_matmul(op: SplitOp) -> list[Answer]:
    """com.microsoft MatMulNBits: B [N, blocks of K, bytes], scales and zero points by column first."""
    if 1 not in op.shapes or len(op.shapes[1]) != 3 or not op.is_stationary(1):
        return []
    columns, place = op.shapes[1][0], len(op.results[0]) - 1
    form = op.forms[0]
    if form == WHOLE or op.tokens:
        if not op.divides(columns):
            return [Indivisible(columns, "columns")]
        vectors = {at: 0 for at, shape in op.shapes.items() if at > 1 and at in op.weights and op.divides(shape[0])}
        opened = ShardingStrategy("colwise", {1: 0, **vectors}, (place,), 1 / op.degree, opens=True)
        return [opened, *([follow(op, {0: form}, (form,))] if op.tokens else [])]
    if form == len(op.shapes[0]) - 1:
        fits = op.divides(op.shapes[1][1])
        return [ShardingStrategy("rowwise", {0: form, 1: 1}, (SUMMAND,), 1 / op.degree)] if fits else []
    return [follow(op, {0: form}, (form,))]


def conv(op: SplitOp, *, kernel: int = 1, layout: str = "OI", bias: int = 2, nonlinear: bool = False) -> list[Answer]:
    """Data [batch, channels, …] or [batch, …, channels]; output channels, then input channels, or groups of both."""
    if kernel not in op.shapes or 0 not in op.shapes or len(op.shapes[0]) < 3 or not op.is_stationary(kernel):
        return []
    names = str(op.attributes.get("kernel_layout", layout)).ljust(len(op.shapes[kernel]))
    if "O" not in names or "G" in names:
        return []
    data, channel, groups = op.shapes[0], _channel(op, names), max(op.number("group", 1), 1)
    out = names.index("O")
    form = op.forms[0]
    follows = [follow(op, {0: form}, (form,))] if form == 0 else []
    if form >= 0 and form != channel and not op.tokens:
        return [*follows]
    if groups > 1:
        if not op.divides(groups):
            return [Indivisible(groups, "channels")]
        own = {at: 0 for at in (bias,) if at in op.shapes}
        by_group = names.index("I") if layout == "IO" else out
        opens = form != channel
        return [
            ShardingStrategy(
                "colwise" if opens else "follows",
                {0: channel, kernel: by_group, **own},
                (channel,),
                1 / op.degree,
                opens,
            )
        ]
    if form == channel:
        if nonlinear or not op.divides(data[channel]):
            return []
        return [ShardingStrategy("rowwise", {0: channel, kernel: names.index("I")}, (SUMMAND,), 1 / op.degree)]
    channels = op.shapes[kernel][out]
    if not op.divides(channels):
        return [Indivisible(channels, "channels")] if channels >= op.degree else []
    own = {at: 0 for at in (bias,) if at in op.shapes}
    return [ShardingStrategy("colwise", {kernel: out, **own}, (channel,), 1 / op.degree, opens=True)]


def _channel(op: SplitOp, names: str) -> int:
    rank = len(op.shapes[0])
    space_first = names[0] not in "GOI"
    last = space_first and not str(op.attributes.get("data_format", "NHWC")).startswith("NC")
    return rank - 1 if last or "Nhwc" in op.kind or op.number("channels_last") else 1


_MATMUL = (
    "MatMul com.microsoft::TransposeMatMul com.microsoft::FusedMatMul com.microsoft::MatMulInteger16 MatMulInteger"
)
_BIASED = "Gemm transformers::grouped_mm_fallback"
_FUSED = "com.microsoft::FusedMatMulActivation com.microsoft::FusedGemm com.microsoft::GemmFastGelu"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_MATMUL.split(), matmul),
    **dict.fromkeys(_BIASED.split(), partial(matmul, bias=2)),
    **dict.fromkeys(_FUSED.split(), partial(matmul, bias=2, nonlinear=True)),
    "QLinearMatMul": partial(matmul, right=3, nonlinear=True),
    "com.microsoft::QGemm": partial(matmul, right=3, nonlinear=True),
    "com.microsoft::MatMulIntegerToFloat": matmul,
    "com.microsoft::DynamicQuantizeMatMul": matmul,
    "com.microsoft::MatMulNBits": packed_matmul,
    "Einsum": einsum,
    "Conv": conv,
    "ConvInteger": partial(conv, bias=-1),
    "ConvTranspose": partial(conv, layout="IO"),
    "QLinearConv": partial(conv, kernel=3, bias=8, nonlinear=True),
    "com.microsoft::QLinearConv": partial(conv, kernel=3, bias=8, nonlinear=True),
    "com.microsoft::FusedConv": partial(conv, nonlinear=True),
}
