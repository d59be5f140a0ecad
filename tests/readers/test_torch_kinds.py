"""Calls of ATen as ops: kinds, positions, and costs worked out by hand."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the calls under test are PyTorch's")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_models import graph_of  # noqa: E402

from placewise.costing.flops import RULES  # noqa: E402
from placewise.costing.work import work_of  # noqa: E402
from placewise.readers.torch.kinds import SKIPPED, convert_call  # noqa: E402
from placewise.readers.torch.traced_program import TensorMeta, TracedCall, ValueRef  # noqa: E402


class _One(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def one(function, *shapes, dtype=torch.float32):
    """Kinds and FLOPs of the ops that cost something, of a function of tensors."""
    args = tuple(item if isinstance(item, torch.Tensor) else torch.zeros(item, dtype=dtype) for item in shapes)
    graph = graph_of(_One(function), args)
    work = work_of(graph)
    assert work.warnings == ()
    free = work.op_class.equals("free")
    return [
        (kind, flops) for kind, flops, idle in zip(graph.ops.kind, work.flops.tolist(), free, strict=True) if not idle
    ]


INDEX = torch.zeros(5, dtype=torch.long)


@pytest.mark.parametrize(
    ("function", "shapes", "found"),
    [
        (lambda x, w, b: F.linear(x, w, b), [(2, 3, 4), (5, 4), (5,)], [("Gemm", 2 * 6 * 4 * 5)]),
        (torch.addmm, [(5,), (3, 4), (4, 5)], [("Gemm", 2 * 3 * 4 * 5)]),
        (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)], [("Gemm", 2 * 2 * 3 * 4 * 5)]),
        (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], [("aten::addbmm", 2 * 2 * 3 * 4 * 5)]),
        (torch.matmul, [(7, 3, 4), (4, 5)], [("MatMul", 2 * 7 * 3 * 4 * 5)]),
        (torch.matmul, [(4,), (4,)], [("MatMul", 8)]),
        (torch.bmm, [(2, 3, 4), (2, 4, 5)], [("MatMul", 2 * 2 * 3 * 4 * 5)]),
        (lambda x, y: torch.einsum("bik,bjk->bij", x, y), [(2, 3, 4), (2, 5, 4)], [("Einsum", 2 * 2 * 3 * 5 * 4)]),
        (F.conv1d, [(2, 4, 9), (6, 4, 3)], [("Conv", 2 * 2 * 6 * 7 * 12)]),
        (lambda x, w: F.conv2d(x, w, groups=2, stride=2), [(1, 4, 8, 8), (6, 2, 3, 3)], [("Conv", 2 * 6 * 9 * 18)]),
        (lambda x, w: F.conv2d(x, w, padding="same"), [(1, 4, 8, 8), (6, 4, 3, 3)], [("Conv", 2 * 6 * 64 * 36)]),
        (F.conv_transpose2d, [(1, 4, 5, 5), (4, 6, 2, 2)], [("ConvTranspose", 2 * 100 * 24)]),
        (F.bilinear, [(3, 4), (3, 5), (6, 4, 5)], [("aten::bilinear", 2 * 18 * 20)]),
        (torch.cdist, [(3, 4), (5, 4)], [("aten::cdist", 3 * 15 * 4)]),
        (F.scaled_dot_product_attention, [(2, 3, 4, 8)] * 3, [("Attention", 2 * 3 * 4 * 4 * (16 + 16 + 5))]),
        (F.scaled_dot_product_attention, [(2, 4, 8), (2, 6, 8), (2, 6, 10)], [("Attention", 2 * 24 * (16 + 20 + 5))]),
        (
            F.scaled_dot_product_attention,
            [(4, 8), (6, 8), (6, 8)],
            [("aten::scaled_dot_product_attention", 24 * (16 + 16 + 5))],
        ),
        (lambda x: F.layer_norm(x, (4,)), [(3, 4)], [("LayerNormalization", 7 * 12)]),
        (lambda x: F.rms_norm(x, (4,)), [(3, 4)], [("RMSNormalization", 4 * 12)]),
        (lambda x: F.group_norm(x, 2), [(3, 4, 5)], [("GroupNormalization", 7 * 60)]),
        (lambda x: F.instance_norm(x), [(3, 4, 5)], [("InstanceNormalization", 7 * 60)]),
        (lambda x, m, v: F.batch_norm(x, m, v), [(3, 4), (4,), (4,)], [("BatchNormalization", 2 * 12)]),
        (lambda x: F.softmax(x, 0), [(3, 4)], [("Softmax", 5 * 12)]),
        (lambda x: F.log_softmax(x, 0), [(3, 4)], [("LogSoftmax", 5 * 12)]),
        (lambda x: F.max_pool2d(x, 2), [(1, 3, 4, 4)], [("MaxPool", 4 * 12)]),
        (lambda x: F.avg_pool1d(x, 3, 1), [(1, 3, 6)], [("AveragePool", 3 * 12)]),
        (lambda x: F.adaptive_avg_pool2d(x, 1), [(1, 3, 4, 4)], [("GlobalAveragePool", 48)]),
        (lambda x: F.adaptive_avg_pool2d(x, 2), [(1, 3, 5, 5)], [("AveragePool", 9 * 12)]),
        (lambda x: F.interpolate(x, scale_factor=2), [(1, 3, 4, 4)], [("Resize", 0)]),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(1, 3, 4, 4)], [("Resize", 8 * 192)]),
        (lambda x: F.gelu(x), [(3, 4)], [("Gelu", 60)]),
        (lambda x: F.silu(x), [(3, 4)], [("Swish", 60)]),
        (lambda x: x.rsqrt(), [(3, 4)], [("aten::rsqrt", 24)]),
        (lambda x: x.add_(1.0).relu_(), [(3, 4)], [("Add", 12), ("Relu", 12)]),
        (lambda x: x.clamp(0, 6), [(3, 4)], [("Clip", 24)]),
        (lambda x: (x > 0) & (x != 1), [(3, 4)], [("Greater", 12), ("aten::ne", 12), ("BitwiseAnd", 12)]),
        (lambda x: torch.where(x > 0, x, 0.0), [(3, 4)], [("Greater", 12), ("Where", 12)]),
        (lambda x: x.masked_fill(x > 0, -math.inf), [(3, 4)], [("Greater", 12), ("Where", 12)]),
        (lambda x, y: torch.maximum(x, y), [(3, 4), (3, 4)], [("Max", 12)]),
        (lambda x: x.max(1).values, [(3, 4)], [("ReduceMax", 12)]),
        (lambda x: x.sum(1) + x.mean(), [(3, 4)], [("ReduceSum", 12), ("ReduceMean", 12), ("Add", 3)]),
        (lambda x: x.std(1), [(3, 4)], [("aten::std", 48)]),
        (lambda x: x.topk(2).values, [(3, 4)], [("TopK", 24)]),
        (lambda x: x.sort().values, [(3, 4)], [("aten::sort", 24)]),
        (lambda x: x.cumsum(0), [(3, 4)], [("CumSum", 12)]),
        (lambda x: torch.fft.fft(x), [(2, 8)], [("aten::fft", 5 * 16 * 3)]),
        (lambda x: torch.fft.fftn(x), [(2, 8)], [("aten::fft", 5 * 16 * (1 + 3))]),
        (lambda x: F.dropout(x, 0.5, True), [(3, 4)], [("aten::dropout", 24)]),
        (lambda x: F.dropout(x, 0.5, False), [(3, 4)], []),
        (lambda x: x.to(torch.float16), [(3, 4)], [("Cast", 0)]),
        (lambda x: x.to(torch.float32).view(-1)[None].permute(1, 0).expand(12, 3)[2:, :1].squeeze(), [(3, 4)], []),
        (lambda x: torch.cat([x, x], 1), [(3, 4)], [("Concat", 0)]),
        (lambda x: torch.stack([x, x]), [(3, 4)], [("ConcatFromSequence", 0)]),
        (lambda x: F.pad(x, (1, 1)), [(3, 4)], [("Pad", 0)]),
        (lambda x: x.repeat(2, 1), [(3, 4)], [("Tile", 0)]),
        (lambda x: x[INDEX], [(9, 4)], [("GatherND", 0)]),
        (lambda x: torch.ones_like(x) + x.new_zeros(4), [(3, 4)], [("Add", 12)]),
        (lambda x: torch.full((40, 40), 2.0) + x, [(1, 40)], [("ConstantOfShape", 0), ("Add", 1600)]),
    ],
)
def test_kinds_and_flops(function, shapes, found):
    """The op of a call, and its arithmetic by hand (docs/costs.md)."""
    assert one(function, *shapes) == found


def test_recurrent_layers():
    """Every matrix meets every step once; 30, 23 and 4 FLOPs per hidden unit, as for ONNX's LSTM, GRU and RNN."""
    steps = 5 * 2
    for layer, kind, gates, per in (
        (nn.LSTM(3, 4), "aten::lstm", 4, 30),
        (nn.GRU(3, 4), "aten::gru", 3, 23),
        (nn.RNN(3, 4), "aten::rnn_tanh", 1, 4),
    ):
        ((found, flops),) = one(layer, (5, 2, 3))
        assert found == kind
        assert flops == pytest.approx(2 * steps * gates * 4 * (3 + 4) + per * steps * 4)
    ((_, twice),) = one(nn.LSTM(3, 4, 2, bidirectional=True), (5, 2, 3))
    assert twice == pytest.approx(2 * steps * 2 * 16 * (3 + 4 + 8 + 4) + 30 * steps * 16)


def test_recurrent_layers_may_start_with_a_batch_of_none():
    """An unbatched sequence, whose states are matrices too: they are no weights."""
    ((_, flops),) = one(nn.LSTM(3, 4), (5, 3))
    assert flops == pytest.approx(2 * 5 * 16 * 7 + 30 * 5 * 4)


def test_bytes():
    """Lookups read the rows that they return, fills read nothing, and writes in place touch what they write."""

    class Bytes(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(100, 4)
            self.bags = nn.EmbeddingBag(100, 4)
            self.register_buffer("cache", torch.zeros(100, 4))

        def forward(self, index):
            rows = self.table(index)
            self.cache.index_copy_(0, index, rows)
            self.cache.zero_()
            return rows + self.bags(index[None])

    graph = graph_of(Bytes(), (INDEX,))
    work = dict(zip(graph.ops.kind, work_of(graph).bytes.tolist(), strict=True))
    assert work["Gather"] == 2 * 5 * 16 + 40
    assert work["TensorScatter"] == 2 * 5 * 16 + 40
    assert work["aten::zero_"] == 100 * 16
    assert work["aten::embedding_bag"] == 5 * 16 + 40 + 16 + (5 + 1 + 1) * 8


def test_everything_else_keeps_its_name():
    """Calls that no table names are ops of their own name with their tensors in order, in place or not."""
    metas = {name: TensorMeta((2,), "float32") for name in ("x", "y", "out")}
    call = TracedCall(
        "call", "aten::mystery_.Tensor", {"self": ValueRef("x"), "k": 3, "others": [ValueRef("y"), None]}, ("out",)
    )
    form = convert_call(call, metas)
    assert (form.kind, form.arguments, dict(form.attributes)) == ("aten::mystery_", ("x", "y"), {"k": 3})


def test_infinities_are_texts():
    """Attributes hold what any file can hold."""
    call = TracedCall("call", "mine::op", {"value": -math.inf, "many": [math.nan, 1.0]}, ("out",))
    assert dict(convert_call(call, {}).attributes) == {"value": "-inf", "many": ("nan", 1.0)}


def test_rules_fit_the_tables():
    """Every kind that the reader gives away has a rule, or is known to have a body."""
    from placewise.readers.torch.kinds import _SAME_ORDER

    assert set(_SAME_ORDER) <= RULES.keys()
    assert all(name.startswith("aten::") for name in SKIPPED)
