"""The backward pass of a sharding: shares of backward ops, and the conjugates of the forward collectives.

Where a split op reads a whole tensor, each device computes a summand of its gradient: an all-reduce (Megatron-LM's f,
Shoeybi et al. 2019, figure 3). Where a summand was summed forward, its gradient is whole at once (their g). With
sequence parallelism an all-gather and a reduce-scatter are each other's conjugates (Korthikanti et al. 2022, figure 5).
The all-gather with which they restore what a product saved overlaps with another product, and is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise.costing.sharding.op_table import OpTable
from placewise.costing.sharding.propagate import Spread
from placewise.model.columns import Bools, Ints
from placewise.model.graph import Graph
from placewise.model.sharding import STYLES, WHOLE, Collective

_MARKS = ("/grad:", "/update", "/renew:")
OPTIMIZER = "optimizer::"


def are_updates(graph: Graph) -> Bools:
    """Which ops [n_ops] are updates of an optimizer."""
    kinds = graph.ops.kind
    return np.array([name.startswith(OPTIMIZER) for name in kinds.values] or [False])[kinds.codes]


def find_forward_ops(graph: Graph) -> Ints:
    """The forward op [n_ops] that each backward op belongs to; forward ops belong to themselves.

    Backward ops of `to_training` carry the name of their forward op, others share its colocation group. −1 where
    neither tells.
    """
    backward = graph.ops.backward
    forward = np.arange(graph.n_ops, dtype=np.int32)
    if not backward.any():
        return forward
    index = {name: op for op, name in enumerate(graph.ops.name)}
    first: dict[int, int] = {}
    for op, (group, late) in enumerate(zip(graph.ops.group.tolist(), backward.tolist(), strict=True)):
        if group >= 0 and not late:
            first.setdefault(group, op)
    for op in np.flatnonzero(backward).tolist():
        name = graph.ops.name[op]
        stem = next((name.rpartition(mark)[0] for mark in _MARKS if mark in name), "")
        forward[op] = index.get(stem, first.get(int(graph.ops.group[op]), -1))
    return forward


def share_backward(graph: Graph, spread: Spread, weight_split: Sequence[int], degree: int) -> None:
    """Give backward ops the style and the share of their forward ops; updates, the share of their weights."""
    forward = find_forward_ops(graph)
    for op in np.flatnonzero(graph.ops.backward).tolist():
        if graph.ops.kind[op].startswith(OPTIMIZER):
            weights = graph.weights_of(op).tolist()
            split = bool(weights) and all(weight_split[w] >= 0 for w in weights)
            spread.style[op] = "follows" if split else "whole"
            spread.share[op] = spread.traffic[op] = 1 / degree if split else 1.0
        elif forward[op] >= 0:
            for column in (spread.style, spread.share, spread.traffic):
                column[op] = column[forward[op]]


def conjugate_collectives(
    table: OpTable, spread: Spread, unit: Sequence[int], repeats: Sequence[int]
) -> list[Collective]:
    """The collectives of the backward pass."""
    graph = table.graph
    if not graph.ops.backward.any():
        return []
    has_gradient = np.zeros(graph.n_ops, np.bool_)
    forward = find_forward_ops(graph)
    has_gradient[forward[graph.ops.backward & (forward >= 0)]] = True
    found = [collective._replace(backward=True) for collective in spread.own if collective.kind == "all-to-all"]
    summed = {c.tensor: c for c in spread.exchanges if c.kind in ("all-reduce", "reduce-scatter")}
    gathered = {c.tensor for c in spread.exchanges if c.kind == "all-gather"}
    for tensor, collective in summed.items():
        if collective.kind == "reduce-scatter" and has_gradient[table.makers[tensor]]:
            found.append(collective._replace(kind="all-gather", backward=True))
    by_tensor: dict[tuple[int, int], list[tuple[int, int, bool]]] = {}
    for read in spread.reads:
        maker = table.makers[read.tensor]
        if maker >= 0 and has_gradient[maker] and has_gradient[read.op]:
            by_tensor.setdefault((read.tensor, unit[read.op]), []).append((read.op, read.form, read.partial))
    nbytes = graph.tensors.bytes
    for (tensor, _), reads in by_tensor.items():
        made = spread.form[tensor]
        size, first = float(max(int(nbytes[tensor]), 0)), reads[0][0]
        base = (tensor, first, size)
        if any(partial for _, _, partial in reads):
            kind = "reduce-scatter" if made >= 0 else "all-reduce"
            found.append(Collective(kind, *base, made if made >= 0 else -1, True, repeats[first]))
        others = {form for _, form, _ in reads if form >= 0}
        if made == WHOLE:
            scattered = tensor in gathered
            found += [
                Collective("all-gather", *base, form, True, repeats[first]) for form in sorted(others) if not scattered
            ]
        elif made >= 0:
            changed = sorted(others - {made})
            found += [Collective("all-to-all", *base, -1, True, repeats[first]) for _ in changed]
    return found


def style_codes(styles: Sequence[str]) -> list[int]:
    """Styles as codes in `STYLES`."""
    code = {name: number for number, name in enumerate(STYLES)}
    return [code[name] for name in styles]
