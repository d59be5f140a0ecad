"""Which weights are constants. Formats rarely say what is a parameter, so it is told by where a weight stands."""

from __future__ import annotations

import math

from placewise.model.graph import Graph
from placewise.transform.training.values import GraphValue

_ARITHMETIC = frozenset(("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Where", "Clip"))
_TABLES = frozenset(("Mul", "Div"))
_FIXED = {
    "Attention": (3,), "aten::scaled_dot_product_attention": (3,), "LSTM": (5, 6), "GRU": (5,), "RNN": (5,),
    "aten::lstm": (1, 2), "aten::gru": (1,), "aten::rnn_tanh": (1,), "aten::rnn_relu": (1,),
}  # fmt: skip
"""Where masks and initial states stand."""
_BUFFERS = ("inv_freq", "running_mean", "running_var")


def is_buffer(name: str) -> bool:
    """Whether a weight is called like what models keep and do not train: frequencies, running statistics."""
    return name.endswith(_BUFFERS)


def is_constant(kind: str, at: int, value: GraphValue, *, scores: bool) -> bool:
    """Whether an argument is a weight that stands where models have constants.

    A single number in arithmetic; a table that something is multiplied by, longer than 1 in several dimensions
    (cosines of positions); the mask of an attention, also where it is added to what a softmax reads (`scores`); the
    state that a recurrent layer begins with.
    """
    if not value.is_weight:
        return False
    if kind in _ARITHMETIC and math.prod(value.shape) == 1:
        return True
    long = sum(dim > 1 for dim in value.shape)
    return at in _FIXED.get(kind, ()) or (kind in _TABLES and long > 1) or (kind == "Add" and scores and long > 1)


def find_score_ops(graph: Graph) -> set[int]:
    """The ops whose results a softmax reads."""
    readers = graph.ops.kind.equals("Softmax")[graph.edges.consumer]
    return set(graph.tensors.producer[graph.edges.value[readers]].tolist())
