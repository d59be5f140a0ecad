"""ATen operators that ONNX lacks, and operators of PyTorch's other libraries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, Rule
from placewise.costing.rules.linear import matmul
from placewise.costing.rules.movement import copy, free, gather
from placewise.costing.rules.pointwise import per_input_element, pointwise
from placewise.costing.rules.reduction import over_input


def fill(op: OpInstance) -> Cost:
    """Only written; nothing is read."""
    return op.cost(0, "movement", nbytes=op.bytes_written)


def overwrite(op: OpInstance) -> Cost:
    """The others overwrite argument 0, which is not read."""
    others = sum(value.nbytes for position, value in op.inputs.items() if position)
    return op.cost(0, "movement", nbytes=others + op.bytes_written)


def layers(op: OpInstance, *, per: float, states: int) -> Cost:
    """A stack of recurrent layers: every weight matrix multiplies every step once.

    X [steps, batch, in] (any leading dimensions), `states` initial states, then the weights: matrices have two
    dimensions, biases one. A layer has one matrix for what it reads, one for its state, and a smaller one if that is
    projected. `per` FLOPs per hidden unit and step: sums, activations and the new state. Steps wait for each other: all
    but the first matrix of a layer are read at each of them.
    """
    x = op.shape(0)
    steps = math.prod(x[:-1])
    matrices = [value for position, value in op.inputs.items() if position > states and len(value.shape) == 2]
    each = 3 if len(matrices) > 2 and matrices[2].shape[0] < matrices[0].shape[0] else 2
    gates = sum(value.shape[0] for value in matrices[::each])
    length = 1 if op.kind.endswith("_cell") else x[1 if op.attributes.get("batch_first") and len(x) > 2 else 0]
    again = max(length - 1, 0) * sum(value.nbytes for at, value in enumerate(matrices) if at % each)
    flops = 2 * steps * sum(value.size for value in matrices) + per * steps * gates
    return op.cost(flops, "matmul", nbytes=op.bytes_moved + again)


def scaled_dot_product(op: OpInstance) -> Cost:
    """Attention with any leading dimensions: two products and a softmax of five FLOPs per score."""
    query, key, value = (op.shape(position) for position in range(3))
    scores = math.prod(query[:-1]) * key[-2]
    return op.cost(scores * (2 * query[-1] + 2 * value[-1] + 5), "attention")


def sum_of_products(op: OpInstance) -> Cost:
    """[B, M, K] · [B, K, N], summed over B."""
    left = op.shape(0)
    return op.cost(2 * left[0] * left[2] * op.outputs[0].size, "matmul")


def bilinear(op: OpInstance) -> Cost:
    """Arguments [B, I] and [B, J] with W [O, I, J]: sums over I and J for every output."""
    return op.cost(2 * op.outputs[0].size * math.prod(op.shape(2)[1:]), "matmul")


def pairwise_distances(op: OpInstance) -> Cost:
    """A difference, a power and a sum per component of every pair of rows."""
    return op.cost(3 * op.outputs[0].size * op.shape(0)[-1], "reduction")


def embedding_bag(op: OpInstance) -> Cost:
    """Rows of a table, looked up and summed: only these rows are read."""
    table, indices = op.inputs[0], op.inputs[1]
    rows = indices.size * math.prod(table.shape[1:])
    nbytes = rows * table.nbytes / max(table.size, 1) + indices.nbytes + op.bytes_written
    return op.cost(rows, "reduction", nbytes=nbytes)


def sort_rows(op: OpInstance) -> Cost:
    """N log2(n) comparisons for rows of length n along `dim`."""
    shape = op.shape(0)
    length = shape[op.number("dim", -1)] if shape else 1
    return op.cost(op.size(0) * math.log2(max(length, 2)), "reduction")


def fourier(op: OpInstance) -> Cost:
    """5 n log2(n) for every transform of length n along each of `axes`."""
    shape = max((op.shape(0), op.outputs[0].shape), key=math.prod)
    axes = op.attributes.get("axes", (-1,))
    return op.cost(sum(5 * math.prod(shape) * math.log2(max(shape[axis], 2)) for axis in axes), "reduction")


_FREE = "aten::empty aten::set_ aten::resize_ aten::sym_size aten::is_nonzero aten::_nested_view_from_buffer"
_COPIED = """aten::clone aten::flip aten::roll aten::rot90 aten::scatter_ aten::im2col aten::item
    aten::_local_scalar_dense aten::block_diag aten::cartesian_prod aten::channel_shuffle aten::tril_indices
    aten::triu_indices aten::view_copy aten::permute_copy aten::expand_copy aten::slice_copy
    aten::select_copy aten::transpose_copy aten::unsqueeze_copy aten::squeeze_copy aten::split_copy
    aten::split_with_sizes_copy aten::unbind_copy aten::t_copy aten::alias_copy aten::detach_copy
    aten::diagonal_copy aten::masked_scatter aten::_pack_padded_sequence aten::_pad_packed_sequence"""
_BAGS = "aten::embedding_bag aten::_embedding_bag aten::_embedding_bag_forward_only"
_WRITTEN = "aten::fill aten::fill_ aten::zero aten::zero_"
_POINTWISE = {
    1: """aten::ne aten::not_equal aten::exp2 aten::expm1 aten::trunc aten::fix aten::square aten::floor_divide_
       aten::signbit aten::isfinite aten::atan2 aten::erfc aten::erfinv aten::copysign aten::heaviside aten::logit
       aten::polar aten::complex aten::ldexp aten::exponential_ aten::geometric_ aten::cauchy_ aten::log_normal_
       aten::random_ aten::frac aten::isin aten::isposinf aten::isneginf aten::conj_physical aten::angle""",
    2: "aten::rsqrt aten::nan_to_num aten::dropout aten::xlogy aten::hypot aten::bucketize aten::searchsorted",
    3: "aten::lerp aten::addcmul aten::addcdiv aten::logaddexp aten::logaddexp2 aten::sinc aten::isclose",
    5: "aten::log_sigmoid aten::glu aten::log_sigmoid_forward aten::special_entr",
    8: "aten::erfcx aten::lgamma aten::digamma aten::special_i0",
}
_REDUCTIONS = {
    1: """aten::histc aten::bincount aten::count_nonzero aten::trace aten::nansum aten::nanmean aten::diff
       aten::cummax aten::cummin aten::aminmax aten::segment_reduce""",
    2: "aten::mse_loss aten::l1_loss aten::logcumsumexp aten::renorm aten::equal aten::cosine_similarity",
    3: "aten::smooth_l1_loss aten::huber_loss aten::kl_div aten::binary_cross_entropy aten::weight_norm "
       "aten::_weight_norm aten::_weight_norm_interface aten::linalg_cross aten::cross",
    4: "aten::var aten::std aten::var_mean aten::std_mean aten::binary_cross_entropy_with_logits",
}  # fmt: skip
_RECURRENT = {
    "lstm": (2, 7.5), "gru": (1, 23 / 3), "rnn_tanh": (1, 4.0), "rnn_relu": (1, 4.0),
    "lstm_cell": (2, 7.5), "gru_cell": (1, 23 / 3), "rnn_tanh_cell": (1, 4.0), "rnn_relu_cell": (1, 4.0),
}  # fmt: skip
"""Initial states, and FLOPs per row of a gate: those of ONNX's LSTM, GRU and RNN, divided among 4, 3 and 1 gates."""

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_FREE.split(), free),
    **dict.fromkeys(_COPIED.split(), copy),
    **dict.fromkeys(_WRITTEN.split(), fill),
    **{kind: partial(pointwise, per=per) for per, kinds in _POINTWISE.items() for kind in kinds.split()},
    **{kind: partial(over_input, per=per) for per, kinds in _REDUCTIONS.items() for kind in kinds.split()},
    **{f"aten::{name}": partial(layers, states=n, per=per) for name, (n, per) in _RECURRENT.items()},
    **dict.fromkeys(("aten::copy_", "aten::copy"), overwrite),
    "aten::index": gather,
    "aten::scaled_dot_product_attention": scaled_dot_product,
    "aten::addbmm": sum_of_products,
    "aten::bilinear": bilinear,
    **dict.fromkeys(("aten::cdist", "aten::_cdist_forward", "aten::pdist"), pairwise_distances),
    **dict.fromkeys(_BAGS.split(), embedding_bag),
    **dict.fromkeys(("aten::sort", "aten::median", "aten::kthvalue"), sort_rows),
    "aten::fft": fourier,
    "aten::pairwise_distance": partial(per_input_element, per=3),
    "transformers::grouped_mm_fallback": matmul,
    "python::from_python": copy,
    **dict.fromkeys(("quantized::linear", "quantized::linear_dynamic"), partial(matmul, right=-1, dtype="int8")),
}
