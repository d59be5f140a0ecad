"""Costs of TensorFlow's own ops, counted by hand."""

import pytest
from costing_helpers import one_op

from placewise.costing.work import work_of

CONV = {"kernel_layout": "HWIO"}


def work(kind, inputs, outputs, **extra):
    found = work_of(one_op(kind, inputs, outputs, **extra))
    assert found.known.all()
    return found.flops[0], found.bytes[0], found.op_class[0]


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "attributes", "flops"),
    [
        ("Conv", [(2, 8, 8, 3), (5, 5, 3, 16)], [(2, 4, 4, 16)], CONV, 2 * 2 * 4 * 4 * 16 * 5 * 5 * 3),
        ("Conv", [(2, 8, 8, 6), (3, 3, 6, 2)], [(2, 8, 8, 12)], {"kernel_layout": "HWGO"}, 2 * 2 * 8 * 8 * 12 * 9),
        ("tf::Conv2DBackpropInput", [(4,), (5, 5, 3, 16), (2, 4, 4, 16)], [(2, 8, 8, 3)], {}, 2 * 512 * 75),
        ("tf::Conv2DBackpropFilter", [(2, 8, 8, 3), (4,), (2, 4, 4, 16)], [(5, 5, 3, 16)], {}, 2 * 512 * 75),
        ("tf::DepthwiseConv2dNativeBackpropFilter", [(2, 8, 8, 6), (4,), (2, 8, 8, 12)], [(3, 3, 6, 2)], {}, 27648),
        ("tf::ReluGrad", [(4, 5), (4, 5)], [(4, 5)], {}, 20),
        ("tf::TanhGrad", [(4, 5), (4, 5)], [(4, 5)], {}, 60),
        ("tf::ApplyAdam", [(7, 3), (7, 3), (7, 3), (), (), (), (), (), (), (7, 3)], [], {}, 12 * 21),
        ("tf::LSTMBlockCell", [(2, 5), (2, 8), (2, 8), (13, 32)], [(2, 8)] * 7, {}, 2 * (2 * 13 * 32 + 30 * 8)),
        ("tf::BlockLSTM", [(), (9, 2, 5), (2, 8), (2, 8), (13, 32)], [(9, 2, 8)] * 7, {}, 18 * (2 * 13 * 32 + 30 * 8)),
        ("tf::GRUBlockCell", [(2, 5), (2, 8), (13, 16), (13, 8)], [(2, 8)] * 4, {}, 2 * (2 * 13 * 24 + 23 * 8)),
        ("tf::CudnnRNN", [(9, 2, 5), (1, 2, 8), (1, 2, 8), (13 * 32 + 64,)], [(9, 2, 8)], {}, 18 * (2 * 13 * 32 + 240)),
        ("tf::SparseSoftmaxCrossEntropyWithLogits", [(4, 10), (4,)], [(4,), (4, 10)], {}, 7 * 40),
    ],
)  # fmt: skip
def test_flops(kind, inputs, outputs, attributes, flops):
    """Products, gradients, updates and cells."""
    assert work(kind, inputs, outputs, **attributes)[0] == flops


def test_updates_in_place_move_what_they_change():
    """Momentum reads and writes variable, moment and gradient; an element of a list is all that its storing moves."""
    assert work("tf::ApplyMomentum", [(8,), (8,), (), (8,), ()], [])[1] == 2 * 3 * 32
    assert work("tf::Assign", [(8,), (8,)], [])[1] == 64
    assert work("tf::TensorListPushBack", [(100, 8), (8,)], [(101, 8)])[1] == 64
    assert work("tf::ZerosLike", [(8,)], [(8,)])[1] == 32


def test_order_costs_nothing():
    """Ops that only say what comes first, and handles."""
    for kind in ("tf::NoOp", "tf::IdentityN", "tf::Merge", "tf::TensorListReserve"):
        assert work(kind, [(8,)], [(8,)]) == (0, 0, "free")
