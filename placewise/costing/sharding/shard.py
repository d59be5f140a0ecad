"""shard_graph(): how a graph is split over t devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from placewise.costing.sharding.backward import conjugate_collectives, share_backward, style_codes
from placewise.costing.sharding.op_table import OpTable, read_ops
from placewise.costing.sharding.propagate import TOKENS, Propagation, Spread
from placewise.costing.sharding.strategies import FREE, Parts
from placewise.errors import InputError
from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.model.sharding import WHOLE, Sharding

FATAL = ("heads", "key-value heads", "experts", TOKENS)
"""What a degree that the user asks for must divide."""


def shard_graph(
    graph: Graph,
    degree: int,
    *,
    sequence_parallel: bool = False,
    unit: Ints | None = None,
    table: OpTable | None = None,
) -> Sharding:
    """Split the ops of a graph over `degree` devices by the rules of their kinds.

    `unit` [n_ops]: tensors that another unit reads are made whole (or, with `sequence_parallel`, split by tokens);
    default: one unit. `table` avoids reading the graph again for another degree.
    """
    units = [0] * graph.n_ops if unit is None else np.asarray(unit).tolist()
    table = read_ops(graph) if table is None else table
    repeats = graph.op_repeats.tolist()
    if degree == 1:
        return _whole(graph)
    spread = Propagation(table, degree, unit=units, repeats=repeats, sequence_parallel=sequence_parallel).run()
    split, parts = _split_weights(graph, spread)
    share_backward(graph, spread, split, degree)
    backward = conjugate_collectives(table, spread, units, repeats)
    collectives = sorted((*spread.exchanges, *spread.own), key=lambda c: c.op)
    return Sharding(
        degree, np.array(style_codes(spread.style), np.int8), np.array(spread.share), np.array(spread.traffic),
        np.array([WHOLE if form == FREE else form for form in spread.form], np.int8),
        np.array(split, np.int8), parts, (*collectives, *backward), sequence_parallel,
        tuple(refusal for refusal in spread.refusals if refusal.what != "blocks"),
    )  # fmt: skip


def _whole(graph: Graph) -> Sharding:
    whole = np.full(graph.n_tensors, WHOLE, np.int8)
    return Sharding(
        1,
        np.zeros(graph.n_ops, np.int8),
        np.ones(graph.n_ops),
        np.ones(graph.n_ops),
        whole,
        np.full(len(graph.weights), WHOLE, np.int8),
    )


def _split_weights(graph: Graph, spread: Spread) -> tuple[list[int], Mapping[int, Parts]]:
    """The split dimension of each weight, if all its uses agree, and the lengths of its parts."""
    split, parts = [WHOLE] * len(graph.weights), dict[int, Parts]()
    for weight, needs in spread.weight_reads.items():
        if len(needs) != 1 or WHOLE in needs:
            continue
        split[weight] = next(iter(needs))
        ratio = spread.weight_layout.get(weight)
        length = graph.weights.shape[weight][split[weight]]
        if ratio is not None and len(ratio) > 1 and not length % sum(ratio):
            parts[weight] = tuple(part * (length // sum(ratio)) for part in ratio)
    return split, MappingProxyType(parts)


def splits_tokens(sharding: Sharding) -> bool:
    """Whether anything is split by tokens: some sum of split products is scattered."""
    return sharding.sequence_parallel and any(c.kind == "reduce-scatter" for c in sharding.collectives)


def find_undivided_tokens(sharding: Sharding) -> int:
    """A number of tokens that the degree does not divide; 0 if there is none."""
    return max((refusal.number for refusal in sharding.refusals if refusal.what == TOKENS), default=0)


def describe_refusals(sharding: Sharding) -> tuple[str, ...]:
    """A sentence per kind of reason why ops stay whole."""
    numbers: dict[str, list[int]] = {}
    for refusal in sorted(sharding.refusals):
        numbers.setdefault(refusal.what, []).append(refusal.number)
    return tuple(
        f"{sharding.degree} devices do not divide {_list_some(found)} {what} evenly, so ops that have them stay whole"
        for what, found in numbers.items()
    )


def _list_some(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:3]))
    return f"{shown}, …" if len(numbers) > 3 else shown


def require_divisible(sharding: Sharding) -> None:
    """Raise InputError for a degree that does not divide heads or experts."""
    found = next((refusal for refusal in sharding.refusals if refusal.what in FATAL), None)
    if found is None:
        return
    said = f"a tensor-parallel degree of {sharding.degree} does not divide the {found.number} {found.what} of the model"
    more = ": key-value heads are not repeated" if found.what.startswith("key") else ""
    raise InputError(said, remedy=f"give a divisor of {found.number}{more}")
