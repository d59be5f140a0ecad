"""Trace where gradients flow: which weights train, which tensors carry a gradient, where gradients start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from placewise._util.regex import compiled, in_time
from placewise.errors import InputError
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph
from placewise.model.tables import Tensors, Weights
from placewise.transform.training.rules.table import find_rule
from placewise.transform.training.values import GraphValue, positions_of

_FIRST_WAIT = 64
"""From this argument position on, readers put values that an op waits for without computing with them."""


@dataclass(frozen=True, slots=True)
class GradientFlow:
    """`arguments` and `results` of every op by position; `wants`: the arguments that need a gradient from the op.

    `carries` [n_tensors]: tensors that depend on a weight that trains.
    """

    arguments: list[dict[int, GraphValue]]
    results: list[list[GraphValue]]
    wants: list[tuple[int, ...]]
    carries: list[bool]


def trace_gradient_flow(graph: Graph, frozen: Sequence[str] = ()) -> GradientFlow:
    """Trace the gradients of a forward graph; weights whose name matches a pattern of `frozen` do not train.

    A weight trains if the model allows it, if its type is floating point or unknown, and if an op uses it in a place
    that a gradient can reach and that is not typical of constants (see `is_constant`). Tied weights train together.
    """
    tensors, weights = _list_values(graph.tensors, False), _list_values(graph.weights, True)
    arguments = _read_arguments(graph, tensors, weights)
    results = [[tensors[t] for t in graph.outputs_of(op)] for op in range(graph.n_ops)]
    kinds = list(graph.ops.kind)
    open_at = [_find_open_positions(kind, of) for kind, of in zip(kinds, arguments, strict=True)]
    trains = _find_trained_weights(graph, arguments, open_at, _match_frozen(graph.weights.name, frozen))
    carries, wants = [False] * len(tensors), []
    for of, places, outputs in zip(arguments, open_at, results, strict=True):
        wanted = tuple(at for at in places if (trains if of[at].is_weight else carries)[of[at].number])
        wants.append(wanted)
        for value in outputs if wanted else ():
            carries[value.number] = _is_floating(value)
    return GradientFlow(arguments, results, wants, carries)


def _find_trained_weights(
    graph: Graph,
    arguments: list[dict[int, GraphValue]],
    open_at: list[tuple[int, ...]],
    frozen: set[str],
) -> list[bool]:
    """Which weights train [n_weights]."""
    storage, scores = graph.weights.storage.tolist(), find_score_ops(graph)
    names = graph.weights.name
    used = {
        storage[value.number]
        for op, (kind, of, places) in enumerate(zip(graph.ops.kind, arguments, open_at, strict=True))
        for at, value in ((at, of[at]) for at in places)
        if value.is_weight and not is_constant(kind, at, value, scores=op in scores)
    }
    trainable = graph.weights.trainable.tolist()
    return [
        storage[value.number] in used
        and trainable[value.number]
        and _is_floating(value)
        and not is_buffer(names[value.number])
        and names[value.number] not in frozen
        for value in _list_values(graph.weights, True)
    ]


def _match_frozen(names: Sequence[str], frozen: Sequence[str]) -> set[str]:
    """The names in which a pattern of `frozen` matches."""
    matches: set[str] = set()
    try:
        for pattern in [frozen] if isinstance(frozen, str) else frozen:
            regex = compiled(pattern)
            with in_time(pattern, len(names)):
                found = set(filter(regex.search, names))
            if not found:
                remedy = "see the names of its parameters, or leave out --freeze"
                raise InputError(f"no weight of the model matches {pattern!r}", remedy=remedy)
            matches |= found
    except TypeError as error:
        remedy = "give a list of regular expressions for the names of weights"
        raise InputError(f"frozen is {frozen!r}, which is not a list of patterns ({error})", remedy=remedy) from None
    return matches


def find_loss(graph: Graph, flow: GradientFlow) -> int | None:
    """The model's own loss: its first output of one element that carries a gradient."""
    output, carries = graph.tensors.output.tolist(), flow.carries
    outputs = [t for t in range(graph.n_tensors) if output[t] and carries[t]]
    for t in outputs:
        shape = graph.tensors.shape[t]
        if graph.tensors.bytes[t] >= 0 and min(shape, default=0) >= 0 and math.prod(shape) == 1:
            return t
    return None


def find_starts(graph: Graph, flow: GradientFlow) -> list[int]:
    """The outputs of the model at which gradients start, ascending: all that carry one.

    Outputs that receive a gradient from another output are left out: hidden states, caches of keys and values.
    """
    output, carries = graph.tensors.output.tolist(), flow.carries
    tensors, reached = [], [False] * graph.n_tensors
    for op in reversed(range(graph.n_ops)):
        outputs = [value.number for value in flow.results[op]]
        for t in outputs:
            if output[t] and carries[t] and not reached[t]:
                tensors.append(t)
                reached[t] = True
        if any(reached[t] for t in outputs):
            for at in flow.wants[op]:
                value = flow.arguments[op][at]
                if not value.is_weight:
                    reached[value.number] = True
    return sorted(tensors)


def _find_open_positions(kind: str, arguments: dict[int, GraphValue]) -> tuple[int, ...]:
    """The arguments that a gradient could reach."""
    return tuple(at for at in positions_of(find_rule(kind).wrt, max(arguments, default=-1) + 1) if at in arguments)


def _list_values(table: Tensors | Weights, is_weight: bool) -> list[GraphValue]:
    columns = zip(table.shape, table.dtype.tolist(), table.bytes.tolist(), strict=True)
    return [
        GraphValue(is_weight, number, shape, DTYPES[dtype], nbytes)
        for number, (shape, dtype, nbytes) in enumerate(columns)
    ]


def _read_arguments(graph: Graph, tensors: list[GraphValue], weights: list[GraphValue]) -> list[dict[int, GraphValue]]:
    arguments: list[dict[int, GraphValue]] = [{} for _ in range(graph.n_ops)]
    for edges, values in ((graph.edges, tensors), (graph.weight_edges, weights)):
        for number, op, at in zip(edges.value.tolist(), edges.consumer.tolist(), edges.position.tolist(), strict=True):
            arguments[op][at] = values[number]
    return [_drop_waits(of) for of in arguments]


def _drop_waits(arguments: dict[int, GraphValue]) -> dict[int, GraphValue]:
    """Drop values that an op only waits for (positions from 64 on, if the positions before are empty)."""
    if max(arguments, default=0) < _FIRST_WAIT or _FIRST_WAIT - 1 in arguments:
        return arguments
    return {at: value for at, value in arguments.items() if at < _FIRST_WAIT}


def _is_floating(value: GraphValue) -> bool:
    return "float" in value.dtype or value.dtype in ("unknown", "complex64", "complex128")


_ARITHMETIC = frozenset(("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Where", "Clip"))
_TABLES = frozenset(("Mul", "Div"))
_FIXED = {
    "Attention": (3,), "aten::scaled_dot_product_attention": (3,), "LSTM": (5, 6), "GRU": (5,), "RNN": (5,),
    "aten::lstm": (1, 2), "aten::gru": (1,), "aten::rnn_tanh": (1,), "aten::rnn_relu": (1,),
}  # fmt: skip
"""The positions of masks and initial states."""
_BUFFERS = ("inv_freq", "running_mean", "running_var")


def is_buffer(name: str) -> bool:
    """Whether a weight has the name of a buffer that does not train: frequencies, running statistics."""
    return name.endswith(_BUFFERS)


def is_constant(kind: str, at: int, value: GraphValue, *, scores: bool) -> bool:
    """Whether a weight is in a place where models have constants; formats rarely mark parameters.

    Such are single numbers in arithmetic; factors longer than 1 in several dimensions (cosines of positions); the
    mask of an attention, also if it is added to the input of a softmax (`scores`); the initial state of a recurrent
    layer.
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
