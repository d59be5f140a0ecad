"""Recurrent layers over a whole sequence: two matrix products per step and some arithmetic per hidden unit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.costing.case import Case, Cost, Rule


def recurrent(case: Case, *, per: int, dtype: str = "") -> Cost:
    """X [length, batch, in] (or batch first), W [directions, gates · hidden, in], R [directions, gates · hidden, …].

    `per` FLOPs for every hidden unit of every step: sums, activations (sigmoid 4, tanh 1) and the new state.
    """
    steps = case.shape(0)[0] * case.shape(0)[1]
    directions, hidden = case.shape(2)[0], case.number("hidden_size", case.shape(2)[-1])
    flops = 2 * steps * (case.size(1) + case.size(2)) + per * steps * directions * hidden
    return case.cost(flops, "matmul", dtype=dtype)


RULES: Mapping[str, Rule] = {
    "RNN": partial(recurrent, per=4),
    "GRU": partial(recurrent, per=23),
    "LSTM": partial(recurrent, per=30),
    "com.microsoft::DynamicQuantizeLSTM": partial(recurrent, per=30, dtype="int8"),
}
