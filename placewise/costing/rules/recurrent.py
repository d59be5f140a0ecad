"""Recurrent layers over a whole sequence: two matrix products per step and some arithmetic per hidden unit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, Rule


def recurrent(op: OpInstance, *, per: int, dtype: str = "") -> Cost:
    """X [length, batch, in] (or batch first), W [directions, gates · hidden, in], R [directions, gates · hidden, …].

    `per` FLOPs for every hidden unit of every step: sums, activations (sigmoid 4, tanh 1) and the new state. Steps wait
    for each other: R is read at each of them, where W multiplies all steps at once.
    """
    steps = op.shape(0)[0] * op.shape(0)[1]
    directions, hidden = op.shape(2)[0], op.number("hidden_size", op.shape(2)[-1])
    flops = 2 * steps * (op.size(1) + op.size(2)) + per * steps * directions * hidden
    length = op.shape(0)[1 if op.number("layout", 0) else 0]
    again = max(length - 1, 0) * op.inputs[2].nbytes
    return op.cost(flops, "matmul", nbytes=op.bytes_moved + again, dtype=dtype)


RULES: Mapping[str, Rule] = {
    "RNN": partial(recurrent, per=4),
    "GRU": partial(recurrent, per=23),
    "LSTM": partial(recurrent, per=30),
    "com.microsoft::DynamicQuantizeLSTM": partial(recurrent, per=30, dtype="int8"),
}
